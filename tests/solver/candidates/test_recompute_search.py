"""Where memory is short, as little is given up as it asks for: held against every way there is."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest

from ops.block import model_ops
from ops.layout import Layout
from ops.op import Pass
from ops.recompute import CORE_ATTENTION, Recompute, recompute_parts
from solver.candidates.candidates import Candidates
from solver.candidates.recompute_search import distinct_module_sets, minimal_sets, obey, recompute_subsets
from solver.estimate import assemble_step, estimate_memory, piece_times, pipelines, stage_times, step_time
from solver.memory.device import usable_bytes
from solver.pipeline.spans import spans_of
from solver.plans.constraints import constraint_rules
from solver.plans.layers import layer_table
from solver.plans.plan_table import PlanTable
from solver.plans.rules import RULES
from solver.plans.space import enumerate_block, full_space
from solver.problem.price import price_plan
from solver.problem.problem import Problem
from solver.problem.result import Answer
from solver.search import candidate_pool, search
from spec.arrays import BoolArray, IntArray, bools
from spec.cluster.cluster import HostSpec
from spec.frameworks import framework_preset
from spec.model import BlockRun, BlockSpec, ModelSpec
from spec.settings.constraints import Constraints, constraints_of
from tests.solver.candidates.test_layer_partition import staged
from tests.solver.questions import question, small_model
from tests.workload.random_plans import EXPERTS, LATENT

NAMES = framework_preset("megatron").recomputation.modules


def latent_experts() -> ModelSpec:
    """A dense layer and two of experts, latent attention in all."""
    dense = replace(small_model().blocks[0].block, mixer=LATENT)
    experts = BlockSpec(mixer=LATENT, mlp=None, moe=EXPERTS)
    blocks = (BlockRun(block=dense, count=1), BlockRun(block=experts, count=2))
    return replace(small_model(), blocks=blocks)


def blocks_of(model: ModelSpec) -> tuple[Pass, ...]:
    """The layers of a rank."""
    asked = question(preset=framework_preset("megatron"))
    return model_ops(model, asked.job, Layout.of(1), "mtp", Recompute.NONE).blocks


def done(blocks: tuple[Pass, ...], names: tuple[str, ...]) -> tuple[object, ...]:
    """What runs in the backward and what is kept, of every block."""
    pieces = [recompute_parts(block, names) for block in blocks]
    return tuple(
        (tuple(op.name for op in piece.backward), tuple(float(op.saved_bytes[0]) for op in piece.forward))
        for piece in pieces
    )


def test_every_effect_that_parts_can_have_is_there_once() -> None:
    blocks = blocks_of(latent_experts())
    sets = distinct_module_sets(blocks, NAMES)
    all_sets = chain.from_iterable(combinations(NAMES, size) for size in range(len(NAMES) + 1))
    effects = {done(blocks, names) for names in all_sets} - {done(blocks, ())}
    assert len(sets) == len(effects)
    assert {done(blocks, names) for names in sets} == effects


def test_a_dense_model_has_one_part_and_a_part_that_drops_nothing_is_none() -> None:
    blocks = blocks_of(small_model())
    assert distinct_module_sets(blocks, NAMES) == (("mlp",),)
    assert distinct_module_sets(blocks, framework_preset("internevo").recomputation.modules) == ()


def test_no_part_of_a_least_set_can_be_left_out() -> None:
    sets = (("a",), ("b",), ("a", "b"), ("a", "c"))
    fitting = {("a",): {0}, ("b",): {0}, ("a", "b"): {0, 1}, ("a", "c"): {0, 1}}
    asked = []

    def fits(chosen: tuple[str, ...], rows: IntArray) -> BoolArray:
        asked.append((chosen, rows.tolist()))
        return bools([row in fitting[chosen] for row in rows])

    least = {chosen: rows.tolist() for chosen, rows in minimal_sets(sets, 3, fits)}
    assert least == {("a",): [0], ("b",): [0], ("a", "b"): [1], ("a", "c"): [1]}
    assert asked[-1] == (("a", "c"), [1, 2])


Tables = Callable[[Problem, Constraints], Iterator[PlanTable]]

PARTS = ("moe_act", "mla_up_proj", "moe")
HOST = HostSpec(link_bandwidth=50e9, memory_bandwidth=200e9)


def short_of_memory(memory_gib: float, changes: dict[str, object]) -> Problem:
    """Latent experts on two GPUs, long micro-batches; five workspaces of products on top."""
    asked = question(
        model=latent_experts(),
        world_size=2,
        sequences=4,
        seq_len=8192,
        preset=framework_preset("megatron").changed({"recomputation.modules": PARTS} | changes),
        memory_gib=memory_gib + 5 * 32 / 1024 / 0.99,
    )
    return replace(
        asked, cluster=replace(asked.cluster, host=HOST), op_timer=replace(asked.op_timer, host=HOST, gpus_per_node=8)
    )


def every_table(asked: Problem, constraints: Constraints) -> Iterator[PlanTable]:
    """Every plan of the space, with all sets of parts, numbers of layers run again, and layers on the host."""
    names, layers = asked.job.preset.recomputation.modules, asked.model.num_layers
    sets = [chosen for size in range(1, len(names) + 1) for chosen in combinations(names, size)]
    space = full_space(asked.model, asked.job, constraints)
    for block in space.blocks:
        plans = enumerate_block(asked.model, asked.job, asked.cluster, space, block).plans
        if not len(plans):
            continue
        yield plans
        for count in range(1, layers):
            some = np.full(len(plans), count)
            if plans.recompute is Recompute.FULL:
                yield replace(plans, recompute=Recompute.BLOCK, num_recompute_layers=some)
            else:
                yield replace(plans, layout=replace(plans.layout, offloaded_layers=some))
        if plans.recompute is Recompute.NONE:
            yield from (replace(plans, recompute_modules=chosen) for chosen in sets)


def with_inputs(asked: Problem, constraints: Constraints) -> Iterator[PlanTable]:
    """Every plan of the space, with every number of layers run again, and their inputs here or on the host."""
    space = full_space(asked.model, asked.job, constraints)
    for block in space.blocks:
        plans = enumerate_block(asked.model, asked.job, asked.cluster, space, block).plans
        if not len(plans):
            continue
        yield plans
        if plans.recompute is Recompute.FULL:
            counts = [np.full(len(plans), count) for count in range(1, asked.model.num_layers)]
            ways = [replace(plans, recompute=Recompute.BLOCK, num_recompute_layers=one) for one in counts]
            yield from ways
            yield from (replace(one, offload_modules=("layer_input",)) for one in (plans, *ways))


def fastest(asked: Problem, constraints: Constraints, tables: Tables = every_table) -> Answer:
    """Of all those the fastest that fits and keeps the rules."""
    found = []
    for table in tables(asked, constraints):
        rows = np.flatnonzero(obey(asked, table, (*constraint_rules(constraints), *RULES)))
        if rows.size:
            found += [
                one for one in price_plan(asked, table.take(rows)) if one.needed_bytes <= usable_bytes(asked.cluster)
            ]
    return min(found, key=lambda one: one.step_s)


def fastest_found(asked: Problem, constraints: Constraints) -> Answer:
    return search(asked, full_space(asked.model, asked.job, constraints), top_k=1).best[0]


WHOLE_OR_NOT = {"recomputation.partial": False}
NO_PARTS = {"recomputation.modules": ()}


@pytest.mark.parametrize(
    ("memory_gib", "changes", "eased_by"),
    [
        (2.7, {}, "recompute-full"),
        pytest.param(2.8, NO_PARTS, "recompute-block2", marks=pytest.mark.nightly),
        (2.85, {}, "recompute-mla_up_proj+moe"),
        (2.8, WHOLE_OR_NOT | NO_PARTS, "offloaded_layers=2"),
        pytest.param(3.2, {}, "mb1x2", marks=pytest.mark.nightly),
    ],
)
def test_the_fastest_of_all_ways_is_found(memory_gib: float, changes: dict[str, object], eased_by: str) -> None:
    asked = short_of_memory(memory_gib, changes)
    constraints = constraints_of({"fix": {"tp": 1, "cp": 1, "micro_batch": 1}})
    found = fastest_found(asked, constraints)
    assert found.step_s == pytest.approx(fastest(asked, constraints).step_s, rel=1e-12)
    assert eased_by in found.label()


@pytest.mark.parametrize(
    ("memory_gib", "eased_by"), [(2.925, "recompute-moe_act+mla_up_proj"), (3.0, "recompute-mla_up_proj")]
)
def test_parts_run_again_where_no_whole_layer_may(memory_gib: float, eased_by: str) -> None:
    """Beside graphs of the router neither whole layers nor all of the experts run again; there is no host to
    wait on.
    """
    asked = short_of_memory(memory_gib, {})
    asked = replace(
        asked,
        job=replace(asked.job, cuda_graphs=frozenset({"moe_router"})),
        cluster=replace(asked.cluster, host=None),
        op_timer=replace(asked.op_timer, host=None),
    )
    constraints = constraints_of({"fix": {"tp": 1, "cp": 1, "pp": 1, "micro_batch": 1}})
    found = fastest_found(asked, constraints)
    assert found.step_s == pytest.approx(fastest(asked, constraints).step_s, rel=1e-12)
    assert eased_by in found.label()


def test_all_layers_asked_to_run_again_are_eased_no_further() -> None:
    asked = short_of_memory(2.8, WHOLE_OR_NOT)
    constraints = constraints_of({"fix": {"recompute": "full"}})
    found = search(asked, full_space(asked.model, asked.job, constraints), top_k=100).best
    kinds = {(one.plan.recompute, one.plan.recompute_modules, one.plan.offloaded_layers) for one in found}
    assert kinds == {(Recompute.FULL, (), 0)}


@pytest.mark.parametrize("said", [{"no_recompute": True}, {"fix": {"recompute": "none"}}])
def test_where_nothing_may_run_again_layers_still_wait_on_the_host(said: dict[str, Any]) -> None:
    asked = short_of_memory(2.8, {})
    at = {"tp": 1, "cp": 1, "micro_batch": 1, "pp": 1}
    constraints = constraints_of({**said, "fix": {**at, **said.get("fix", {})}})
    found = search(asked, full_space(asked.model, asked.job, constraints), top_k=100).best
    assert {(one.plan.recompute, one.plan.recompute_modules) for one in found} == {(Recompute.NONE, ())}
    assert found[0].plan.offloaded_layers == 2
    assert found[0].step_s == pytest.approx(fastest(asked, constraints).step_s, rel=1e-12)


def test_parts_asked_for_by_name_run_again_where_nothing_else_may() -> None:
    asked = short_of_memory(2.8, {})
    constraints = constraints_of({"fix": {"recompute": "none", "recompute_modules": ["moe", "mla_up_proj"]}})
    best = fastest_found(asked, constraints).plan
    assert best.recompute_modules == ("mla_up_proj", "moe")
    assert best.offloaded_layers == 0


@pytest.mark.parametrize(
    ("memory_gib", "eased_by"),
    [
        pytest.param(8.0, "recompute-full offload-layer_input", marks=pytest.mark.nightly),
        pytest.param(9.0, "zero2/2 mb1x1 recompute-full offload-layer_input", marks=pytest.mark.nightly),
        (10.0, "recompute-block11 offload-layer_input"),
        pytest.param(12.0, "recompute-block11", marks=pytest.mark.nightly),
    ],
)
def test_inputs_leave_where_recomputation_alone_does_not_do(memory_gib: float, eased_by: str) -> None:
    """Twelve layers of long sequences under FSDP, of which no more run again than have to."""
    preset = framework_preset("fsdp").changed({"loss.chunked": True, "tensor_parallel.axes": frozenset({"tp"})})
    asked = question(
        model=small_model(layers=12, hidden=1024),
        world_size=2,
        sequences=2,
        seq_len=65536,
        preset=preset,
        memory_gib=memory_gib,
    )
    op_timer = replace(asked.op_timer, host=HOST, gpus_per_node=8)
    asked = replace(asked, cluster=replace(asked.cluster, host=HOST), op_timer=op_timer)
    constraints = constraints_of({"fix": {"tp": 1, "cp": 1, "micro_batch": 1}})
    found = fastest_found(asked, constraints)
    best = fastest(asked, constraints, with_inputs)
    assert found.step_s == pytest.approx(best.step_s, rel=1e-12)
    assert found.plan.label().endswith(eased_by)


ONE_MICRO = {"fix": {"tp": 1, "cp": 1, "micro_batch": 1}}
STAGED = {"fix": {"tp": 1, "pp": 4, "vpp": 2, "micro_batch": 1, "recompute": "none"}}


def all_candidates(asked: Problem, said: dict[str, object] | None = None) -> list[Candidates]:
    """Every table of the contest that a search ends with, all pipelines replayed."""
    space = full_space(asked.model, asked.job, constraints_of(said or {}))
    return candidate_pool(asked, space, everything=True)[0].candidates


MEGATRON = question(preset=framework_preset("megatron"), world_size=8, sequences=32)


def first_block(asked: Problem) -> PlanTable:
    """All plans of one strategy and schedule in which nothing runs again."""
    space = full_space(asked.model, asked.job)
    return enumerate_block(asked.model, asked.job, asked.cluster, space, space.blocks[0]).plans


def test_plans_under_each_set_are_those_of_a_table_of_it() -> None:
    """The attention core among what runs again, some plans of each set, in another order."""
    asked = short_of_memory(2.8, {"recomputation.selective": CORE_ATTENTION})
    asked = replace(asked, job=replace(asked.job, flash_attention=False))
    plans = first_block(asked)
    plain = estimate_memory(asked.model, asked.job, plans, asked.cluster)
    sets = (("moe_act",), (CORE_ATTENTION, "mla_up_proj"), ("mla_up_proj", "moe"))
    tried = recompute_subsets(asked, plain, sets)
    every = [tried.table(place, np.arange(len(plans))[::-2]) for place in range(len(sets))]
    for table in every:
        alone = estimate_memory(asked.model, asked.job, table.plans, asked.cluster)
        assert np.array_equal(table.needed_bytes, alone.needed_bytes)
        steps = [step_time(asked.model, asked.job, one, asked.op_timer).step_s for one in (table, alone)]
        assert np.array_equal(*steps)
    limit = float(np.median(np.concatenate([table.needed_bytes for table in every])))
    fits = tried.fits(limit)[:, ::-1][:, ::2]
    assert np.array_equal(fits, [table.needed_bytes <= limit for table in every])
    assert fits.any(axis=1).tolist() != fits.all(axis=1).tolist()


def check_alone(asked: Problem, one: Candidates) -> None:
    """Bytes and step of every plan of a table against those of the same plans with nothing known before."""
    alone = estimate_memory(asked.model, asked.job, one.table.plans, asked.cluster)
    assert np.array_equal(one.needed_bytes, alone.needed_bytes)
    assert np.array_equal(one.table.memory.host_bytes, alone.memory.host_bytes)
    assert one.step_s[one.simulated] == pytest.approx(
        step_time(asked.model, asked.job, alone, asked.op_timer).step_s[one.simulated], rel=1e-12
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
        pytest.param(short_of_memory(2.8, WHOLE_OR_NOT | NO_PARTS), ONE_MICRO, {"offloaded", "searched"}, id="host"),
        pytest.param(staged(8), STAGED, {"dealt", "searched"}, id="dealt"),
        pytest.param(
            question(preset=framework_preset("fsdp"), world_size=8, sequences=16, seq_len=8192, memory_gib=3.0),
            None,
            {"searched"},
            id="fsdp",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_plans_of_a_search_are_priced_as_each_table_alone(
    asked: Problem, said: dict[str, object] | None, kinds: set[str]
) -> None:
    found = all_candidates(asked, said)
    for one in found:
        check_alone(asked, one)
    assert kinds <= {kind(one.table.plans) for one in found}


def test_plans_taken_from_a_table_have_its_stages_and_bytes() -> None:
    """In any order, twice, and of chunks of unequal stages."""
    plans = first_block(MEGATRON)
    rows = np.array([len(plans) - 1, 3, 3, 0, len(plans) // 2])
    taken = estimate_memory(MEGATRON.model, MEGATRON.job, plans, MEGATRON.cluster).take(rows)
    alone = estimate_memory(MEGATRON.model, MEGATRON.job, plans.take(rows), MEGATRON.cluster)
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
    plans = first_block(MEGATRON)
    rows = np.arange(len(plans))[::-3]
    whole = estimate_memory(MEGATRON.model, MEGATRON.job, plans, MEGATRON.cluster)
    pieces = piece_times(whole, MEGATRON.op_timer)
    part = estimate_memory(MEGATRON.model, MEGATRON.job, plans.take(rows), MEGATRON.cluster, like=whole)
    assert len(part.layers.layout) == len(whole.layers.layout)
    assert np.array_equal(part.needed_bytes, whole.needed_bytes[rows])
    times = stage_times(MEGATRON.model, MEGATRON.job, part, MEGATRON.op_timer, pieces)
    end_s, free_s = spans_of([pipelines(part, times), pipelines(part, times, free=True)])
    cost = assemble_step(part, times, (end_s, free_s))
    alone = step_time(MEGATRON.model, MEGATRON.job, whole, MEGATRON.op_timer)
    assert np.array_equal(cost.step_s, alone.step_s[rows])
    assert {name: (value == alone.parts[name][rows]).all() for name, value in cost.parts.items()} == (
        dict.fromkeys(cost.parts, True)
    )


def test_layers_are_those_of_a_larger_table_where_it_has_them_all() -> None:
    """Fewer plans in another order that run again; not another strategy, nor a layout more, nor another world."""
    plans = first_block(MEGATRON)
    first = layer_table(MEGATRON.model, MEGATRON.job, plans)
    rows = np.flatnonzero(plans.layout.tp == 2)[::-1].astype(np.int64)
    strategy = "mtp" if plans.strategy == "fsp" else "fsp"
    more = replace(plans.layout, micro_batch=np.where(np.arange(len(plans)) == 3, 64, plans.layout.micro_batch))
    elsewhere = replace(plans.layout, world_size=2 * plans.layout.world_size)
    for other, shares in (
        (replace(plans.take(rows), recompute=Recompute.FULL), True),
        (replace(plans, strategy=strategy), False),
        (replace(plans, layout=more), False),
        (replace(plans, layout=elsewhere), False),
    ):
        alone, shared = (layer_table(MEGATRON.model, MEGATRON.job, other, like) for like in (None, first))
        assert (shared.bare is first.bare) is shares
        for mine, own in zip(shared.bytes, alone.bytes, strict=True):
            assert np.array_equal(mine.saved_bytes[shared.row], own.saved_bytes[alone.row])
            assert np.array_equal(mine.transient_bytes[shared.row], own.transient_bytes[alone.row])


@pytest.mark.parametrize("column", ["pp", "vpp", "num_recompute_layers"])
def test_tables_that_are_dealt_otherwise_share_no_stages(column: str) -> None:
    plans = first_block(MEGATRON)
    assert plans.same_stages(replace(plans, recompute=Recompute.FULL))
    assert not plans.same_stages(replace(plans, recompute=Recompute.BLOCK))
    assert not plans.same_stages(replace(plans, stage_layout="Et|tL"))
    other = plans.columns[column] + 1
    if column == "pp":
        assert not plans.same_stages(replace(plans, layout=replace(plans.layout, pp=other)))
    else:
        assert not plans.same_stages(replace(plans, **{column: other}))
