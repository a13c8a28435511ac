"""Parallel degrees, the ranks of each group of a workload, and their process groups."""
