"""A run's log: a line an operation, its summary, what stands out, pictures. No torch."""
