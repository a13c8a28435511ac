"""Profiles on disk and in memory: the file, its columns, merging two of them."""
