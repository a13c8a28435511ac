"""Workloads, operation by operation: their file formats, launch settings, traffic and topologies; CPU only."""
