"""The closed form reproduces what the SimAI binary printed, and never prices by accident."""

import dataclasses
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec.collectives import Collective
from tests.workload.simai_lines import row
from workload.diagnostics import WorkloadError
from workload.simai.busbw import BusBandwidths, RatioTables, read_ratio_tables, simai_network
from workload.simai.closed_form import AnalyticalOptions, PrintedTimes, price_simai, row_lines, summary_lines
from workload.simai.format import TRANSFORMER, SimaiGroup, SimaiHeader, SimaiPass, SimaiRow, SimaiWorkload
from workload.simai.reader import parse_simai, usable_workload

NETWORK = simai_network(gpus_per_server=8, nics_per_server=8, nvlink_gib=360, nic_gib=48.5)
SMALL = SimaiHeader(tp=8, pp=1, all_gpus=64, policy=TRANSFORMER)
NONE = ("NONE", 0)
ACTIVATION = 50331648
EXPERT = 201326592


def bundled_example() -> SimaiWorkload:
    """SimAI's example/workload_analytical.txt, rebuilt from its period: 6 + 24 x 74 + 7 rows."""
    ones = (1, 1, 1)
    gather, scatter = ("ALLGATHER", ACTIVATION), ("REDUCESCATTER", ACTIVATION)
    high_precision_gather, wide_scatter = ("ALLGATHER", EXPERT), ("REDUCESCATTER", EXPERT)
    tokens, dispatch, experts = (("ALLGATHER", 1572864), ("ALLTOALL", 25165824), ("ALLTOALL_EP", 100663296))
    layer = [
        row("attention_column", (1750840, 875420, 875420), gather, ("REDUCESCATTER", 0)),
        row("attention_row", (1750840, 875420, 875420), scatter, gather),
        row("mlp_moelayer", (7956367, 7956367, 1), tokens, tokens),
        row("mlp_moelayer", ones, dispatch, dispatch),
        row("mlp_moelayer", ones, experts, experts),
        row("mlp_moelayer", ones, high_precision_gather, wide_scatter),
        row("mlp_moelayer", ones, wide_scatter, high_precision_gather),
        row("mlp_moelayer", ones, experts, experts),
        row("mlp_moelayer", ones, dispatch, dispatch),
    ]
    rows = [
        row("grad_gather", ones, NONE, NONE, ("ALLGATHER", 2807758848)),
        row("grad_param_comm", ones, NONE, NONE, ("REDUCESCATTER", 5615517696)),
        row("grad_param_compute", (1, 29700224, 1)),
        row("embedding_grads", ones, NONE, ("ALLREDUCE", ACTIVATION)),
        row("moe_grad_norm1", ones, NONE, NONE, ("ALLGATHER_DP_EP", 19327352832)),
        row("moe_grad_norm2", ones, NONE, NONE, ("REDUCESCATTER_DP_EP", 38654705664)),
    ]
    for micro_batch in range(24):
        weight_ns = 875420 if micro_batch else 15091072
        rows.append(row("embedding_layer", (622731, 1, weight_ns), ("ALLREDUCE", ACTIVATION)))
        rows += layer * 8
        rows.append(row("final_column", (875420, 875420, 875420), gather, ("REDUCESCATTER", 0)))
    rows += [row(f"cross_entropy{each}", (0, 0, 0), ("ALLREDUCE", 16384)) for each in (1, 2, 3)]
    rows += [row(f"optimizer{each}", (0, 0, 0), ("ALLREDUCE", 4)) for each in (1, 2, 3, 4)]
    header = SimaiHeader(tp=2, ep=16, pp=12, vpp=8, ga=24, all_gpus=9216, pp_comm_bytes=251658240)
    return SimaiWorkload(header=header, rows=rows)


