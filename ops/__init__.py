"""What one rank runs: operations with shapes, bytes and dependencies, for N plans at once."""
