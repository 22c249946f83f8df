"""Inside the training process: hooks, phases, device timing, captures."""
