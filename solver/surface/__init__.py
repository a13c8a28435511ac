"""Questions asked from Python: what the command line asks, as objects."""
