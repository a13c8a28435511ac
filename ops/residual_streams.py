"""Several residual streams: what mixes them before a half, and adds its output to each (hyper-connections, arXiv 2409.19606 sec. 2).

Source: transformers models/hy_v4/modeling_hy_v4.py, HYV4HyperConnection, HYV4HyperHead, HYV4DecoderLayer. ``Assumption:`` each is one
kernel over whole streams, as fused ones are; the product that makes a token's few weights is part of the pass that mixes.
"""

from ops.context import LayerContext
from ops.memory_bound import Kernel, kernel, memory_pass
from ops.op import MemoryBound, Pass, Phase
from ops.roles import Module, OpKey, Role
from spec.arrays import IntArray
from spec.parameters import mix_parameters


def mix_streams(context: LayerContext, module: Module, *, expands: bool = True) -> Pass:
    """Returns the mix of all streams that a half, or the head, reads: streams read and one written; backward the gradient and the
    streams read, and the streams' gradient read and written. Streams are kept, for the gradients of weights."""
    model, rows = context.model, context.norm_rows
    all_rows, name = rows * model.residual_streams, f"{module}.mix_streams"
    mixed = Kernel(
        OpKey(module, Role.STATISTICS).named(name),
        "norm_reduce",
        all_rows,
        model.hidden,
        saved_bytes=context.activations(all_rows, model.hidden),
        parameters=mix_parameters(model, expands=expands),
    )
    backward = (
        _moved(context, module, f"{name}.gradient", Phase.INPUT_GRAD, "bias", rows),
        _moved(context, module, f"{name}.weights", Phase.INPUT_GRAD, "bias", all_rows),
        _moved(context, module, f"{name}.streams", Phase.INPUT_GRAD, "copy", all_rows),
    )
    written = _moved(context, module, f"{name}.write", Phase.FORWARD, "fill", rows)
    return Pass(forward=(*kernel(context, mixed).forward, written), backward=backward)


def add_to_streams(context: LayerContext, module: Module) -> Pass:
    """Returns the sum of every stream and a half's weighted output, which is kept: both read, streams written; backward the
    gradient of all streams and the output read, and the output's gradient written."""
    rows, name = context.norm_rows, f"{module}.add_to_streams"
    all_rows = rows * context.model.residual_streams
    added = Kernel(
        OpKey(module, Role.RESIDUAL).named(name),
        "copy",
        all_rows,
        context.model.hidden,
        saved_bytes=context.activations(rows, context.model.hidden),
    )
    read = _moved(context, module, f"{name}.read", Phase.FORWARD, "norm_reduce", rows)
    backward = (
        _moved(context, module, f"{name}.gradients", Phase.INPUT_GRAD, "bias", all_rows),
        _moved(context, module, f"{name}.output", Phase.INPUT_GRAD, "copy", rows),
    )
    return Pass(forward=(*kernel(context, added).forward, read), backward=backward)


def spread_embedding(context: LayerContext) -> Pass:
    """Returns the copies of the embedding that the streams begin with; backward their gradients' sum."""
    rows = context.norm_rows * context.model.residual_streams
    name = "embedding.spread_streams"
    return Pass(
        forward=(_moved(context, Module.EMBEDDING, name, Phase.FORWARD, "fill", rows),),
        backward=(_moved(context, Module.EMBEDDING, name, Phase.INPUT_GRAD, "bias", rows),),
    )


def _moved(context: LayerContext, module: Module, name: str, phase: Phase, moves: str, rows: IntArray) -> MemoryBound:
    hidden = context.layout.constant(context.model.hidden)
    return memory_pass(
        OpKey(module, Role.COPY).named(name), phase, moves, rows, context.job.precision.activation, hidden
    )
