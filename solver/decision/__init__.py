"""Questions beyond one ranking: what would make it fit, side by side, how many GPUs, how long and for how much."""
