"""Traces of PyTorch's profiler: what a rank launched in its steps, with shapes, groups and seconds. No torch."""
