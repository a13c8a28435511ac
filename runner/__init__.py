"""Doing it on devices: a workload's replay, a real training step, their logs, and what the prediction said
beside them.
"""
