"""Clusters and hardware specs."""
