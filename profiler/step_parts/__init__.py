"""Benchmarks of what only a training step shows: several operations together, a whole layer, copies to the host."""