@pytest.fixture
def example_ratios(tmp_path: Path) -> RatioTables:
    """The cells of SimAI's inputs/ratio that the example reads, in its layout; other cells stay empty."""
    sizes = [2**24, 2**25, 2**26, 2**27, 2**28, 2**34]
    one_server = [0.45, 0.55, 0.65, 0.69, 0.73, 0.81]
    to_all_one_server = [0.44, 0.51, 0.60, 0.65, 0.70, 0.78]
    to_all_four_servers = [0.67, 0.68, 0.83, 0.90, 0.92, 0.95]
    gathers = [f"{size},{ratio},,,,,,,,," for size, ratio in zip(sizes, one_server, strict=True)]
    to_all = [
        f"{size},{one},,{four},,,,,,,"
        for size, one, four in zip(sizes, to_all_one_server, to_all_four_servers, strict=True)
    ]
    for name, lines in (("nic_ratio", gathers), ("nvlink_ratio", gathers), ("ata_ratio", to_all)):
        (tmp_path / f"{name}.csv").write_text("\n".join(["Size,...", *lines]))
    return read_ratio_tables(tmp_path)


def test_the_bundled_example_costs_what_the_binary_prints(example_ratios: RatioTables) -> None:
    # SimAI 1.6: SimAI_analytical -w workload_analytical.txt -g 9216 -nv 360 -nic 48.5 -n_p_s 8 -g_p_s 8
    printed_us = {
        "dp": 40332,
        "dp_ep": 1067010,
        "tp": 326686,
        "ep": 1222811,
        "pp": 0,
        "bubble": 345984,
        "compute": 4542795,
    }
    workload = bundled_example()
    assert len(list(workload.rows)) == 1789
    report = price_simai(workload, AnalyticalOptions(network=NETWORK, ratios=example_ratios))
    assert {name: round(part * 1e6) for name, part in report.parts.items()} == printed_us
    assert round(report.total_s * 1e6) == 7545619
    assert report.warnings == ("pipeline transfers are not counted (-pp_o 1, as SimAI's default)",)


def test_without_ratio_tables_only_corrected_groups_get_faster(example_ratios: RatioTables) -> None:
    bare = price_simai(bundled_example(), AnalyticalOptions(network=NETWORK))
    full = price_simai(bundled_example(), AnalyticalOptions(network=NETWORK, ratios=example_ratios))
    assert (bare.parts["dp"], bare.parts["dp_ep"], bare.parts["compute"]) == (
        full.parts["dp"],
        full.parts["dp_ep"],
        full.parts["compute"],
    )
    assert bare.parts["tp"] < full.parts["tp"]
    assert any("no ratio tables" in warning for warning in bare.warnings)


def priced_us(header: SimaiHeader, *rows: SimaiRow, **options: object) -> dict[str, float]:
    workload = SimaiWorkload(header=header, rows=rows)
    report = price_simai(workload, AnalyticalOptions(network=NETWORK, **options))  # type: ignore[arg-type]
    return {name: part * 1e6 for name, part in report.parts.items() if part}


def test_a_second_of_compute_is_a_second() -> None:
    # Seen by running it: 1 000 000 000 in field 3 is reported as 1 000 000 us.
    assert priced_us(SMALL, row("a", (10**9, 0, 0))) == {"compute": pytest.approx(1e6)}


@pytest.mark.parametrize(
    ("token", "factor"), [("ALLREDUCE", 2 * 7 / 8), ("ALLGATHER", 7 / 8), ("REDUCESCATTER", 7 / 8), ("ALLTOALL", 7 / 8)]
)
def test_one_server_runs_at_nvlink(token: str, factor: float) -> None:
    # size / 2^30 / (bus bandwidth) x (n-1)/n, twice for all-reduce; 360 GiB/s.
    assert priced_us(SMALL, row("a", (0, 0, 0), (token, 2**30))) == {"tp": pytest.approx(factor / 360 * 1e6)}


def test_small_collectives_have_fixed_times() -> None:
    times = {2: 10, 4: 12, 8: 15, 16: 66, 32: 135, 64: 200, 128: 320}
    for ranks, time_us in times.items():
        header = dataclasses.replace(SMALL, tp=ranks, all_gpus=ranks)
        assert priced_us(header, row("a", (0, 0, 0), ("ALLREDUCE", 2**20 - 1))) == {"tp": pytest.approx(time_us)}


