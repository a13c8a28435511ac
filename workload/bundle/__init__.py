"""Everything SimAI needs to run a plan, in one folder."""
