"""Collectives and messages modelled from a sheet, as NCCL chooses and times them."""
