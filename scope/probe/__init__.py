"""Readers of NVML, sysfs, proc and ethtool: records with units, no metrics."""
