"""Bytes in the file plus bytes of the listed items are the bytes that were priced."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.groups import group_of
from ops.op import Comm
from ops.recompute import Recompute
from ops.strategies.sharding import StrategyName
from solver.plans import Plan, PlanTable
from solver.price import sized
from solver.sync import operations
from spec.errors import ExportError
from tests.solver.questions import question, small_model
from workload.build import slowest, stage_works
from workload.simai_check import check_simai
from workload.simai_export import beyond_of, export_simai, exported_bytes, header_of
from workload.simai_reader import read_simai


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    strategy = draw(st.sampled_from(list(StrategyName)))
    tp = draw(st.sampled_from([1, 2, 4]))
    pp = draw(st.sampled_from([1, 2, 4]))
    dp = draw(st.sampled_from([1, 2, 4]))
    wp = draw(st.sampled_from([1, 2, 4])) if strategy is StrategyName.ISP else 1
    wp = min(wp, tp * dp)
    zero_size = draw(st.sampled_from([d for d in (1, 2, 4) if dp % d == 0]))
    return Plan(
        strategy=strategy,
        preset="internevo",
        recompute=draw(st.sampled_from([Recompute.NONE, Recompute.FULL])),
        tp=tp,
        pp=pp,
        dp=dp,
        wp=wp,
        zero_stage=int(zero_size > 1),
        zero_size=zero_size,
        micro_batch=draw(st.sampled_from([1, 2])),
        num_micro=draw(st.sampled_from([4, 8])),
    )


def priced_bytes(asked, plan: Plan, position: int) -> dict[str, int]:
    """Bytes by collective on one rank of a stage, straight from the operations."""
    table = sized(asked.model, asked.job, PlanTable.of(plan))
    row = int((table.stages.position == position).argmax())
    weights = [int(w[row]) for w in (*table.stages.layers, table.stages.embedding, table.stages.head)]
    domain = asked.pricer.domain_ranks
    total: dict[str, int] = defaultdict(int)
    for piece, weight in zip(table.layers.pieces, weights, strict=True):
        for op in (*piece.forward, *piece.backward):
            if isinstance(op, Comm) and group_of(op.axis, table.layers.layout, domain).ranks[0] > 1:
                total[op.collective.value] += plan.num_micro * weight * op.repeat * int(op.size_bytes[0])
    one = table.stages.plan[[row]]
    layout = table.plans.layout.take(one)
    for op in operations(asked.model, asked.job, layout, table.bytes.held.take(one * 0 + row), one < 0):
        if isinstance(op, Comm) and group_of(op.axis, layout, domain).ranks[0] > 1:
            total[op.collective.value] += int(np.broadcast_to(op.repeat, (1,))[0]) * int(op.size_bytes[0])
    return {kind: size for kind, size in total.items() if size}


COLLECTIVE_OF_WORD = {
    "ALLREDUCE": "all_reduce",
    "ALLGATHER": "all_gather",
    "REDUCESCATTER": "reduce_scatter",
    "ALLTOALL": "all2all",
}


@settings(max_examples=150, deadline=None)
@given(plan=plans())
def test_bytes_exported_and_listed_are_the_bytes_priced(plan: Plan) -> None:
    asked = question(
        world_size=plan.world_size,
        sequences=plan.dp * plan.micro_batch * plan.num_micro,
        model=small_model(layers=6),
    )
    work = slowest(stage_works(asked, plan))
    header = header_of(plan, work)
    found: dict[str, int] = defaultdict(int)
    for (token, _), size in exported_bytes(work, header, plan).items():
        found[COLLECTIVE_OF_WORD[token.split("_")[0]]] += size
    for one in beyond_of(work, header, plan):
        if one.collective != "p2p":
            found[one.collective] += one.total_bytes
    assert dict(found) == priced_bytes(asked, plan, work.position)


@settings(max_examples=30, deadline=None)
@given(plan=plans())
def test_the_checker_finds_no_defect(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> None:
    asked = question(
        world_size=plan.world_size,
        sequences=plan.dp * plan.micro_batch * plan.num_micro,
        model=small_model(layers=6),
    )
    path = tmp_path_factory.mktemp("simai") / "w.txt"
    exported = export_simai(asked, plan, path, strict=False)
    assert check_simai(read_simai(path)) == []
    assert len(path.read_text().splitlines()) == 2 + exported.rows


def test_compute_seconds_in_the_file_are_the_seconds_priced(tmp_path: Path) -> None:
    plan = Plan(strategy=StrategyName.FSP, preset="internevo", tp=4, dp=4, micro_batch=2, num_micro=8)
    asked = question(world_size=16, sequences=64)
    work = stage_works(asked, plan)[0]
    path = tmp_path / "w.txt"
    export_simai(asked, plan, path, strict=False)
    cells = [line.split("\t") for line in path.read_text().splitlines()[2:]]
    written_s = sum(int(row[2]) + int(row[5]) + int(row[8]) for row in cells) * 1e-9
    priced_s = plan.num_micro * sum(
        repeat * item.seconds for repeat, item in work.per_micro_batch() if item.collective is None
    ) + sum(item.seconds for item in work.step if item.collective is None)
    # Every cell is rounded to a nanosecond.
    assert written_s == pytest.approx(priced_s, abs=3e-9 * len(cells))


def test_strict_export_refuses_what_the_format_cannot_say(tmp_path: Path) -> None:
    plan = Plan(strategy=StrategyName.ISP, preset="internevo", tp=1, wp=8, dp=16, micro_batch=1, num_micro=4)
    path = tmp_path / "w.txt"
    with pytest.raises(ExportError, match=r"attention\.qkv\.weight"):
        export_simai(question(), plan, path, strict=True)
    assert not path.exists()


def test_nothing_is_written_for_groups_of_one(tmp_path: Path) -> None:
    plan = Plan(strategy=StrategyName.MTP, preset="internevo", tp=1, dp=1, micro_batch=1, num_micro=4)
    path = tmp_path / "w.txt"
    exported = export_simai(question(world_size=1, sequences=4), plan, path, strict=True)
    assert exported.beyond == ()
    assert {word for line in path.read_text().splitlines()[2:] for word in line.split("\t")[3::3][:3]} == {
        "NONE"
    }
