"""Settings of what trains with PyTorch's own sharding: accelerate and torchtitan."""
