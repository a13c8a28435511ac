"""Constants that the code calls fitted or assumed: found mechanically, varied one at a time."""
