"""Launch settings of a plan, one framework a file."""
