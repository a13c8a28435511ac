"""Seconds of operations, layers and what they wait for."""
