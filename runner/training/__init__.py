"""A real training step: the reference transformer under torch's own parallel APIs, timed."""
