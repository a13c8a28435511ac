"""What the experts of a rank run beside their products."""

import pytest

from ops.op import Phase
from ops.roles import Module, OpKey, Role
from spec.presets.registry import PRESETS
from tests.ops.experts.test_moe_block import COPIES, SEQ, WIDTH, layer, moved, named
from tests.ops.layouts import job


@pytest.mark.parametrize(("changes", "tensors"), [({}, 3), ({"gated": False}, 2), ({"clamped": True}, 3)])
def test_a_probabilitys_gradient_reads_what_the_activation_read_and_its_gradient(
    changes: dict[str, bool], tensors: int
) -> None:
    """Megatron-Core weighted_swiglu_back: gate, up and the output gradient, summed along rows; nothing forward."""
    (summed,) = named(layer(**changes), "moe.activation.probability")
    assert summed.phase is Phase.INPUT_GRAD
    assert moved(layer(**changes), summed.name) == tensors * 2 * COPIES * WIDTH
    assert summed.served == OpKey(Module.MOE, Role.ACTIVATION)


def test_compiled_limits_are_part_of_the_activations_kernel() -> None:
    """NeMo AutoModel's quick_geglu_deepep: limits, gate and probability in one compiled function."""
    apart, plain = layer(clamped=True), layer()
    assert named(apart, "moe.clamp")
    compiled = job(seq_len=SEQ, preset=PRESETS["fsdp-compiled"])
    fused = layer(compiled, clamped=True)
    assert not named(fused, "moe.clamp")
    assert moved(fused, "moe.activation") == moved(layer(compiled), "moe.activation")
    assert moved(plain, "moe.activation") == moved(apart, "moe.activation") > 0
