"""A workload's operations, run one after another on their real groups."""
