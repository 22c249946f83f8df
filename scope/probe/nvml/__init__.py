"""NVIDIA's management library: GPUs, links, events; through the real nvidia-ml-py bindings."""
