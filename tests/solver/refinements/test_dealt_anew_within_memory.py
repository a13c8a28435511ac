"""Layers dealt anew where memory is short, together with what runs again: held against every layout with
every way to run less than all of the layers again."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest

from ops.recompute.layers import Recompute
from solver.estimate import Estimate, estimate_memory, repartitioned
from solver.memory.device_memory import UNUSABLE_SHARE, usable_bytes
from solver.plans.plan_table import Plan, PlanTable
from solver.plans.space import full_space
from solver.question import Question
from solver.refinements import dealt_anew
from solver.refinements.cells import Cell
from solver.refinements.deal_program import Dealing, least_deal
from solver.refinements.dealt_anew import fitting_layout
from solver.refinements.entering import entered
from solver.refinements.stage_room import Room, stage_rooms
from solver.result import Answer
from solver.search import price_plan, search
from spec.arrays import ints
from spec.errors import NoFeasiblePlanError
from spec.model import BlockRun
from spec.pipeline.layout import layout_text
from spec.presets.registry import PRESETS
from spec.settings.constraints import constraints_of
from spec.units import GIB
from tests.solver.questions import question, small_model
from tests.solver.refinements.test_dealt_anew import every_layout
from tests.solver.refinements.test_module_sets import latent_experts

STAGES = 4
ONE_PLAN = {"tp": 1, "cp": 1, "pp": STAGES, "vpp": 1, "micro_batch": 1}
AS_IT_IS = Plan(strategy="mtp", preset="megatron", pp=STAGES, num_micro=16)


def long_sequences(layers: int, memory_gib: float = 80.0) -> Question:
    """Four GPUs, whose first ones hold most activations."""
    return question(
        model=small_model(layers=layers),
        world_size=STAGES,
        sequences=16,
        seq_len=8192,
        preset=PRESETS["megatron"],
        memory_gib=memory_gib,
    )


@cache
def every_way(layers: int) -> tuple[Answer, ...]:
    """Every layout, with nothing run again, the one part that a dense model has, some or all of the layers."""
    asked = long_sequences(layers)
    found: list[Answer] = []
    for layout in ("", *every_layout(layers, STAGES)):
        plain = replace(AS_IT_IS, stage_layout=layout)
        partly = [
            replace(plain, recompute=Recompute.BLOCK, num_recompute_layers=k) for k in range(1, layers - 2)
        ]
        parts = replace(plain, recompute_modules=("mlp",))
        whole = replace(plain, recompute=Recompute.FULL)
        for plans in ([plain], [parts], [whole], partly):
            found += price_plan(asked, PlanTable.of(*plans))
    return tuple(found)


def searched(asked: Question, **said: object) -> Answer:
    """The best of those stages."""
    constraints = constraints_of({"fix": ONE_PLAN, **said})
    return search(asked, full_space(asked.model, asked.job, constraints), top_k=1).best[0]


def just_fitting(one: Answer, layers: int) -> Question:
    """GPUs with memory for that plan and a little more."""
    return long_sequences(layers, one.needed_bytes * 1.0001 / (1.0 - UNUSABLE_SHARE) / GIB)


def fastest_first(ways: Iterable[Answer]) -> list[Answer]:
    """Those that need less memory than every faster one."""
    front: list[Answer] = []
    for one in sorted(ways, key=lambda way: (way.step_s, way.needed_bytes)):
        if not front or one.needed_bytes < front[-1].needed_bytes * 0.999:
            front.append(one)
    return front


@pytest.mark.parametrize(
    "layers", [4, *(pytest.param(more, marks=pytest.mark.nightly) for more in (5, 6, 9))]
)
def test_layout_and_recomputation_are_the_best_there_are_together(layers: int) -> None:
    front = fastest_first(every_way(layers))
    for one in front:
        best = searched(just_fitting(one, layers))
        assert best.step_s == pytest.approx(one.step_s, rel=1e-9), one.label()
    both = [one for one in front if one.plan.stage_layout and one.plan.recompute_modules]
    assert both or layers == STAGES


def test_stages_are_dealt_anew_where_nothing_may_run_again() -> None:
    plain = [
        one for one in every_way(4) if one.plan.recompute is Recompute.NONE and not one.plan.recompute_modules
    ]
    least = fastest_first(plain)[-1]
    asked = just_fitting(least, 4)
    best = searched(asked, no_recompute=True)
    assert best.step_s == pytest.approx(least.step_s, rel=1e-9)
    preset = asked.job.preset.changed({"pipeline.uneven_chunks": ""})
    by_rule = replace(asked, job=replace(asked.job, preset=preset))
    with pytest.raises(NoFeasiblePlanError):
        searched(by_rule, no_recompute=True)


@pytest.mark.parametrize("experts", [False, True])
def test_the_room_of_a_stage_is_told_to_the_byte(experts: bool) -> None:
    asked = long_sequences(7)
    if experts:
        asked = replace(
            asked,
            model=replace(
                latent_experts(), blocks=tuple(replace(run, count=4) for run in latent_experts().blocks)
            ),
        )
    text = "Ett|tt|tt|tL" if not experts else "Ett|tt|tt|ttL"
    plans = PlanTable.of(replace(AS_IT_IS, stage_layout=text))
    limit = 3e9
    rooms = stage_rooms(asked, estimate_memory(asked.model, asked.job, plans, asked.cluster), limit).of_plan(
        0
    )
    # A layer from the first stage to the second.
    moved = text.replace("Ett|tt", "Et|ttt")
    table = estimate_memory(
        asked.model, asked.job, PlanTable.of(replace(AS_IT_IS, stage_layout=moved)), asked.cluster
    )
    rows = {int(at): row for row, at in enumerate(table.stages.position)}
    for place in (0, 1):
        layers = np.array([kind[rows[place]] for kind in table.stages.layers])
        told = limit - rooms[place].room_bytes + float(layers @ np.array(rooms[place].bytes_of[0]))
        assert told == pytest.approx(table.bytes.cost.needed_bytes[rows[place]], rel=1e-9)


@cache
def two_chunks() -> dict[tuple[int, ...], Estimate]:
    """Every deal of seven layers on two stages of two chunks, the first and the last of which may have none."""
    asked = long_sequences(7)
    plan = replace(AS_IT_IS, pp=2, vpp=2, dp=2, num_micro=8)
    dealt = [layers for layers in product(range(8), repeat=4) if sum(layers) == 7 and min(layers[1:3]) > 0]
    return {
        layers: estimate_memory(
            asked.model,
            asked.job,
            PlanTable.of(replace(plan, stage_layout=layout_text(layers))),
            asked.cluster,
        )
        for layers in dealt
    }


def test_the_room_of_chunks_that_are_not_alike_forbids_nothing_that_fits() -> None:
    """What a stage needs is told to the byte where it stands, and never too much for other deals."""
    asked, limit = long_sequences(7), 3e9
    for standing, table in two_chunks().items():
        rooms = stage_rooms(asked, table, limit).of_plan(0)
        for layers, other in two_chunks().items():
            for row, room in enumerate(rooms):
                held = np.array(layers).reshape(2, 2)[:, room.place]
                told = limit - room.room_bytes + float(held @ np.array(room.bytes_of)[:, 0])
                needed = other.bytes.cost.needed_bytes[row]
                assert told <= needed * (1.0 + 1e-9)
                assert layers != standing or told == pytest.approx(needed, rel=1e-9)


@pytest.mark.parametrize("heavy", [0.0, 1.0, 2.5])
def test_the_deal_of_chunks_is_the_shortest_that_fits(heavy: float) -> None:
    """At every memory, with a head as heavy as so many layers, from a deal that needs much."""
    asked = long_sequences(7)
    dealing = Dealing(
        counts=(7,), work_s=(1.0,), ends_s=np.array([0.0, 0.0, 0.0, heavy]), pp=2, vpp=2, num_micro=8
    )
    spans = {layers: dealing.span_s(np.array(layers)[:, None]) for layers in two_chunks()}
    needs = {layers: float(table.needed_bytes[0]) for layers, table in two_chunks().items()}
    for limit in sorted(1.0001 * needed for needed in set(needs.values())):
        text = fitting_layout(asked, two_chunks()[4, 1, 1, 1], dealing, (np.inf, limit))
        least = min(spans[layers] for layers, needed in needs.items() if needed <= limit)
        assert text
        (found,) = (layers for layers in needs if layout_text(layers) == text)
        assert needs[found] <= limit
        assert spans[found] == pytest.approx(least, rel=1e-5)


def test_a_deal_that_needs_more_than_there_is_is_cut_until_it_fits() -> None:
    asked = long_sequences(7, 3.2)
    plain = PlanTable.of(AS_IT_IS)
    # Nothing is told of the stages' rooms, so that the first deal holds two layers where they do not fit.
    dealing = Dealing(
        counts=(7,), work_s=(1.0,), ends_s=np.array([0.0, 0.0, 0.0, 1.0]), pp=STAGES, vpp=1, num_micro=16
    )
    limit = usable_bytes(asked.cluster)
    table = estimate_memory(asked.model, asked.job, plain, asked.cluster)
    text = fitting_layout(asked, table, dealing, (np.inf, limit))
    assert text
    every = price_plan(asked, replace(plain, stage_layout=text))
    assert every[0].needed_bytes <= limit
    least = least_deal(dealing)
    assert least is not None
    first = layout_text(least.sum(axis=1).tolist())
    assert price_plan(asked, replace(plain, stage_layout=first))[0].needed_bytes > limit


def every_layout_predicting(layers: int) -> Iterable[str]:
    """Every layout with a prediction block beside the head, or alone on the last stage but one's end."""
    for text in every_layout(layers, STAGES):
        yield f"{text[:-1]}mL"
        if text.endswith("|L"):
            yield f"{text[:-2]}m|L"


