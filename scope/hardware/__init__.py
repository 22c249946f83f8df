"""What the hardware can do: GPUs, links and memories as data with sources."""
