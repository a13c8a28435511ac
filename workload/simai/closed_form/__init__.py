"""The step time that SimAI-Analytical prints for a workload, by its own closed form."""
