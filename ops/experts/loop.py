"""Experts one after another, as the modules of transformers before version 5 run them.

Source: huggingface/transformers 4.57 ``models/qwen3_moe/modeling_qwen3_moe.py``, Qwen3MoeSparseMoeBlock.forward (Mixtral's and
OLMoE's are the same loop): for every expert the tokens that chose it are looked up (torch.where, for which the host waits),
taken out of the sequence, sent through the expert's own linears, weighed, and added to the result (index_add_).
"""

from dataclasses import replace

from ops.context import LayerContext
from ops.experts.exchange import routed_rows
from ops.linear import linear
from ops.memory_bound import Kernel, kernel, memory_pass
from ops.mlp_block import activation
from ops.op import Linear, Op, Owner, Pass, Phase, sequence
from ops.roles import Module, OpKey, Role
from spec.arrays import IntArray, ceil_div
from spec.model import MoeSpec

MASK_TENSORS = 3
"""Of a mask of 64-bit numbers, in halves of them each: a row is copied out of it, and read for its non-zeros."""


def looped_experts(context: LayerContext, moe: MoeSpec, own_rows: IntArray) -> Pass:
    """Returns the experts of a rank that has all of them, each on the equal part of ``own_rows`` times topk that chose
    it: every operation as often as there are experts."""
    constant = context.layout.constant
    experts, hidden, width = map(constant, (moe.num_experts, context.model.hidden, moe.expert_ffn_hidden))
    rows = ceil_div(routed_rows(context, moe, own_rows), experts)

    def product(role: Role, inputs: IntArray, outputs: IntArray, *, keeps: bool) -> Pass:
        layer = Linear(
            module=Module.MOE,
            role=role,
            tokens=rows,
            inputs=inputs,
            outputs=outputs,
            saved_bytes=context.activations(rows, inputs) * keeps,
            bias=moe.bias,
        )
        return linear(context, layer)

    gate = (Role.GATE,) if moe.gated else ()
    one = sequence(
        _find(context, moe, own_rows),
        _take(context, own_rows, rows),
        *(product(role, hidden, width, keeps=role is Role.UP) for role in (*gate, Role.UP)),
        activation(context, moe.gated, rows, width, Module.MOE),
        product(Role.DOWN, width, hidden, keeps=True),
        # The product with the weights, of which each keeps the other, and the sum: three passes, and five in the backward.
        kernel(
            context,
            Kernel(
                OpKey(Module.MOE, Role.BIAS).named("moe.weigh"),
                "expert_bias_unfused",
                rows,
                hidden,
                saved_bytes=context.activations(rows, hidden),
            ),
        ),
    )

    def of_each(op: Op) -> Op:
        every = replace(op, saved_bytes=op.saved_bytes * experts, parameters=op.parameters * experts)
        return replace(every, repeat=experts, owner=Owner.EXPERT)

    return Pass(forward=tuple(map(of_each, one.forward)), backward=tuple(map(of_each, one.backward)))


def _find(context: LayerContext, moe: MoeSpec, own_rows: IntArray) -> Pass:
    """Returns the look-up of an expert's tokens in the mask of all choices; the host waits for their number."""
    what = OpKey(Module.MOE, Role.GATHER, Role.DISPATCH).named("moe.find")
    found = kernel(context, Kernel(what, "copy", own_rows, MASK_TENSORS * moe.topk, dtype="fp32")).forward
    return Pass(forward=tuple(replace(op, synchronises=True) for op in found))


def _take(context: LayerContext, own_rows: IntArray, rows: IntArray) -> Pass:
    """Returns the tokens of one expert out of all. Their gradients are set into zeros of the whole sequence, which is
    then added to the sum of the experts before (tools/autograd/derivatives.yaml, index: index_put_ into zeros): four passes over it."""
    hidden = context.layout.constant(context.model.hidden)
    taken = Kernel(OpKey(Module.MOE, Role.COPY, Role.DISPATCH), "permute", rows, hidden, saved_bytes=8.0 * rows)
    what, dtype = OpKey(Module.MOE, Role.ACCUMULATE, Role.DISPATCH), context.job.precision.activation
    # ``accumulate`` is three passes.
    summed = memory_pass(what, Phase.INPUT_GRAD, "accumulate", ceil_div(4 * own_rows, 3), dtype, hidden)
    return sequence(kernel(context, taken), Pass(backward=(summed,)))
