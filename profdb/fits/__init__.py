"""Curves through samples: surfaces of kernels, collectives by group shape, and the errors of both."""
