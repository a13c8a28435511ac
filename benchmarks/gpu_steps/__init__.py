"""Real training steps of plain PyTorch, each in a process of its own, and their predictions."""
