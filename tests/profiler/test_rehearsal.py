"""Before a sweep: what it would measure, and one case of every kind."""

import re
from collections import Counter
from collections.abc import Hashable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from profdb.cases import (
    AttentionCase,
    Case,
    CollectiveCase,
    ExpertExchangeCase,
    GemmCase,
    GroupedGemmCase,
    HostCase,
    HostCopyCase,
    LayerCase,
    MemoryBoundCase,
    OptimizerCase,
    OverlapCase,
    SustainedCase,
    WarmKernelCase,
)
from profdb.layer_sum import parts_of_layer
from profdb.modelled.case_times import modelled_seconds
from profdb.modelled.cost_model import ModelledCostModel
from profiler import rehearsal
from profiler.cases.sweep_plan import SweepPlan, gpu_compute, largest_array_bytes, plan_cases, plan_tiers
from profiler.cases.tiers import in_order
from profiler.distributed.rank_layout import RankLayout
from profiler.profiling_run import RunOptions, RunReport, run_profiling
from profiler.rehearsal import (
    SHORT,
    UNKNOWN_S,
    calls_s,
    dry_run_lines,
    expected_s,
    kind_of,
    kind_s,
    launches_s,
    smoke,
    smoke_cases,
)
from profiler.timing import TrialPlan
from spec.cluster.reader import read_cluster
from spec.collectives import Collective
from tests.profiler.fakes import FakeClock, FakeLauncher

ROOT = Path(__file__).resolve().parents[2]
GPU_CASES = [item.case for item in in_order(gpu_compute())]
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


KINDS: dict[type, tuple[str, ...]] = {
    GemmCase: ("layout", "dtype_in", "dtype_out", "scale_recipe", "bias"),
    GroupedGemmCase: ("layout", "dtype_in", "scale_recipe", "spread"),
    AttentionCase: ("kernel", "direction", "mask", "dtype", "qk_dim", "v_dim"),
    MemoryBoundCase: ("kernel", "direction", "dtype"),
    WarmKernelCase: ("kernel", "direction", "dtype"),
    OptimizerCase: ("kernel", "parameter_dtype", "gradient_dtype"),
    CollectiveCase: ("collective", "intra", "inter", "dtype"),
    OverlapCase: ("collective", "intra", "inter", "dtype"),
    ExpertExchangeCase: ("kernel", "direction", "intra", "inter"),
    LayerCase: ("mode", "dtype"),
    HostCopyCase: ("direction",),
    HostCase: ("kind",),
}
"""What chooses the code that runs. Beside these: products alone or in batches, heads that share keys, and
which side of an overlap is at work."""


def code_run(case: Case) -> Hashable:
    beside: Hashable = None
    if isinstance(case, GemmCase):
        beside = case.batch > 1
    elif isinstance(case, AttentionCase):
        beside = case.heads != case.kv_heads
    elif isinstance(case, OverlapCase):
        beside = (case.products > 0, case.collectives > 0)
    return (type(case), *(str(getattr(case, name)) for name in KINDS[type(case)]), beside)


def test_a_smoke_test_runs_every_piece_of_code_that_a_sweep_runs() -> None:
    """On two nodes of two, in a minute by the sheet: the compiler's time, not the launches'."""
    cases = plan_cases(SweepPlan(device_kind="cuda", domain_ranks=2, domains=2, node_ranks=2))
    smoked = smoke_cases(cases)
    asked = {code_run(case) for case in cases if not isinstance(case, SustainedCase)}
    assert {code_run(case) for case in smoked} == asked
    assert {kind for kind, *_ in asked} == set(KINDS)
    seconds = expected_s(smoked, read_cluster("h200", root=ROOT), SHORT)
    assert 40.0 < seconds.sum() < 90.0


