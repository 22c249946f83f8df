"""Tables become figures: pure functions, no input or output, no plots."""
