"""SimAI's workload files: writing, reading, checking, pricing."""
