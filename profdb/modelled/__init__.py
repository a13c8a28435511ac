"""Times computed from a hardware sheet alone; every answer says ``modelled``."""
