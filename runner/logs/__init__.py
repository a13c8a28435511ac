"""Logs of runs: one line per operation, summary, outliers, pictures. No torch."""