def test_data_parallel_uses_nics_even_inside_a_server() -> None:
    # Seen by running it: 8 GPUs at tp 1 are priced as 8 servers with all 8 NICs and 8 GPUs each; the ring is
    # bound by NVLink crossing NICs: min(360 x 8/7, 388).
    header = dataclasses.replace(SMALL, tp=1, all_gpus=8)
    assert priced_us(header, row("a", (0, 0, 0), NONE, NONE, ("ALLGATHER", 2**30))) == {
        "dp": pytest.approx(7 / 8 / 388 * 1e6)
    }


def test_all_to_all_across_servers() -> None:
    # NIC x nics / G x (N G - 1) / ((N - 1) G) with tp 2, ep 16: 4 servers of 4 GPUs with 4 NICs.
    header = SimaiHeader(tp=2, ep=16, all_gpus=64, policy=TRANSFORMER)
    bandwidth = 48.5 * 4 / 4 * 15 / (3 * 4)
    assert priced_us(header, row("a", (0, 0, 0), ("ALLTOALL_EP", 2**30))) == {
        "ep": pytest.approx(15 / 16 / bandwidth * 1e6)
    }


def test_recomputed_segment_runs_its_forward_again() -> None:
    header = SimaiHeader(tp=1, all_gpus=1, checkpoints=(1,), checkpoint_initiates=(3,))
    rows = [row(str(each), (10**each, 0, 0)) for each in range(5)]
    assert priced_us(header, *rows)["compute"] == pytest.approx((11111 + 110) / 1e3)


def test_pipeline_needs_a_bandwidth() -> None:
    # The binary's own figure for an implied 1 GiB/s: 2 x ga 8 x 1 GiB = 16 s.
    header = SimaiHeader(tp=1, pp=2, ga=8, all_gpus=2, pp_comm_bytes=2**30)
    hop = BusBandwidths(name="n", groups={}, pipeline_gib=1.0)
    assert priced_us(header, row("a", (0, 0, 0)), pp_overlap=0.0, busbw=hop) == {"pp": pytest.approx(16e6)}
    with pytest.raises(WorkloadError, match="pipeline's bandwidth"):
        priced_us(header, row("a", (0, 0, 0)), pp_overlap=0.5)


def test_bandwidths_of_a_file_go_first() -> None:
    busbw = BusBandwidths(name="n", groups={(SimaiGroup.TP, Collective.ALL_REDUCE): 100.0})
    rows = [row("a", (0, 0, 0), ("ALLREDUCE", 2**30), ("ALLGATHER", 2**30))]
    assert priced_us(SMALL, *rows, busbw=busbw) == {"tp": pytest.approx((1.75 / 100 + 0.875 / 360) * 1e6)}


@cache
def without_overlap() -> PrintedTimes:
    return price_simai(bundled_example(), AnalyticalOptions(network=NETWORK))


@cache
def num_rows() -> int:
    return len(list(bundled_example().rows))


