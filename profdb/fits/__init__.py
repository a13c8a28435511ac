"""Curves through samples: surfaces of kernels, collectives by group shape, and how well they are known."""
