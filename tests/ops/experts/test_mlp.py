"""What the experts of a rank run beside their products."""

from dataclasses import replace

import pytest

from ops.cpu_overhead import cpu_overhead
from ops.memory_bound import bytes_moved
from ops.op import GroupedGemm, MemoryBound, Phase
from ops.recompute import recompute_parts
from ops.roles import Module, OpKey, Role
from spec.frameworks import framework_preset
from spec.job import JobSpec
from spec.settings.job import recipe_precision
from tests.ops.experts.test_moe_block import COPIES, EP, EXPERTS, HIDDEN, SEQ, WIDTH, layer, moved, named
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
    limited = named(apart, "moe.clamp")[0]
    # Both halves of the first product's output, as they came and as they are put together again for the activation.
    assert limited.saved_bytes[0] == 2 * COPIES * WIDTH * 2
    compiled = job(seq_len=SEQ, preset=framework_preset("fsdp-compiled"))
    fused = layer(compiled, clamped=True)
    assert not named(fused, "moe.clamp")
    assert moved(fused, "moe.activation") == moved(layer(compiled), "moe.activation")
    assert moved(plain, "moe.activation") == moved(apart, "moe.activation") > 0


def test_limited_experts_wait_for_the_offset_of_their_activation() -> None:
    """Megatron-Core weighted_bias_quick_geglu_impl makes the offset on the device in every call, also where
    it runs again; experts without limits have none, and plain PyTorch modules are not written so."""

    def waiting(asked: JobSpec, **changes: bool) -> list[str]:
        found = layer(asked, **changes)
        again = recompute_parts(found, ("moe_act",))
        return [f"{op.phase.value} {op.name}" for op in (*again.forward, *again.backward) if op.synchronises]

    mcore, plain = job(seq_len=SEQ), job(seq_len=SEQ, preset=framework_preset("fsdp"))
    counts = f"{Phase.FORWARD.value} moe.permute"
    assert waiting(mcore) == waiting(plain, clamped=True) == [counts]
    both = [f"{phase.value} moe.activation" for phase in (Phase.FORWARD, Phase.RECOMPUTE)]
    assert waiting(mcore, clamped=True) == [counts, *both]


def test_torchao_casts_all_experts_at_once_and_again_in_the_backward() -> None:
    """_MXFP8GroupedMM: rows and weights along one order forward and along the other backward, one kernel for
    all experts, where Transformer Engine casts each expert's rows by one of its own and no weight outside a
    step's first micro-batch."""
    plain = job(seq_len=SEQ, preset=framework_preset("torchtitan"))
    ours = layer(replace(plain, precision=recipe_precision("mxfp8", plain.preset)))
    casts = [op for op in named(ours, "moe.down.cast") if isinstance(op, MemoryBound)]
    assert {float(op.repeat[0]) for op in casts} == {1.0}
    held = EXPERTS // EP
    rows, weights = COPIES + held * (32 - 1) / 2, held * WIDTH * HIDDEN
    found = {phase: sorted(float(bytes_moved(op)[0]) for op in casts if op.phase is phase) for phase in Phase}
    # a read of 2 bytes and a write of 1; of the gradient twice
    assert found[Phase.FORWARD] == pytest.approx([weights * 3, rows * WIDTH * 3], rel=1e-2)
    assert found[Phase.INPUT_GRAD] == pytest.approx([weights * 3, rows * WIDTH * 3, rows * HIDDEN * 6], rel=1e-2)


@pytest.mark.parametrize(("preset", "one", "launches"), [("torchtitan", True, 1.0), ("maxtext", False, EXPERTS / EP)])
def test_torchtitans_experts_are_one_kernel_a_product(preset: str, one: bool, launches: float) -> None:
    """torch._grouped_mm takes the ends of all experts' rows from the device: one launch, whatever their number."""
    asked = job(seq_len=SEQ, preset=framework_preset(preset))
    ran = layer(asked)
    products = [op for op in (*ran.forward, *ran.backward) if isinstance(op, GroupedGemm)]
    assert len(products) == 6
    assert {op.one_kernel for op in products} == {one}
    assert {float(cpu_overhead(op, asked).launches[0]) for op in products} == {launches}
    assert not any(cpu_overhead(op, asked).calls.any() for op in products)
