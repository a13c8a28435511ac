"""Pipeline schedules, one idea a file: the order in which each stage runs its work, and what it holds."""
