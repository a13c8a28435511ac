"""Clusters and their sheets."""
