"""Traces of PyTorch's profiler: the launches of a rank's steps with shapes, groups and seconds. No torch."""
