"""Settings of frameworks on Megatron-Core that name what Megatron-LM's flags say in words of their own."""
