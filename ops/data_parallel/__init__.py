"""What data parallelism runs: sharded parameters and gradients, the step with its optimizer, offload to the host."""
