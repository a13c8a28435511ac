"""Real training steps of plain PyTorch, each in a process of its own, beside what a profile says of them."""
