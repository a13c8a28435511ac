"""Benchmarks, one small file for each kind of case."""
