"""Griffin's recurrent block: products in, a convolution, gates within blocks, the recurrence, a gate, a product out.

Source: arXiv 2402.19427 sec. 2.4 and 4.2: the recurrence is elementwise and bound by memory, one kernel that reads what it gates once;
transformers models/recurrent_gemma/modeling_recurrent_gemma.py for the order of things.
"""

from dataclasses import replace

from ops.context import HeadTensor, HeadTensors, LayerContext
from ops.memory_bound import Kernel, kernel, memory_pass
from ops.mixers.mixer import MixerRow, core_heads, into_mixer, out_of_mixer, projected_heads
from ops.op import MemoryBound, Pass, Phase, gemm, sequence
from ops.roles import Module, OpKey, Role
from spec.arrays import IntArray
from spec.mixers.rg_lru import RgLruSpec


def projections(context: LayerContext, mixer: RgLruSpec) -> Pass:
    """Returns both branches of every token."""
    width = projected_heads(context, mixer.num_blocks) * mixer.block_width
    return into_mixer(context, OpKey(Module.RG_LRU, Role.PROJECTION), 2 * width, bias=True, matrices=2)


def core(context: LayerContext, mixer: RgLruSpec) -> Pass:
    """Returns the convolution, the gates, the recurrence and its product with GELU of the other branch; each keeps what it reads."""
    rows = context.layout.micro_batch * context.core_sequence
    width = core_heads(context, mixer.num_blocks) * mixer.block_width
    own, kept = projected_heads(context, mixer.num_blocks) * mixer.block_width, context.activations(rows, width)
    convolution = Kernel(
        OpKey(Module.RG_LRU, Role.CONVOLUTION),
        "causal_conv1d",
        rows,
        width,
        saved_bytes=kept,
        # and a rate of each channel's decay
        parameters=(mixer.conv_kernel + 2) * own,
    )
    gate = Kernel(OpKey(Module.RG_LRU, Role.OUTPUT_GATE), "swiglu", rows, width, saved_bytes=2 * kept)
    return sequence(
        kernel(context, convolution),
        _gates(context, mixer, rows),
        _recurrence(context, rows, width),
        kernel(context, gate),
    )


def _gates(context: LayerContext, mixer: RgLruSpec, rows: IntArray) -> Pass:
    """Returns both gates' products, block by block, with their biases; they keep one input, and the recurrence both results."""
    layout, dtype = context.layout, context.job.precision.activation
    blocks, own = core_heads(context, mixer.num_blocks), projected_heads(context, mixer.num_blocks)
    block = layout.constant(mixer.block_width)
    what = OpKey(Module.RG_LRU, Role.GATE)
    forward = gemm(what, Phase.FORWARD, (2 * blocks, rows, block, block), "NN", dtype)
    kept = 3 * context.activations(rows, blocks * mixer.block_width)
    weights = 2 * own * mixer.block_width * (mixer.block_width + 1)
    return Pass(
        forward=(replace(forward, saved_bytes=kept, parameters=weights),),
        backward=(
            gemm(what, Phase.INPUT_GRAD, (2 * blocks, rows, block, block), "NT", dtype),
            gemm(what, Phase.WEIGHT_GRAD, (2 * blocks, block, rows, block), "TN", dtype),
        ),
    )


def _recurrence(context: LayerContext, rows: IntArray, width: IntArray) -> Pass:
    """Returns the scan: a tensor and two gates read, one written; backward these, states and their gradient read, three gradients
    written; as passes that move as much."""

    def moved(name: str, phase: Phase, moves: str) -> MemoryBound:
        what = OpKey(Module.RG_LRU, Role.CORE).named(f"rg_lru.{name}")
        return memory_pass(what, phase, moves, rows, context.job.precision.activation, width)

    forward = (moved("scan", Phase.FORWARD, "add"), moved("scan_gate", Phase.FORWARD, "norm_reduce"))
    backward = (moved("d_scan", Phase.INPUT_GRAD, "swiglu"), moved("d_scan_gate", Phase.INPUT_GRAD, "add"))
    return Pass(forward=forward, backward=backward)


def output(context: LayerContext, mixer: RgLruSpec) -> Pass:
    """Returns the product back to hidden states."""
    width = projected_heads(context, mixer.num_blocks) * mixer.block_width
    return out_of_mixer(context, OpKey(Module.RG_LRU, Role.OUT), width, bias=True)


def core_tensors(mixer: RgLruSpec) -> HeadTensors:
    """Returns both branches, and the output."""
    x, y, out = (HeadTensor(name=name, heads=mixer.num_blocks, dim=mixer.block_width) for name in ("x", "y", "out"))
    return HeadTensors(module=Module.RG_LRU, into=(x, y), out=(out,))


RG_LRU = MixerRow(
    module=Module.RG_LRU,
    projections=projections,
    core=core,
    output=output,
    core_tensors=core_tensors,
    context_parallel=frozenset({"all_to_all"}),
)
