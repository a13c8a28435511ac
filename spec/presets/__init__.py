"""How each framework trains, one framework a file."""
