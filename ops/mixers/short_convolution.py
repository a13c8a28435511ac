"""LFM2's gated short convolution: a product in, a gate before the convolution and one behind it, a product out.

Source: transformers models/lfm2/modeling_lfm2.py, Lfm2ShortConv: two elementwise products around causal-conv1d's kernel.
"""

from ops.context import HeadTensor, HeadTensors, LayerContext
from ops.memory_bound import Kernel, kernel
from ops.mixers.mixer import MixerRow, core_heads, into_mixer, out_of_mixer, projected_heads
from ops.op import Pass, sequence
from ops.roles import Module, OpKey, Role
from spec.mixers.short_convolution import ShortConvolutionSpec


def projections(context: LayerContext, mixer: ShortConvolutionSpec) -> Pass:
    """Returns B, C and x of every token in one product."""
    channels = projected_heads(context, mixer.channels)
    return into_mixer(context, OpKey(Module.SHORT_CONVOLUTION, Role.PROJECTION), 3 * channels, bias=mixer.bias)


def core(context: LayerContext, mixer: ShortConvolutionSpec) -> Pass:
    """Returns B times x, which keeps both and C beside them in one tensor; the convolution and C times its result, which keep what
    they read. A product of two tensors moves what a fused SwiGLU does."""
    rows = context.layout.micro_batch * context.core_sequence
    channels, own = core_heads(context, mixer.channels), projected_heads(context, mixer.channels)
    kept = context.activations(rows, channels)
    before, behind = (OpKey(Module.SHORT_CONVOLUTION, Role.GATE), OpKey(Module.SHORT_CONVOLUTION, Role.OUTPUT_GATE))
    convolution = Kernel(
        OpKey(Module.SHORT_CONVOLUTION, Role.CONVOLUTION),
        "causal_conv1d",
        rows,
        channels,
        saved_bytes=kept,
        parameters=(mixer.conv_kernel + mixer.bias) * own,
    )
    return sequence(
        kernel(context, Kernel(before, "swiglu", rows, channels, saved_bytes=3 * kept)),
        kernel(context, convolution),
        kernel(context, Kernel(behind, "swiglu", rows, channels, saved_bytes=kept)),
    )


def output(context: LayerContext, mixer: ShortConvolutionSpec) -> Pass:
    """Returns the product back to hidden states."""
    channels = projected_heads(context, mixer.channels)
    return out_of_mixer(context, OpKey(Module.SHORT_CONVOLUTION, Role.OUT), channels, bias=mixer.bias)


def core_tensors(mixer: ShortConvolutionSpec) -> HeadTensors:
    """Returns B, C and x, and the output; one head is a channel."""
    b, c, x, out = (HeadTensor(name=name, heads=mixer.channels, dim=1) for name in ("b", "c", "x", "out"))
    return HeadTensors(module=Module.SHORT_CONVOLUTION, into=(b, c, x), out=(out,))


SHORT_CONVOLUTION = MixerRow(
    module=Module.SHORT_CONVOLUTION,
    projections=projections,
    core=core,
    output=output,
    core_tensors=core_tensors,
    context_parallel=frozenset({"all_to_all"}),
)
