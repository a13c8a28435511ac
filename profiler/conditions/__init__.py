"""Under what conditions samples were taken: clocks, heat, power, noise; and which are worth a second look."""
