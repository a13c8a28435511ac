"""What tables of a search share with one another is what each of them would have alone."""

from dataclasses import replace

import numpy as np
import pytest

from ops.groups import KnownGroups
from ops.recompute.layers import CORE_ATTENTION, Recompute
from solver.contest import Entrants
from solver.estimate import (
    assembled_step,
    estimate_memory,
    pipelines,
    stage_times,
    step_time,
    timed_pieces,
)
from solver.layers import layer_table
from solver.pipeline.spans import spans_of
from solver.plans.plan_table import PlanTable
from solver.plans.space import enumerate_block, full_space
from solver.question import Question
from solver.refinements.under_sets import under_sets
from solver.search import contested
from spec.presets.registry import PRESETS
from spec.settings.constraints import constraints_of
from tests.solver.questions import question
from tests.solver.refinements.test_dealt_anew import staged
from tests.solver.refinements.test_eased import NO_PARTS, WHOLE_OR_NOT, short_of_memory

ONE_MICRO = {"fix": {"tp": 1, "cp": 1, "micro_batch": 1}}
STAGED = {"fix": {"tp": 1, "pp": 4, "vpp": 2, "micro_batch": 1, "recompute": "none"}}


def all_entrants(asked: Question, said: dict[str, object] | None = None) -> list[Entrants]:
    """Every table of the contest that a search ends with, all pipelines replayed."""
    space = full_space(asked.model, asked.job, constraints_of(said or {}))
    return contested(asked, space, everything=True)[0].entrants


def test_plans_under_each_set_are_those_of_a_table_of_it() -> None:
    """The attention core among what runs again, some plans of each set, in another order."""
    asked = short_of_memory(2.8, {"recomputation.selective": CORE_ATTENTION})
    asked = replace(asked, job=replace(asked.job, flash_attention=False))
    space = full_space(asked.model, asked.job)
    plans = enumerate_block(asked.model, asked.job, asked.cluster, space, space.blocks[0]).plans
    plain = estimate_memory(asked.model, asked.job, plans, asked.cluster)
    sets = (("moe_act",), (CORE_ATTENTION, "mla_up_proj"), ("mla_up_proj", "moe"))
    tried = under_sets(asked, plain, sets)
    every = [tried.table(place, np.arange(len(plans))[::-2]) for place in range(len(sets))]
    for table in every:
        alone = estimate_memory(asked.model, asked.job, table.plans, asked.cluster)
        assert np.array_equal(table.needed_bytes, alone.needed_bytes)
        steps = [step_time(asked.model, asked.job, one, asked.pricer).step_s for one in (table, alone)]
        assert np.array_equal(*steps)
    limit = float(np.median(np.concatenate([table.needed_bytes for table in every])))
    fits = tried.fits(limit)[:, ::-1][:, ::2]
    assert np.array_equal(fits, [table.needed_bytes <= limit for table in every])
    assert fits.any(axis=1).tolist() != fits.all(axis=1).tolist()


def check_alone(asked: Question, one: Entrants) -> None:
    """Bytes and step of every plan of a table against those of the same plans with nothing known before."""
    pricer = replace(asked.pricer, groups=KnownGroups())
    alone = estimate_memory(asked.model, asked.job, one.table.plans, asked.cluster)
    assert np.array_equal(one.needed_bytes, alone.needed_bytes)
    assert np.array_equal(one.table.memory.host_bytes, alone.memory.host_bytes)
    assert one.step_s[one.played] == pytest.approx(
        step_time(asked.model, asked.job, alone, pricer).step_s[one.played], rel=1e-12
    )


def kind(plans: PlanTable) -> str:
    """How the plans were made."""
    if plans.stage_layout:
        return "dealt"
    if plans.layout.offloaded_layers.any():
        return "offloaded"
    if plans.recompute_modules:
        return "core and modules" if plans.recompute is Recompute.SELECTIVE else "modules"
    return "layers" if plans.recompute is Recompute.BLOCK else "searched"


