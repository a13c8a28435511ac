"""The plans that a search prices, which of them share a price, and what is tried where a device is full."""
