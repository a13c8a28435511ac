"""How gradients of stages 2 and 3 are reduced in every backward."""

import pytest

from ops.layout import Layout
from ops.op import Comm, Lane
from ops.roles import Role
from spec.collectives import Collective
from spec.frameworks import framework_preset
from tests.ops.layouts import job, written
from tests.solver.questions import small_model

ALL_REDUCED, SCATTERED = Collective.ALL_REDUCE, Collective.REDUCE_SCATTER
BESIDE, IN_ITS_WAY = Lane.PREFETCH, Lane.MAIN


def reductions(preset: str, stage: int) -> dict[tuple[Collective, Lane], int]:
    """Bytes of a layer's reductions by collective and lane, over 4 ranks."""
    asked = job(world_size=4, seq_len=1024, preset=framework_preset(preset))
    layout = Layout.of(4, zero_size=4, zero_stage=stage)
    layer = written(small_model(), asked, "mtp", layout, "none").blocks[0]
    found: dict[tuple[Collective, Lane], int] = {}
    for op in layer.backward:
        if isinstance(op, Comm) and op.role is Role.GRADIENT_REDUCTION and op.size_bytes[0]:
            key = (op.collective, op.lane)
            found[key] = found.get(key, 0) + int(op.size_bytes[0])
    return found


@pytest.mark.parametrize(
    ("preset", "stage", "collective", "lane"),
    [
        # DeepSpeed runtime/zero/config.py: overlap_comm true at stage 3 alone,
        # use_multi_rank_bucket_allreduce; XTuner's and accelerate's configurations overlap at stage 2 too
        ("deepspeed", 2, ALL_REDUCED, IN_ITS_WAY),
        ("deepspeed", 3, SCATTERED, BESIDE),
        ("xtuner", 2, ALL_REDUCED, BESIDE),
        ("xtuner", 3, SCATTERED, BESIDE),
        # runtime/zero/stage2.py of 2021 reduces slices to their owners
        ("deepspeed-2021", 2, SCATTERED, BESIDE),
        ("fsdp", 2, SCATTERED, BESIDE),
    ],
)
def test_stage_2_reduces_as_its_framework_does_and_stage_3_scatters(
    preset: str, stage: int, collective: Collective, lane: Lane
) -> None:
    """Every gradient travels once, whole, in 16 bits."""
    found = reductions(preset, stage)
    assert set(found) == {(collective, lane)}
    assert found[collective, lane] == sum(reductions(preset, 5 - stage).values())


def test_below_stage_2_nothing_is_reduced_in_a_micro_batch() -> None:
    assert not reductions("deepspeed", 1)
