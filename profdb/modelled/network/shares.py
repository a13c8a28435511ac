"""What NCCL's tuning model does not hold but a time needs.

``Fitted:`` inside a domain to nccl-tests timings of A100, H100, H200 and B200 nodes together
(aiconfigurator's NCCL tables), between nodes to published nccl-tests runs of 2 to 32 nodes over InfiniBand,
RoCE, EFA and TCPXO (benchmarks/multinode_accuracy.py), and shared by every GPU. Read them from this module,
where a fit may replace them (benchmarks/modelled_held_out.py, benchmarks/multinode_held_out.py).
"""

LONG_SHARE = 0.93  # share of NCCL's link rate that Ring/Simple reaches on long messages
OWN_CHUNK = 0.45  # cost of a rank's own chunk (copied, not sent) in steps of a ring over NVLink
NVLS_SHARE = 0.9  # share of NCCL's NVLS rate that long messages reach

NIC_STREAM_SHARE = (
    0.73  # of a NIC's rate, by one send: Vidur's h100_dgx send_recv tends to 36 of 50 GB/s between nodes
)
# Of a NIC's payload, by collectives of one rank a node. The mean of three sources is 0.85 of the line:
# mscclpp's NDmv4 page 0.69 (all-gather 0.63, all-reduce 0.75), NVIDIA/nccl-tests issue 232 0.95, a guide to a
# pair of DGX Spark 0.92.
ONE_RANK_SHARE = 0.87
NETWORK_START_S = 18e-6  # of a collective before its first hop between nodes: proxy threads wake and post
NVLS_TREE_START_S = 150e-6  # of NVLSTree between nodes: its chunks fill before the network runs
# Line rate lost per doubling of nodes beyond two (the slowest of more paths counts): the mean of eight
# sources of 16 nodes and more. A reduce-scatter series loses 0.05 (NVIDIA/nccl issue 1229), all-reduce and
# all-to-all over EFA 0.03 and 0.02, the other five all-reduces and all-gathers nothing that latency does not
# tell.
RATE_LOSS = 0.0125
