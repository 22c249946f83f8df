"""A fake NVML: a small shared object that speaks NVML's ABI and answers from a script, and scripts of whole nodes."""
