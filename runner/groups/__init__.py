"""Ranks of each group that a workload names, and torch's handles of them."""
