"""Plans that fit with other layers on their stages alone, under many sets of parts at once."""

from dataclasses import replace

import numpy as np

from solver.contest import Pipeline
from solver.estimate import estimate_memory
from solver.plans.plan_table import Plan, PlanTable
from solver.refinements.deal_bounds import DealBounds
from solver.refinements.entering import entered
from solver.refinements.module_sets import sets_of
from solver.refinements.stage_room import tables_of
from solver.refinements.tight_drafts import ShortOfRoom, bounds_under_sets
from solver.refinements.under_sets import under_sets
from spec.arrays import ints
from spec.presets.registry import PRESETS
from tests.solver.questions import question
from tests.solver.refinements.test_module_sets import latent_experts


def test_a_set_is_left_out_only_where_its_plans_fit_or_could_not_be_faster() -> None:
    """Every other bound is that of the plan under its set alone."""
    model = latent_experts()
    model = replace(model, blocks=tuple(replace(run, count=4) for run in model.blocks))
    asked = question(model=model, world_size=4, sequences=16, seq_len=8192, preset=PRESETS["megatron"])
    plan = Plan(strategy="mtp", preset="megatron", pp=4, num_micro=16)
    plans = PlanTable.of(plan, replace(plan, pp=2, tp=2), replace(plan, pp=2, dp=2, num_micro=8))
    plain = estimate_memory(asked.model, asked.job, plans, asked.cluster)
    owner = entered(asked, plain)
    assert isinstance(owner.pipeline, Pipeline)
    bounds = DealBounds.of(owner, owner.pipeline)
    tried = under_sets(asked, plain, sets_of(asked, plain.layers.ops.blocks))
    every = ints(np.arange(len(plans)))
    tables = [tried.table(place, every) for place in range(len(tried.sets))]
    needed = np.stack([table.needed_bytes for table in tables])
    left_out = kept = 0
    for limit_bytes in np.quantile(needed, (0.02, 0.3, 0.7)):
        alone = ShortOfRoom(plain=plain, bounds=bounds, rules=(), limit=(float(limit_bytes), np.inf))
        each = np.stack([alone.bound_s(asked, tables_of(asked, table), every) for table in tables])
        for best_s in np.quantile(each[np.isfinite(each)], (0.2, 0.8)):
            short = replace(alone, limit=(float(limit_bytes), float(best_s)))
            found = bounds_under_sets(asked, short, tried)
            faster = (each < best_s) & (needed > limit_bytes)
            assert np.array_equal(np.isfinite(found), faster)
            assert np.array_equal(found[faster], each[faster])
            left_out, kept = left_out + np.count_nonzero(~faster), kept + np.count_nonzero(faster)
    assert min(left_out, kept) > 20
