"""Collectives and messages modelled from a hardware spec, as NCCL chooses and times them."""
