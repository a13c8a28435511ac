"""General workloads: one CSV line a message, by framework."""
