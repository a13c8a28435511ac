"""Plans as a table, the space they are drawn from and the rules they keep."""
