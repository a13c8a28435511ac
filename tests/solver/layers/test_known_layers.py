"""Layers that questions share are those that each of them would write down alone, and so are their bytes and times."""

from dataclasses import replace

import numpy as np
import pytest

from ops.recompute.layers import Recompute
from ops.strategies.registry import STRATEGIES
from solver.layers.distinct_layers import distinct_layers
from solver.layers.known_layers import MOST_KINDS, MOST_ROWS, KnownLayers
from solver.layers.written_layers import Again
from solver.plans.plan_table import Plan, PlanTable
from solver.plans.space import enumerate_block, full_space
from solver.price import price, sized
from solver.question import Question
from solver.search import search
from solver.times.op_times import Pricer
from spec.job import JobSpec
from spec.presets.registry import PRESETS
from spec.settings.constraints import constraints_of
from tests.solver.questions import question


def plans_of(asked: Question) -> PlanTable:
    """The first block's."""
    space = full_space(asked.model, asked.job)
    return enumerate_block(asked.model, asked.job, asked.cluster, space, space.blocks[0]).plans


def check_shared(asked: Question, known: KnownLayers, plans: PlanTable) -> None:
    """Bytes, step, parts, origins and errors of every plan by shared layers are those by its own."""
    shared = known.of(asked.model, asked.job, plans)
    assert shared is not None
    tables = [sized(asked.model, asked.job, plans, asked.cluster, layers=layers) for layers in (shared, None)]
    assert np.array_equal(tables[0].needed_bytes, tables[1].needed_bytes)
    costs = [price(asked.model, asked.job, table, asked.pricer) for table in tables]
    assert np.isfinite(costs[1].step_s).all()
    np.testing.assert_allclose(costs[0].step_s, costs[1].step_s, rtol=1e-12)
    for mine, own in (
        (costs[0].parts, costs[1].parts),
        (costs[0].origins, costs[1].origins),
        (costs[0].std_s, costs[1].std_s),
    ):
        for name, value in own.items():
            np.testing.assert_allclose(mine[name], value, rtol=1e-9, atol=1e-15, err_msg=str(name))


@pytest.mark.parametrize("preset", ["internevo", "fsdp"])
def test_questions_about_other_batches_share_layers_in_every_way_to_run_again(preset: str) -> None:
    """The larger batch has layouts more, which are written down beside those that are known."""
    known = KnownLayers()
    for sequences in (8, 32):
        asked = question(preset=PRESETS[preset], world_size=8, sequences=sequences)
        plans = plans_of(asked)
        plans = plans.take(np.arange(len(plans), step=5))
        for mode in (Recompute.NONE, Recompute.FULL, Recompute.BLOCK):
            check_shared(asked, known, replace(plans, recompute=mode))
    layers = known.of(asked.model, asked.job, plans)
    assert layers is not None
    assert len(layers.written.parts) == 2


