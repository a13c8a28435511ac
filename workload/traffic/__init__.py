"""Who sends how much to whom."""
