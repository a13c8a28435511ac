"""A micro-batch takes of a stage what it takes of the stage's chunks."""

import numpy as np
import pytest

from solver.plans.space import enumerate_block, full_space
from solver.price import sized, stage_seconds
from spec.presets.registry import PRESETS
from tests.solver.questions import question


@pytest.mark.parametrize("preset", ["internevo", "megatron-fsdp", "zero-bubble"])
def test_chunks_add_up_to_their_stage(preset: str) -> None:
    """Each chunk's first layer waits for its weights, under isp in several chunks too."""
    asked = question(preset=PRESETS[preset], world_size=8, sequences=64)
    space = full_space(asked.model, asked.job)
    cut = 0
    for block in space.blocks:
        plans = enumerate_block(asked.model, asked.job, asked.cluster, space, block).plans
        if not len(plans):
            continue
        table = sized(asked.model, asked.job, plans, asked.cluster)
        timed = stage_seconds(asked.model, asked.job, table, asked.pricer)
        one_s = timed.chunk_passes.forward_s + timed.chunk_passes.backward_s
        of_stage = np.add.reduceat(one_s, table.stages.chunk_starts)
        assert timed.per_micro.seconds == pytest.approx(of_stage, rel=1e-9)
        cut += int((plans.vpp > 1).sum())
    assert cut > 0
