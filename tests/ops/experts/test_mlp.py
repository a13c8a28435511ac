"""What the experts of a rank run beside their products."""

import pytest

from ops.op import Phase
from ops.roles import Module, OpKey, Role
from tests.ops.experts.test_moe_block import COPIES, WIDTH, layer, moved, named


@pytest.mark.parametrize(("changes", "tensors"), [({}, 3), ({"gated": False}, 2), ({"clamped": True}, 3)])
def test_a_probabilitys_gradient_reads_what_the_activation_read_and_its_gradient(
    changes: dict[str, bool], tensors: int
) -> None:
    """Megatron-Core weighted_swiglu_back: gate, up and the output gradient, summed along rows; nothing forward."""
    (summed,) = named(layer(**changes), "moe.activation.probability")
    assert summed.phase is Phase.INPUT_GRAD
    assert moved(layer(**changes), summed.name) == tensors * 2 * COPIES * WIDTH
    assert summed.served == OpKey(Module.MOE, Role.ACTIVATION)
