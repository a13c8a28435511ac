"""What would be run, operation by operation: workloads, their file formats, traffic and topologies; CPU only."""
