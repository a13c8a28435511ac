"""Frameworks that are told by what they change of another one, a file each."""
