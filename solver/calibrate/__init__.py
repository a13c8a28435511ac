"""Factors of a cluster from measured steps: python -m solver.calibrate."""
