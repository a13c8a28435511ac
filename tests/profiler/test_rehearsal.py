"""Before a sweep: what it would measure, and one case of every kind."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from profdb.cases import (
    CollectiveCase,
    ExpertExchangeCase,
    GemmCase,
    HostCase,
    HostCopyCase,
    LayerCase,
    MemoryBoundCase,
    OverlapCase,
    SustainedCase,
    WarmKernelCase,
)
from profdb.lookup.layer_parts import parts_of_layer
from profdb.modelled.book import ModelledBook
from profdb.modelled.profile import modelled_seconds
from profiler.cases.planned import most_informative_first
from profiler.cases.smoke import kind_of, smoke_cases
from profiler.cases.sweep_plan import SweepPlan, gpu_compute, largest_array_bytes, plan_tiers
from profiler.dry_run import UNKNOWN_S, calls_s, dry_run_lines, expected_s, launches_s
from profiler.step_parts.expected import step_parts_s
from profiler.timing import TrialPlan
from spec.cluster.reader import read_cluster
from spec.collectives import Collective

ROOT = Path(__file__).resolve().parents[2]
GPU_CASES = most_informative_first(gpu_compute())
SHORT_CASES = [case for case in GPU_CASES if not isinstance(case, SustainedCase)]


def test_every_kind_is_smoked_once_by_its_smallest_case() -> None:
    smallest: dict[Hashable, float] = {}
    for case in SHORT_CASES:
        kind = kind_of(case)
        smallest[kind] = min(largest_array_bytes(case), smallest.get(kind, float("inf")))
    smoked = smoke_cases(GPU_CASES)
    assert Counter(kind_of(case) for case in smoked) == dict.fromkeys(smallest, 1)
    assert {kind_of(case): largest_array_bytes(case) for case in smoked} == smallest
    names = [{getattr(case, "kernel", "") for case in cases} for cases in (GPU_CASES, smoked)]
    assert names[0] == names[1]


def test_a_dry_run_counts_every_case_and_adds_up() -> None:
    plans = plan_tiers(SweepPlan(device_kind="cuda", domain_ranks=2))
    sheet = read_cluster("h200", root=ROOT)
    lines = dry_run_lines(plans, sheet, TrialPlan())
    counts = [int(line.split()[2]) for line in lines[:-1]]
    assert sum(counts) == len(plans) == int(lines[-1].split()[0])
    seconds = expected_s([plan.case for plan in plans], sheet, TrialPlan())
    assert lines[-1].endswith(f"about {seconds.sum() / 60:.1f} minutes")
    # a call of 10 ms: three to warm up, one more, then as many trials as 0.15 s hold
    assert launches_s(0.01, TrialPlan()) == pytest.approx(0.01 * (3 + 1 + 15))


def test_a_dry_run_knows_about_how_long_every_kind_takes() -> None:
    plans = plan_tiers(SweepPlan(device_kind="cuda", domain_ranks=8, domains=2))
    sheet = read_cluster("h200", root=ROOT)
    cases = [plan.case for plan in plans]
    unknown = {
        type(case) for case, call_s in zip(cases, calls_s(cases, sheet), strict=True) if call_s == UNKNOWN_S
    }
    assert unknown == {HostCase, SustainedCase}


def test_what_only_a_step_shows_takes_as_long_as_its_parts() -> None:
    sheet = read_cluster("h200", root=ROOT)
    book = ModelledBook(cluster=sheet)
    group = {"collective": Collective.ALL_GATHER, "size_bytes": 64 << 20, "intra": 8, "inter": 1}
    (gathered_s,) = modelled_seconds(book, [CollectiveCase(**group)])
    (product_s,) = modelled_seconds(book, [GemmCase(m=8192, k=4096, n=4096)])
    beside = OverlapCase(**group, m=8192, k=4096, n=4096, products=64, collectives=1)
    alone = replace(beside, products=0, collectives=8)
    assert step_parts_s([beside, alone], book) == pytest.approx(
        [max(64 * product_s, gathered_s), 8 * gathered_s]
    )
    # PCIe 5.0 x16 as nvbandwidth measures it (profdb.modelled.offload)
    copy = HostCopyCase(direction="to_host", size_bytes=1 << 30)
    assert step_parts_s([copy], book) == pytest.approx([(1 << 30) / 55.63e9], rel=0.02)
    exchange = ExpertExchangeCase(
        direction="dispatch", tokens=4096, hidden=4096, experts=8, topk=2, intra=8, inter=1
    )
    whole = CollectiveCase(collective=Collective.ALL_TO_ALL, size_bytes=4096 * 4096 * 2 * 2, intra=8, inter=1)
    assert step_parts_s([exchange], book) == pytest.approx(modelled_seconds(book, [whole]))
    assert step_parts_s([GemmCase(m=8, k=8, n=8)], book) == [None]


def test_layers_priced_together_are_those_priced_one_by_one() -> None:
    book = ModelledBook(cluster=read_cluster("h200", root=ROOT))
    shape = {"batch": 1, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn_hidden": 14336, "mode": "eager"}
    layers = [
        LayerCase(**shape, hidden=hidden, seq_len=seq_len) for hidden, seq_len in ((4096, 8192), (2048, 512))
    ]
    alone = [sum(float(part.seconds[0]) for part in parts_of_layer(book, layer)) for layer in layers]
    assert step_parts_s(layers, book) == pytest.approx(alone)
    assert alone[0] > 4 * alone[1]


def test_a_dry_run_waits_for_the_compiler_once_a_graph() -> None:
    """Three seconds for each kernel, direction and format that only torch.compile fuses, whatever their sizes."""
    swiglu = MemoryBoundCase(kernel="swiglu", direction="forward", rows=512, width=512)
    others = [
        replace(swiglu, direction="backward"),
        replace(swiglu, dtype="fp32"),
        replace(swiglu, kernel="quantize"),
    ]
    again = [replace(swiglu, rows=1024), WarmKernelCase(**asdict(swiglu))]
    never = [replace(swiglu, kernel="rmsnorm"), GemmCase(m=512, k=512, n=512)]
    cases = [swiglu, *others, *again, *never]
    waits_s = expected_s(cases, None, TrialPlan()) - expected_s(never[1:], None, TrialPlan())
    assert waits_s.tolist() == pytest.approx([3.0] * 4 + [0.0] * 4)