def test_an_operation_is_timed_once_for_all_batches_and_ways_to_run_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Layers of no plan that fits are not timed either."""
    timed: list[int] = []
    ask = Pricer._timed

    def counted(pricer: Pricer, op: object, layout: object) -> object:
        timed.append(len(layout))  # type: ignore[arg-type]
        return ask(pricer, op, layout)  # type: ignore[arg-type]

    first = question(preset=PRESETS["megatron"], world_size=8, sequences=16)
    plans, known = plans_of(first), KnownLayers()
    monkeypatch.setattr(Pricer, "_timed", counted)

    def calls(asked: Question, table: PlanTable) -> int:
        before = len(timed)
        layers = known.of(asked.model, asked.job, table)
        assert layers is not None
        layers.written.times(asked.pricer, layers.again, rows=layers.row)
        return len(timed) - before

    assert calls(first, replace(plans, recompute=Recompute.NONE)) > 10
    again = calls(first, replace(plans, recompute=Recompute.FULL))
    assert 0 < again < len(timed) // 2
    assert calls(first, replace(plans, recompute=Recompute.BLOCK)) == 0
    larger = replace(
        first,
        job=replace(first.job, global_batch_tokens=4 * first.job.global_batch_tokens),
        pricer=first.pricer,
    )
    known.of(larger.model, larger.job, plans_of(larger))
    assert calls(larger, replace(plans, recompute=Recompute.FULL)) == 0
    assert calls(larger, replace(plans_of(larger), recompute=Recompute.FULL)) > 10


def test_a_search_that_shares_layers_finds_what_one_alone_finds() -> None:
    known = KnownLayers()
    for sequences in (4, 8):
        asked = question(preset=PRESETS["megatron"], world_size=4, sequences=sequences, memory_gib=2.7)
        space = full_space(asked.model, asked.job, constraints_of({"fix": {"zero_stage": 1, "tp": 1}}))
        alone, shared = search(asked, space), search(replace(asked, layers=known), space)
        assert [one.plan for one in shared.best] == [one.plan for one in alone.best]
        assert [one.step_s for one in shared.pareto] == pytest.approx(
            [one.step_s for one in alone.pareto], rel=1e-12
        )
        assert shared.rejected == alone.rejected
        assert shared.num_priced == alone.num_priced


def test_another_pricer_tells_its_own_times() -> None:
    asked, known = question(world_size=8, sequences=16), KnownLayers()
    plans = plans_of(asked)
    layers = known.of(asked.model, asked.job, plans)
    assert layers is not None
    slower = replace(asked.pricer, training_rate_ratio=0.5)
    fast, slow = (
        layers.written.times(pricer, layers.again)[0].forward.parts["gemm"]
        for pricer in (asked.pricer, slower)
    )
    np.testing.assert_allclose(slow, 2.0 * fast)
    assert layers.written.times(asked.pricer.remembering(), layers.again)[0].forward.parts["gemm"] is fast


def narrow(job: JobSpec) -> JobSpec:
    """Products in fp8, their weights cast once a step."""
    return replace(job, precision=replace(job.precision, linear="fp8", scale_recipe="tensor"))


def test_layers_that_cast_once_a_step_are_not_shared() -> None:
    """What casting takes of a micro-batch hangs on how many there are."""
    asked, known = question(preset=PRESETS["megatron"], world_size=8, sequences=16), KnownLayers()
    plans = plans_of(asked)
    assert known.of(asked.model, asked.job, plans) is not None
    assert known.of(asked.model, narrow(asked.job), plans) is None


def test_each_depth_has_its_own_share_of_casts_made_once_a_step() -> None:
    """Two stages leave half of the copies of the model, and twice the micro-batches to share a step's casts."""
    asked = question(preset=PRESETS["megatron"], world_size=8, sequences=16)
    job = narrow(asked.job)
    plans = PlanTable.of(
        *(
            Plan(strategy="mtp", preset="megatron", pp=pp, dp=8 // pp, micro_batch=1, num_micro=2 * pp)
            for pp in (1, 2, 4)
        )
    )
    together = price(asked.model, job, sized(asked.model, job, plans, asked.cluster), asked.pricer)
    for row in range(len(plans)):
        one = plans.take(np.array([row]))
        alone = price(asked.model, job, sized(asked.model, job, one, asked.cluster), asked.pricer)
        np.testing.assert_allclose(together.step_s[row], alone.step_s[0], rtol=1e-12)
    layers = distinct_layers(asked.model, job, plans)
    (cast,) = (op for op in layers.pieces[0].forward if op.name == "attention.qkv.cast_weight")
    np.testing.assert_allclose(cast.rows[layers.row] / cast.rows[layers.row[0]], [1, 1 / 2, 1 / 4])


def test_what_is_held_stays_small() -> None:
    """More layouts than are held make a table of their own; of kinds the last ones asked about are held."""
    asked, known = question(world_size=8, sequences=16), KnownLayers()
    plans = plans_of(asked).take(np.zeros(MOST_ROWS + 1, dtype=np.int64))
    many = replace(plans, layout=replace(plans.layout, micro_batch=np.arange(MOST_ROWS + 1) + 1))
    assert known.of(asked.model, asked.job, many) is None
    fits = known.of(asked.model, asked.job, many.take(np.arange(MOST_ROWS)))
    assert fits is not None
    assert len(fits.layout) == MOST_ROWS
    last = known.of(asked.model, asked.job, many.take(np.array([MOST_ROWS])))
    assert last is not None
    assert len(last.layout) == 1
    for place in range(MOST_KINDS):
        known.of(replace(asked.model, vocab=1024 * (place + 1)), asked.job, plans)
    again = known.of(asked.model, asked.job, many.take(np.array([MOST_ROWS])))
    assert again is not None
    assert again.written is not last.written


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_layers_know_nothing_of_the_batch(strategy: str) -> None:
    asked = question(world_size=16, sequences=64)
    plans = replace(plans_of(asked), strategy=strategy)
    other = replace(asked.job, global_batch_tokens=2 * asked.job.global_batch_tokens)
    first, second = (distinct_layers(asked.model, job, plans) for job in (asked.job, other))
    for mine, own in zip(first.pieces, second.pieces, strict=True):
        assert repr(mine) == repr(own)


def test_of_layers_of_which_some_run_again_the_pieces_are_those_of_all_and_of_none() -> None:
    asked = question(preset=PRESETS["megatron"], world_size=8, sequences=8)
    written = distinct_layers(asked.model, asked.job, plans_of(asked)).written
    for modules in ((), ("mlp",)):
        own = written.bare.running_again(Recompute.BLOCK, modules)
        found = written.ops(Again(Recompute.BLOCK, modules))
        assert len(found.blocks) == 2
        assert repr(found) == repr(own)
