"""ZeRO's hooks around modules and gradients: the runs that their calls were reduced from, given back."""

import numpy as np
import pytest

from ops.cpu_overhead import HOOKS, SLICE_CALLS, sharding_hook_calls
from ops.layout import Layout
from ops.op import Op, Phase
from spec.frameworks import framework_preset
from tests.ops.layouts import job, written
from tests.solver.questions import small_model

FORWARD, AGAIN = (Phase.FORWARD,), (Phase.RECOMPUTE,)
BACKWARD = (Phase.INPUT_GRAD, Phase.WEIGHT_GRAD)


def calls(
    phases: tuple[Phase, ...], *, stage: int, ranks: int = 1, preset: str = "xtuner", mode: str = "none"
) -> float:
    """Of a layer of a Llama: 13 modules of which nine have parameters where matrices lie apart."""
    asked = job(world_size=ranks, seq_len=1024, preset=framework_preset(preset))
    layout = Layout.of(ranks, zero_size=ranks, zero_stage=stage)
    layer = written(small_model(), asked, "mtp", layout, mode).blocks[0]
    ops: list[Op] = [op for op in (*layer.forward, *layer.backward) if op.phase in phases]
    hooks = [term for term in HOOKS if term.applies(asked) and term.calls is sharding_hook_calls]
    return float(np.sum([term.calls(op, asked, layout)[0] * op.repeat for op in ops for term in hooks]))


def test_a_layer_takes_what_it_took_on_a_cpu() -> None:
    """DeepSpeed 0.16.4 over one rank: 69 calls forward, 104 backward, at stage 2 25.4 in the backward."""
    assert calls(FORWARD, stage=3) == pytest.approx(69.0)
    assert calls(BACKWARD, stage=3) == pytest.approx(104.0 + 9 * SLICE_CALLS)
    assert calls(BACKWARD, stage=2) == pytest.approx(25.4)
    assert calls(FORWARD, stage=2) == 0.0


def test_every_rank_has_a_slice_of_every_gradient() -> None:
    """0.08 calls a gradient and rank, nine gradients; at stage 2 buckets travel whole."""
    more = calls(BACKWARD, stage=3, ranks=8) - calls(BACKWARD, stage=3)
    assert more == pytest.approx(9 * 0.08 * 7)
    assert calls(BACKWARD, stage=2, ranks=8) == calls(BACKWARD, stage=2)


def test_what_runs_again_is_hooked_again() -> None:
    again = calls(AGAIN, stage=3, mode="full")
    assert again == pytest.approx(calls(FORWARD, stage=3))


@pytest.mark.parametrize(("preset", "stage"), [("xtuner", 1), ("deepspeed-2021", 3), ("fsdp", 3)])
def test_below_stage_2_and_elsewhere_nothing_is_hooked(preset: str, stage: int) -> None:
    assert calls((*FORWARD, *BACKWARD), stage=stage, preset=preset) == 0.0


def test_a_module_without_parameters_is_hooked_too() -> None:
    """Ten that do nothing take 23.7 calls forward and 7.3 backward."""
    asked = job(world_size=1, seq_len=1024, preset=framework_preset("xtuner"))
    layout = Layout.of(1, zero_stage=3)
    layer = written(small_model(), asked, "mtp", layout, "none").blocks[0]
    sums = [op for op in (*layer.forward, *layer.backward) if op.name == "mlp.residual"]
    found = {op.phase: 10 * float(sharding_hook_calls(op, asked, layout)[0]) for op in sums}
    assert found == {
        Phase.FORWARD: pytest.approx(23.7, rel=0.05),
        Phase.INPUT_GRAD: pytest.approx(7.3, rel=0.05),
    }