def test_a_smoke_test_says_what_does_not_run_and_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own folder goes with it, and the output that was asked for is not touched."""
    launched: list[Case] = []
    folders: list[Path] = []

    def before(case: Case) -> None:
        launched.append(case)
        if isinstance(case, HostCase) and case.kind == "call":
            raise NotImplementedError("no such luck")

    def fake_run(options: RunOptions, layout: RankLayout) -> RunReport | None:
        folders.append(options.output.parent)
        return run_profiling(options, layout, lambda _: FakeLauncher(clock=FakeClock(), before=before))

    monkeypatch.setattr(rehearsal, "run_profiling", fake_run)
    monkeypatch.setattr("profiler.sweep.noisy_cases", lambda samples: [])
    options = RunOptions(output=tmp_path / "data.pt", root=ROOT, device="cpu", only=("host", "optimizer"))
    lines = smoke(options, RankLayout())
    kinds = {code_run(case) for case in launched}
    assert len(kinds) == len(launched) > 4
    assert re.fullmatch(rf"{len(launched) - 1} of {len(launched)} kinds of kernel ran in [0-9.]+ s", lines[0])
    failed = "  failed: host(kind=call): NotImplementedError: no such luck"
    assert lines[1:] == [failed, "note: one process: no collectives measured (start with torchrun --nproc-per-node=N)"]
    assert not any(folder.exists() for folder in folders)
    assert not any(tmp_path.iterdir())


def test_a_dry_run_counts_every_case_and_adds_up() -> None:
    plans = plan_tiers(SweepPlan(device_kind="cuda", domain_ranks=2))
    sheet = read_cluster("h200", root=ROOT)
    lines = dry_run_lines(plans, sheet, TrialPlan())
    tiers = Counter(plan.tier for plan in plans)
    said = [
        re.match(r"tier (\d+): (\d+) cases, about (\d+) s, (\d+) s with those before: ", line) for line in lines[:-1]
    ]
    assert {int(line[1]): int(line[2]) for line in said if line} == tiers
    assert [line[1] for line in said if line] == ["0", "1", "2", "3"]
    seconds = expected_s([plan.case for plan in plans], sheet, TrialPlan())
    assert lines[-1] == f"{len(plans)} cases, about {seconds.sum() / 60:.1f} minutes"
    first = sum(second for second, plan in zip(seconds, plans, strict=True) if plan.tier == 0)
    assert next(line[3] for line in said if line) == f"{first:.0f}"
    assert [line[4] for line in said if line][-1] == f"{seconds.sum():.0f}"
    # a call of 8 ms: three to warm up, one more, then as many trials as 0.05 s hold; a GPU rests after products
    copy = MemoryBoundCase(kernel="copy", direction="forward", rows=1, width=1)
    assert launches_s(copy, 0.008, TrialPlan()) == pytest.approx(0.008 * (3 + 1 + 6))
    assert launches_s(GemmCase(m=1, k=1, n=1), 0.008, TrialPlan()) == pytest.approx(0.008 * (3 + 1 + 2.5 * 6))


def test_a_dry_run_knows_about_how_long_every_kind_takes() -> None:
    plans = plan_tiers(SweepPlan(device_kind="cuda", domain_ranks=8, domains=2))
    sheet = read_cluster("h200", root=ROOT)
    cases = [plan.case for plan in plans]
    unknown = {type(case) for case, call_s in zip(cases, calls_s(cases, sheet), strict=True) if call_s == UNKNOWN_S}
    assert unknown == {HostCase, SustainedCase}


def test_what_only_a_step_shows_takes_as_long_as_its_parts() -> None:
    sheet = read_cluster("h200", root=ROOT)
    cost_model = ModelledCostModel(cluster=sheet)
    group = {"collective": Collective.ALL_GATHER, "size_bytes": 64 << 20, "intra": 8, "inter": 1}
    (gathered_s,) = modelled_seconds(cost_model, [CollectiveCase(**group)])
    (product_s,) = modelled_seconds(cost_model, [GemmCase(m=8192, k=4096, n=4096)])
    beside = OverlapCase(**group, m=8192, k=4096, n=4096, products=64, collectives=1)
    alone = replace(beside, products=0, collectives=8)
    assert kind_s([beside, alone], cost_model) == pytest.approx([max(64 * product_s, gathered_s), 8 * gathered_s])
    # PCIe 5.0 x16 as nvbandwidth measures it (profdb.host_copies)
    copy = HostCopyCase(direction="to_host", size_bytes=1 << 30)
    assert kind_s([copy], cost_model) == pytest.approx([(1 << 30) / 55.63e9], rel=0.02)
    exchange = ExpertExchangeCase(direction="dispatch", tokens=4096, hidden=4096, experts=8, topk=2, intra=8, inter=1)
    whole = CollectiveCase(collective=Collective.ALL_TO_ALL, size_bytes=4096 * 4096 * 2 * 2, intra=8, inter=1)
    assert kind_s([exchange], cost_model) == pytest.approx(modelled_seconds(cost_model, [whole]))


def test_layers_priced_together_are_those_priced_one_by_one() -> None:
    cost_model = ModelledCostModel(cluster=read_cluster("h200", root=ROOT))
    shape = {"batch": 1, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn_hidden": 14336, "mode": "eager"}
    layers = [LayerCase(**shape, hidden=hidden, seq_len=seq_len) for hidden, seq_len in ((4096, 8192), (2048, 512))]
    alone = [sum(float(part.seconds[0]) for part in parts_of_layer(cost_model, layer)) for layer in layers]
    assert kind_s(layers, cost_model) == pytest.approx(alone)
    assert alone[0] > 4 * alone[1]


def test_a_dry_run_waits_for_the_compiler_once_a_graph() -> None:
    """Three seconds for each kernel, direction, format and width that only torch.compile fuses, for all rows."""
    swiglu = MemoryBoundCase(kernel="swiglu", direction="forward", rows=512, width=512)
    others = [replace(swiglu, direction="backward"), replace(swiglu, dtype="fp32"), replace(swiglu, kernel="quantize")]
    others.append(replace(swiglu, width=1024))
    again = [replace(swiglu, rows=1024), WarmKernelCase(**asdict(swiglu))]
    never = [replace(swiglu, kernel="rmsnorm_torch"), replace(swiglu, kernel="add")]
    cases = [swiglu, *others, *again, *never]
    waits_s = expected_s(cases, None, TrialPlan()) - expected_s(never[1:], None, TrialPlan())
    assert waits_s.tolist() == pytest.approx([3.0] * 5 + [0.0] * 4)
    # beside its launches, which nobody knows without a sheet: a millisecond each
    assert expected_s(never, None, TrialPlan())[0] == pytest.approx(0.075 + launches_s(never[0], 1e-3, TrialPlan()))


def test_a_sweep_waits_for_the_compiler_three_minutes_at_most() -> None:
    assert rehearsal.COMPILE_S * len(rehearsal.first_compiled(GPU_CASES)) < 180.0