@pytest.mark.parametrize(
    ("asked", "said", "kinds"),
    [
        pytest.param(short_of_memory(2.85, {}), ONE_MICRO, {"modules", "layers", "searched"}, id="modules"),
        pytest.param(
            short_of_memory(2.8, WHOLE_OR_NOT | NO_PARTS), ONE_MICRO, {"offloaded", "searched"}, id="host"
        ),
        pytest.param(staged(8), STAGED, {"dealt", "searched"}, id="dealt"),
        pytest.param(
            question(preset=PRESETS["fsdp"], world_size=8, sequences=16, seq_len=8192, memory_gib=3.0),
            None,
            {"searched"},
            id="fsdp",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_plans_of_a_search_are_priced_as_each_table_alone(
    asked: Question, said: dict[str, object] | None, kinds: set[str]
) -> None:
    found = all_entrants(asked, said)
    for one in found:
        check_alone(asked, one)
    assert kinds <= {kind(one.table.plans) for one in found}


def test_plans_taken_from_a_table_have_its_stages_and_bytes() -> None:
    """In any order, twice, and of chunks of unequal stages."""
    asked = question(preset=PRESETS["megatron"], world_size=8, sequences=32)
    space = full_space(asked.model, asked.job)
    plans = enumerate_block(asked.model, asked.job, asked.cluster, space, space.blocks[0]).plans
    rows = np.array([len(plans) - 1, 3, 3, 0, len(plans) // 2])
    taken = estimate_memory(asked.model, asked.job, plans, asked.cluster).take(rows)
    alone = estimate_memory(asked.model, asked.job, plans.take(rows), asked.cluster)
    assert taken.plans.plan(0) == plans.plan(len(plans) - 1)
    for name in ("plan", "position", "count", "embedding", "head", "starts", "chunk_starts"):
        assert np.array_equal(getattr(taken.stages, name), getattr(alone.stages, name)), name
    for name in ("stage", "embedding", "head", "layers"):
        assert np.array_equal(getattr(taken.stages.chunks, name), getattr(alone.stages.chunks, name)), name
    assert np.array_equal(taken.stages.layers, alone.stages.layers)
    assert np.array_equal(taken.bytes.on_rank.total, alone.bytes.on_rank.total)
    assert np.array_equal(taken.needed_bytes, alone.needed_bytes)
    # Of plans with one layout of their layers the table knows one of them.
    for name in ("tp", "cp", "ep", "micro_batch"):
        held = getattr(taken.layers.layout, name)[taken.layers.row]
        assert np.array_equal(held, getattr(plans.layout, name)[rows]), name


def test_parts_of_a_table_share_its_layers_and_their_times() -> None:
    asked = question(preset=PRESETS["megatron"], world_size=8, sequences=32)
    space = full_space(asked.model, asked.job)
    plans = enumerate_block(asked.model, asked.job, asked.cluster, space, space.blocks[0]).plans
    rows = np.arange(len(plans))[::-3]
    whole = estimate_memory(asked.model, asked.job, plans, asked.cluster)
    pieces = timed_pieces(whole, asked.pricer)
    part = estimate_memory(asked.model, asked.job, plans.take(rows), asked.cluster, like=whole)
    assert len(part.layers.layout) == len(whole.layers.layout)
    assert np.array_equal(part.needed_bytes, whole.needed_bytes[rows])
    times = stage_times(asked.model, asked.job, part, asked.pricer, pieces)
    end_s, free_s = spans_of([pipelines(part, times), pipelines(part, times, free=True)])
    cost = assembled_step(part, times, (end_s, free_s))
    alone = step_time(asked.model, asked.job, whole, asked.pricer)
    assert np.array_equal(cost.step_s, alone.step_s[rows])
    assert {name: (value == alone.parts[name][rows]).all() for name, value in cost.parts.items()} == (
        dict.fromkeys(cost.parts, True)
    )


def test_layers_of_other_layouts_are_none_of_a_tables_own() -> None:
    """As many of them, of micro-batches twice as large, or under another strategy."""
    asked = question(preset=PRESETS["megatron"], world_size=8, sequences=32)
    space = full_space(asked.model, asked.job)
    plans = enumerate_block(asked.model, asked.job, asked.cluster, space, space.blocks[0]).plans
    first = layer_table(asked.model, asked.job, plans)
    larger = replace(plans, layout=replace(plans.layout, micro_batch=2 * plans.layout.micro_batch))
    for other in (larger, replace(plans, strategy="mtp" if plans.strategy == "fsp" else "fsp")):
        alone = layer_table(asked.model, asked.job, other)
        shared = layer_table(asked.model, asked.job, other, first)
        saved = [one.bytes[0].saved_bytes for one in (first, alone, shared)]
        assert np.array_equal(saved[1], saved[2])
        assert not np.array_equal(saved[0], saved[2])


def test_fewer_plans_find_their_layers_among_those_of_a_larger_table() -> None:
    asked = question(preset=PRESETS["megatron"], world_size=8, sequences=32)
    space = full_space(asked.model, asked.job)
    plans = enumerate_block(asked.model, asked.job, asked.cluster, space, space.blocks[0]).plans
    first = layer_table(asked.model, asked.job, plans)
    rows = np.flatnonzero(plans.layout.tp == 2)[::-1].astype(np.int64)
    fewer = replace(plans.take(rows), recompute=Recompute.FULL)
    alone = layer_table(asked.model, asked.job, fewer)
    shared = layer_table(asked.model, asked.job, fewer, first)
    assert 1 < len(alone.layout) < len(shared.layout)
    assert shared.bare is first.bare
    for mine, own in zip(shared.bytes, alone.bytes, strict=True):
        assert np.array_equal(mine.saved_bytes[shared.row], own.saved_bytes[alone.row])
        assert np.array_equal(mine.transient_bytes[shared.row], own.transient_bytes[alone.row])
    # A layout more than there are is a table of its own, and so is the same one in another world.
    more = replace(
        plans.layout, micro_batch=np.where(np.arange(len(plans)) == 3, 64, plans.layout.micro_batch)
    )
    elsewhere = replace(plans.layout, world_size=2 * plans.layout.world_size)
    for layout in (more, elsewhere):
        other = layer_table(asked.model, asked.job, replace(plans, layout=layout), first)
        assert other.bare is not first.bare


@pytest.mark.parametrize("column", ["pp", "vpp", "num_recompute_layers"])
def test_tables_that_are_dealt_otherwise_share_no_stages(column: str) -> None:
    asked = question(preset=PRESETS["megatron"], world_size=8, sequences=32)
    space = full_space(asked.model, asked.job)
    plans = enumerate_block(asked.model, asked.job, asked.cluster, space, space.blocks[0]).plans
    assert plans.dealt_as(replace(plans, recompute=Recompute.FULL))
    assert not plans.dealt_as(replace(plans, recompute=Recompute.BLOCK))
    assert not plans.dealt_as(replace(plans, stage_layout="Et|tL"))
    other = plans.columns[column] + 1
    if column == "pp":
        assert not plans.dealt_as(replace(plans, layout=replace(plans.layout, pp=other)))
    else:
        assert not plans.dealt_as(replace(plans, **{column: other}))
