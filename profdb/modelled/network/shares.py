"""What NCCL's tuning model does not hold but a time needs.

``Fitted:`` to nccl-tests timings of A100, H100, H200 and B200 nodes together (aiconfigurator's NCCL tables) and shared by
every GPU. Read them from this module, where a fit may replace them (benchmarks/modelled_held_out.py).
"""

LONG_SHARE = 0.93  # share of NCCL's link rate that Ring/Simple reaches on long messages
OWN_CHUNK = 0.45  # cost of a rank's own chunk (copied, not sent) in steps of a ring over NVLink
NVLS_SHARE = 0.9  # share of NCCL's NVLS rate that long messages reach
