"""Published training runs, one row each, priced by the solver: reading, mapping, pricing, residuals."""
