"""Questions beyond one ranking: what would make it fit, why not that plan, how many GPUs, how long, for how much."""
