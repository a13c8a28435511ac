"""Where memory is short, as little is given up as it asks for: held against every way there is."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from ops.recompute.layers import Recompute
from solver.memory.device_memory import usable_bytes
from solver.plans.constraints import constraint_rules
from solver.plans.plan_table import PlanTable
from solver.plans.rules import RULES
from solver.plans.space import enumerate_block, full_space
from solver.question import Question
from solver.refinements.entering import keeps
from solver.result import Answer
from solver.search import price_plan, search
from spec.cluster.cluster import HostSpec
from spec.presets.registry import PRESETS
from spec.settings.constraints import Constraints, constraints_of
from tests.solver.questions import question, small_model
from tests.solver.refinements.test_module_sets import latent_experts

Tables = Callable[[Question, Constraints], Iterator[PlanTable]]

PARTS = ("moe_act", "mla_up_proj", "moe")
HOST = HostSpec(link_bandwidth=50e9, memory_bandwidth=200e9)


def short_of_memory(memory_gib: float, changes: dict[str, object]) -> Question:
    """Latent experts on two GPUs, long micro-batches; five workspaces of products on top."""
    asked = question(
        model=latent_experts(),
        world_size=2,
        sequences=4,
        seq_len=8192,
        preset=PRESETS["megatron"].changed({"recomputation.modules": PARTS} | changes),
        memory_gib=memory_gib + 5 * 32 / 1024 / 0.99,
    )
    return replace(
        asked,
        cluster=replace(asked.cluster, host=HOST),
        pricer=replace(asked.pricer, host=HOST, gpus_per_node=8),
    )


def every_table(asked: Question, constraints: Constraints) -> Iterator[PlanTable]:
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


def with_inputs(asked: Question, constraints: Constraints) -> Iterator[PlanTable]:
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


def fastest(asked: Question, constraints: Constraints, tables: Tables = every_table) -> Answer:
    """Of all those the fastest that fits and keeps the rules."""
    found = []
    for table in tables(asked, constraints):
        rows = np.flatnonzero(keeps(asked, table, (*constraint_rules(constraints), *RULES)))
        if rows.size:
            found += [
                one
                for one in price_plan(asked, table.take(rows))
                if one.needed_bytes <= usable_bytes(asked.cluster)
            ]
    return min(found, key=lambda one: one.step_s)


WHOLE_OR_NOT = {"recomputation.partial": False}
NO_PARTS = {"recomputation.modules": ()}


@pytest.mark.parametrize(
    ("memory_gib", "changes", "eased_by"),
    [
        (2.7, {}, "recompute-full"),
        (2.8, NO_PARTS, "recompute-block2"),
        (2.85, {}, "recompute-mla_up_proj+moe"),
        (2.8, WHOLE_OR_NOT | NO_PARTS, "offloaded_layers=2"),
        (3.2, {}, "mb1x2"),
    ],
)
def test_the_fastest_of_all_ways_is_found(
    memory_gib: float, changes: dict[str, object], eased_by: str
) -> None:
    asked = short_of_memory(memory_gib, changes)
    constraints = constraints_of({"fix": {"tp": 1, "cp": 1, "micro_batch": 1}})
    found = search(asked, full_space(asked.model, asked.job, constraints), top_k=1).best[0]
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
        pricer=replace(asked.pricer, host=None),
    )
    constraints = constraints_of({"fix": {"tp": 1, "cp": 1, "pp": 1, "micro_batch": 1}})
    found = search(asked, full_space(asked.model, asked.job, constraints), top_k=1).best[0]
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
    best = search(asked, full_space(asked.model, asked.job, constraints), top_k=1).best[0].plan
    assert best.recompute_modules == ("mla_up_proj", "moe")
    assert best.offloaded_layers == 0


@pytest.mark.parametrize(
    ("memory_gib", "eased_by"),
    [
        (8.0, "recompute-full offload-layer_input"),
        (9.0, "zero2/2 mb1x1 recompute-full offload-layer_input"),
        (10.0, "recompute-block11 offload-layer_input"),
        (12.0, "recompute-block11"),
    ],
)
def test_inputs_leave_where_recomputation_alone_does_not_do(memory_gib: float, eased_by: str) -> None:
    """Twelve layers of long sequences under FSDP, of which no more run again than have to."""
    preset = PRESETS["fsdp"].changed({"loss.chunked": True, "pipeline.stages": False})
    asked = question(
        model=small_model(layers=12, hidden=1024),
        world_size=2,
        sequences=2,
        seq_len=65536,
        preset=preset,
        memory_gib=memory_gib,
    )
    pricer = replace(asked.pricer, host=HOST, gpus_per_node=8)
    asked = replace(asked, cluster=replace(asked.cluster, host=HOST), pricer=pricer)
    constraints = constraints_of({"fix": {"tp": 1, "cp": 1, "micro_batch": 1}})
    found = search(asked, full_space(asked.model, asked.job, constraints), top_k=1).best[0]
    best = fastest(asked, constraints, with_inputs)
    assert found.step_s == pytest.approx(best.step_s, rel=1e-12)
    assert found.plan.label().endswith(eased_by)
