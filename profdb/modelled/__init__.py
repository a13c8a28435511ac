"""Times computed from a hardware spec alone; every estimate has the origin MODELLED."""
