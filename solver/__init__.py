"""Choosing a plan: price every one from the curves, keep what fits, rank and explain. CPU only."""
