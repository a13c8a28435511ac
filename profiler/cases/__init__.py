"""Which cases a sweep measures."""
