"""Measurements and the curves through them; usable without a GPU."""