@pytest.mark.parametrize("memory_gib", [3.4, pytest.param(3.6, marks=pytest.mark.nightly)])
def test_a_search_cuts_deals_that_need_more_than_there_is_until_the_best_fits(
    memory_gib: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the last two stages, one of which holds a prediction block, no room is told before a deal stands there."""
    asked = long_sequences(6, memory_gib)
    (run,) = asked.model.blocks
    predicting = BlockRun(block=replace(run.block, mtp=True), count=1)
    asked = replace(asked, model=replace(asked.model, blocks=(run, predicting)))
    cuts: list[tuple[Room, ...]] = []
    cut = dealt_anew._cut

    def counted(question: Question, table: Estimate, limit: float) -> tuple[Room, ...]:
        cuts.append(cut(question, table, limit))
        return cuts[-1]

    monkeypatch.setattr(dealt_anew, "_cut", counted)
    best = searched(asked, no_recompute=True)
    # A room of a stage that the deal before overfilled, each time.
    assert cuts
    assert all({room.place for room in rooms} <= {STAGES - 2, STAGES - 1} and rooms for rooms in cuts)
    plain = estimate_memory(asked.model, asked.job, PlanTable.of(AS_IT_IS), asked.cluster)
    every = list(every_layout_predicting(6))
    tables = [repartitioned(asked.model, asked.job, plain, text, asked.cluster) for text in every]
    fitting = [one.plans for one in tables if one.needed_bytes[0] <= usable_bytes(asked.cluster)]
    assert 0 < len(fitting) < len(every)
    least_s = min(price_plan(asked, plans)[0].step_s for plans in fitting)
    assert best.step_s == pytest.approx(least_s, rel=1e-9)


def test_what_is_dealt_is_of_the_plan_asked_about() -> None:
    """Of a table of plans of other depths, micro-batches and layouts, each by its own row."""
    asked = question(model=small_model(layers=12), world_size=8, sequences=32, preset=PRESETS["megatron"])
    partly = replace(AS_IT_IS, recompute=Recompute.BLOCK)
    each = [
        replace(partly, pp=2, tp=2, dp=2, num_micro=16, num_recompute_layers=1),
        replace(partly, pp=4, tp=2, num_micro=16, micro_batch=2, num_recompute_layers=2),
        replace(partly, pp=2, vpp=3, tp=4, num_micro=32, num_recompute_layers=1),
    ]
    runs = asked.model.blocks

    def dealt(plans: PlanTable, row: int) -> Dealing:
        owner = entered(asked, estimate_memory(asked.model, asked.job, plans, asked.cluster))
        cell = Cell(owner=owner, rows=ints([row]), span_s=np.inf, beside_s=0.0, bound_s=0.0)
        return dealt_anew._dealing(cell, row, runs, -1)

    together = PlanTable.of(*each)
    for row, plan in enumerate(each):
        mine, alone = dealt(together, row), dealt(PlanTable.of(plan), 0)
        assert (mine.pp, mine.vpp, mine.num_micro, mine.again) == (
            plan.pp,
            plan.vpp,
            plan.num_micro,
            plan.num_recompute_layers,
        )
        assert mine.work_s == pytest.approx(alone.work_s, rel=1e-12)
        assert mine.ends_s == pytest.approx(alone.ends_s, rel=1e-12)
    assert len({dealt(together, row).work_s for row in range(3)}) == 3
