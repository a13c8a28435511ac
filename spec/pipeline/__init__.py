"""Which layers stand on which pipeline stage, as users write it."""
