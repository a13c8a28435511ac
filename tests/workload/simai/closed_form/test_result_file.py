"""The table is the binary's, to the last digit."""

from workload.simai.busbw import simai_network
from workload.simai.closed_form import AnalyticalOptions, price_simai, row_lines, summary_lines
from workload.simai.reader import parse_simai, usable_workload

WORKLOAD = """\
HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 4 ep: 2 pp: 2 vpp: 2 ga: 7 all_gpus: 64 checkpoints: 1 1 \
checkpoint_initiates: 1 3 pp_comm: 33554432
5
embedding_layer -1 799001 ALLREDUCE 40000001 12345 NONE 0 17374999 ALLGATHER 413138947 100
attention_layer -1 1750840 ALLREDUCE 3000 875421 ALLREDUCE 123456789 875420 NONE 0 100
mlp_layer -1 2478017 ALLREDUCE_EP 50331649 2478017 ALLGATHER_EP 700000 99999999 REDUCESCATTER 1073741827 100
mlp_layer -1 1 NONE 0 1 NONE 0 1 ALLGATHER_DP_EP 987654321 100
optimizer -1 500 NONE 0 0 NONE 0 0 REDUCESCATTER_DP_EP 2000 100
"""

# results/case-EndToEnd.csv of a binary built from SimAI's sources of April 2026 (parser and closed form of 1.7), run as
# SimAI_analytical -g 64 -g_p_s 8 -n_p_s 8 -nv 417.2325 -nic 46.566 -dp_o 0.3 -tp_o 0.1 -r case-; no row of it is one
# that the ratio tables correct. "-nan", the bandwidth of nothing, stands empty.
PRINTED = """\
File name, Expose DP comm, Expose DP_EP comm, Expose TP comm, Expose_EP_comm, Expose_PP_comm, bubble time, total comp, \
total exposed comm, Total time
case-, 9107 (5.73%), 10379 (6.52%), 503 (0.32%), 122 (0.08%), 0 (0.00%), 8088 (5.08%), 130873 (82.27%), \
20112 (12.64%), 159073
layer_name,Analytical_test,fwd compute,wg compute,ig compute,fwd exposed comm,wg exposed comm,ig exposed comm,\
fwd total comm,algbw,busbw,wg total comm,algbw,busbw,ig total comm,algbw,busbw
embedding_layer,Analytical_test,799,17375,12,121,2530,0,134,278.16,417.23,3615,106.44,93.13,0,,0.00
attention_layer,Analytical_test,3502,875,875,11,0,372,12,0.32,0.48,0,,0.00,413,278.16,417.23
mlp_layer,Analytical_test,4956,100000,2478,112,6577,10,112,417.23,417.23,9395,106.44,93.13,10,65.19,32.60
mlp_layer,Analytical_test,0,0,0,0,10370,0,0,,0.00,14815,62.09,46.57,0,,0.00
optimizer,Analytical_test,0,0,0,0,8,0,0,,0.00,12,0.16,0.12,0,,0.00
"""


def test_the_binary_prints_the_same() -> None:
    workload = usable_workload(parse_simai(WORKLOAD.encode()))
    network = simai_network(gpus_per_server=8, nics_per_server=8, nvlink_gib=417.2325, nic_gib=46.566)
    options = AnalyticalOptions(network=network, dp_overlap=0.3, tp_overlap=0.1)
    report = price_simai(workload, options)
    lines = [*summary_lines(report.printed, "case-"), *row_lines(workload, options)]
    assert "\n".join(lines) + "\n" == PRINTED


def test_the_parts_in_seconds_are_those_printed() -> None:
    workload = usable_workload(parse_simai(WORKLOAD.encode()))
    network = simai_network(gpus_per_server=8, nics_per_server=8, nvlink_gib=417.2325, nic_gib=46.566)
    report = price_simai(workload, AnalyticalOptions(network=network, dp_overlap=0.3, tp_overlap=0.1))
    shown = [round(part * 1e6) for part in report.parts.values()]
    assert shown == [9107, 10379, 503, 122, 0, 8088, 130873]
    assert round(report.total_s * 1e6) == 159073
