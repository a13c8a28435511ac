"""The verb generate: AICB's flags to workload files."""