@settings(max_examples=settings.default.max_examples // 5)
@given(shares=st.tuples(*[st.floats(0, 1)] * 3))
def test_overlap_hides_its_share(shares: tuple[float, float, float]) -> None:
    bare = without_overlap()
    dp, tp, ep = shares
    options = AnalyticalOptions(network=NETWORK, dp_overlap=dp, tp_overlap=tp, ep_overlap=ep)
    hidden = price_simai(bundled_example(), options)
    # The simulator cuts what a collective shows to whole nanoseconds.
    cut_s = 1e-9 * len(SimaiPass) * num_rows()
    assert hidden.parts["dp"] == pytest.approx(bare.parts["dp"] * (1 - dp), rel=1e-6, abs=cut_s)
    assert hidden.parts["dp_ep"] == pytest.approx(bare.parts["dp_ep"] * (1 - dp), rel=1e-6, abs=cut_s)
    assert hidden.parts["tp"] == pytest.approx(bare.parts["tp"] * (1 - tp), rel=1e-6, abs=cut_s)
    assert hidden.parts["ep"] == pytest.approx(bare.parts["ep"] * (1 - ep), rel=1e-6, abs=cut_s)
    # The bubble is taken before overlap.
    assert hidden.parts["bubble"] == bare.parts["bubble"]


@pytest.mark.parametrize(
    ("header", "comm", "match"),
    [
        (dataclasses.replace(SMALL, tp=1, all_gpus=8), ("ALLREDUCE", 2**20), "SimAI adds 9.2e18"),
        (dataclasses.replace(SMALL, tp=3, all_gpus=3), ("ALLREDUCE", 4096), "cost 0, as SimAI"),
        (SMALL, ("allreduce", 2**20), "moves nothing"),
        (SMALL, ("ALLGATHER", 2**35), "would be empty"),
        (SMALL, ("ALLGATHER_DP_EP", 2**20), "another group's size"),
    ],
)
def test_what_upstream_hides_is_a_warning(header: SimaiHeader, comm: tuple[str, int], match: str) -> None:
    workload = SimaiWorkload(header=header, rows=[row("a", (1, 1, 1), comm)])
    warnings = price_simai(workload, AnalyticalOptions(network=NETWORK)).warnings
    assert any(match in warning for warning in warnings), warnings


def test_a_size_above_the_tables_is_an_error(example_ratios: RatioTables) -> None:
    # 2**11 more is the next float after 2**34: what lies between is 2**34 to the simulator.
    priced_us(SMALL, row("a", (0, 0, 0), ("ALLGATHER", 2**34 + 1)), ratios=example_ratios)
    with pytest.raises(WorkloadError, match="ratio tables"):
        priced_us(SMALL, row("a", (0, 0, 0), ("ALLGATHER", 2**34 + 2**11)), ratios=example_ratios)


def test_free_communication_is_an_error() -> None:
    # Seen by running it: tp 8 with 4 NICs leaves 4 // 8 = 0 NICs for a data-parallel group.
    network = simai_network(gpus_per_server=8, nics_per_server=4, gpu_type="H100")
    workload = SimaiWorkload(header=SMALL, rows=[row("a", (0, 0, 0), NONE, NONE, ("ALLGATHER", 2**30))])
    with pytest.raises(WorkloadError, match="free"):
        price_simai(workload, AnalyticalOptions(network=network))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"gpu_type": "B200"}, "one of A100"),
        ({}, "give -nv"),
        ({"gpu_type": "A100", "nic_type": "cx9"}, "one of cx6"),
        ({"nvlink_gib": float("nan")}, "-nv"),
        ({"nvlink_gib": 0.0}, "-nv"),
        ({"gpu_type": "A100", "nic_gib": -1.0}, "-nic"),
    ],
)
def test_networks_that_are_refused(options: dict[str, object], match: str) -> None:
    with pytest.raises(WorkloadError, match=match):
        simai_network(gpus_per_server=8, nics_per_server=8, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "match"), [({"dp_overlap": 1.5}, "-dp_o"), ({"tp_overlap": float("nan")}, "-tp_o")]
)
def test_options_that_are_refused(options: dict[str, object], match: str) -> None:
    with pytest.raises(WorkloadError, match=match):
        priced_us(SMALL, row("a", (0, 0, 0)), **options)


def test_a_world_that_the_degrees_do_not_divide_is_refused() -> None:
    with pytest.raises(WorkloadError, match="-g 12: must be a multiple of tp x pp = 8 x 1"):
        priced_us(dataclasses.replace(SMALL, all_gpus=12), row("a", (0, 0, 0)))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (None, "no such file"),
        ("Size\n1,2\n", "line 2"),
        ("Size\n16,a,,,,,,,,,\n32,1,,,,,,,,,\n", "line 2"),
        ("Size\n16,0,,,,,,,,,\n32,1,,,,,,,,,\n", "positive"),
        ("Size\n32,1,,,,,,,,,\n16,1,,,,,,,,,\n", "ascending"),
        ("", "at least two rows"),
    ],
)
def test_bad_ratio_tables(content: str | None, match: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "nic_ratio.csv").write_text(content)
    with pytest.raises(WorkloadError, match=match):
        read_ratio_tables(tmp_path)


# The table is the binary's, to the last digit.

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
    lines = [*summary_lines(report, "case-"), *row_lines(workload, options)]
    assert "\n".join(lines) + "\n" == PRINTED
    assert [round(part * 1e6) for part in report.parts.values()] == [9107, 10379, 503, 122, 0, 8088, 130873]
    assert round(report.total_s * 1e6) == 159073
