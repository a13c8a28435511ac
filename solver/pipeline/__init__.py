"""Stages, and when each of their passes runs."""
