"""Which node, which link: every pair's bandwidth, nccl-tests' table, and ranks that are slower than their peers."""
