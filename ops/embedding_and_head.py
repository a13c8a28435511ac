"""The ends of a model: embedding before the first block; final norm, head and loss after the last."""

from dataclasses import replace

import numpy as np

from ops.context import LayerContext
from ops.linear import linear, weight_collectives
from ops.memory_bound import Kernel, kernel, memory_pass, norm, soft_cap
from ops.op import Axis, Linear, Pass, Phase, collective, sequence
from ops.roles import Identity, Module, OpKey, Role
from spec.arrays import IntArray, ceil_div
from spec.collectives import Collective
from spec.model import PositionKind


def padded_vocab(context: LayerContext) -> IntArray:
    """Returns the vocabulary as the framework pads it: to its multiple in each part of the embedding."""
    preset, model = context.job.preset, context.model
    multiple = max(preset.tensor_parallel.vocab_pad_multiple, model.vocab_pad_multiple)
    # Megatron-LM pads to multiple x tp, so that every rank's slice is a multiple too.
    unit = multiple * context.layout.tp_if(context.traits.cuts_embedding)
    return ceil_div(context.layout.constant(model.vocab), unit) * unit


def embedding_elements(context: LayerContext) -> IntArray:
    """Returns the parameters of the token embedding that a rank holds."""
    whole = (padded_vocab(context) + context.model.extra_embedding_rows) * context.model.hidden
    return ceil_div(whole, context.layout.tp_if(context.traits.cuts_embedding))


def embedding(context: LayerContext) -> Pass:
    """Returns the token embedding, cut over the vocabulary or the hidden size where the strategy cuts it, with learned
    positions, and the collective that assembles its output: partial embeddings summed, or summed and scattered, or
    slices of them exchanged."""
    model, layout, rows, dtype = (context.model, context.layout, context.gemm_rows, context.job.precision.activation)
    parameters = embedding_elements(context)
    if model.position is PositionKind.LEARNED:
        parameters = parameters + model.max_positions * model.hidden
    parameters = parameters + model.rope_scales
    what = OpKey(Module.EMBEDDING, Role.TABLE)
    # Saved: the int64 token ids, by which the backward scatters gradients.
    table = kernel(
        context, Kernel(what, "embedding", rows, model.hidden, saved_bytes=8.0 * rows, parameters=parameters)
    )
    tokens = ceil_div(context.tokens, layout.tp) * layout.tp // layout.tp_if(not context.traits.cuts_matrices)
    size = (tokens * model.hidden * context.activation_bytes).astype(np.int64)
    what = OpKey(Module.EMBEDDING, Role.ASSEMBLE)
    # Which collective depends on how the strategy cuts the table: a sum over vocabulary slices (mtp), a sum and
    # scatter (fsp), or an exchange of hidden slices for tokens (isp).
    ahead, back = context.traits.assembles
    assembled = Pass(
        forward=(collective(what, Phase.FORWARD, ahead, Axis.TP, size, dtype),) if ahead else (),
        backward=(collective(what, Phase.INPUT_GRAD, back, Axis.TP, size, dtype),) if back else (),
    )
    normed = norm(context, Module.EMBEDDING, rows) if model.embedding_norm else Pass()
    first = sequence(table, _table_gradient(context), assembled, normed)
    if model.residual_streams > 1:
        from ops.residual_streams import spread_embedding

        return sequence(first, spread_embedding(context))
    return first


# Kernels that add up a gradient which no product makes, where products add theirs themselves.
ADDED_APART = {"accumulate_fp32": "accumulate_wide", "accumulate_16bit": "accumulate"}


def _table_gradient(context: LayerContext) -> Pass:
    """Returns the zeros of a lookup's gradient, as large as a rank's table (PyTorch
    aten/src/ATen/native/cuda/Embedding.cu, embedding_dense_backward_cuda: at::zeros), and its sum with that of
    earlier micro-batches, by a kernel of its own, since no product makes it (Megatron-Core
    core/distributed/distributed_data_parallel.py, main_grad.add_(grad)). Tied on one stage autograd adds it to the
    head's gradient instead, unless that product has added up its own."""
    layout, hidden = context.layout, context.layout.constant(context.model.hidden)
    accumulation, dtype = context.job.preset.data_parallel.accumulation, context.job.precision.activation
    rows = ceil_div(embedding_elements(context), hidden)
    sums_with_head = (layout.pp == 1) & (context.model.tied_embeddings and accumulation not in ADDED_APART)
    table = OpKey(Module.EMBEDDING, Role.TABLE)
    zeros = table.served_by(Role.ZERO, "embedding.table.zeros")
    backward = [memory_pass(zeros, Phase.WEIGHT_GRAD, "fill", rows, dtype, hidden)]
    if sums_with_head.any():
        what = table.served_by(Role.ACCUMULATE, "embedding.table.join")
        shared_rows = np.where(sums_with_head, rows, 0)
        backward.append(memory_pass(what, Phase.WEIGHT_GRAD, "accumulate", shared_rows, dtype, hidden))
    if accumulation:
        what = table.served_by(Role.ACCUMULATE, "embedding.table.accumulate")
        added = ADDED_APART.get(accumulation, accumulation)
        own_rows = np.where(sums_with_head, 0, rows)
        backward.append(memory_pass(what, Phase.WEIGHT_GRAD, added, own_rows, dtype, hidden))
    return Pass(backward=tuple(backward))


def head(context: LayerContext) -> Pass:
    """Returns the final norm and the vocabulary projection.

    Tied to the embedding it owns no weights of its own, unless the two stand on different stages: then
    each keeps a copy.
    """
    layout, model = context.layout, context.model
    vocab = padded_vocab(context)
    width = ceil_div(vocab, layout.tp) if context.traits.cuts_vocabulary else vocab
    layer = Linear(
        module=Module.HEAD,
        role=Role.LOGITS,
        tokens=context.gemm_rows,
        inputs=layout.constant(model.hidden),
        outputs=width,
        saved_bytes=context.activations(context.saved_rows, model.hidden),
        bias=model.head_bias,
        # 8-bit recipes leave the head alone (Megatron-LM's output layer, torchtitan's filter_fqns) unless
        # they are set not to (Megatron-LM d98e8a6 extensions/transformer_engine.py,
        # TELMHeadColumnParallelLinear).
        dtype="" if context.job.precision.low_precision_head else context.job.precision.compute,
    )
    logits = linear(context, layer)
    if model.tied_embeddings:
        # The embedding has counted the table already; only on another stage is there a second copy.
        copies = (layout.pp > 1).astype(np.int64)
        owned = tuple(replace(op, parameters=op.parameters * copies) for op in logits.forward)
        logits = replace(logits, forward=owned)
    gathers = context.job.preset.loss.gathers_logits and context.traits.cuts_vocabulary
    entry = norm(context, Module.HEAD, context.norm_rows) if model.final_norm else Pass()
    if model.residual_streams > 1:
        from ops.residual_streams import mix_streams

        entry = sequence(mix_streams(context, Module.HEAD, expands=False), entry)
    return sequence(
        entry,
        context.sharding.column_parallel_input(context, layer.key, model.hidden),
        *weight_collectives(context, layer),
        logits,
        _soft_cap(context, layer) if model.logit_softcap else Pass(),
        _gather_logits(context, layer) if gathers else Pass(),
    )


def _soft_cap(context: LayerContext, projection: Linear) -> Pass:
    """Returns soft-capped logits; where the loss takes a chunk of tokens after another, none of them are kept."""
    what = Identity(module=Module.HEAD, role=Role.ACTIVATION, name="head.softcap")
    capped = soft_cap(context, what, projection.tokens, projection.outputs)
    if not context.job.preset.loss.chunked:
        return capped
    return Pass(
        forward=tuple(replace(op, saved_bytes=0.0 * op.saved_bytes) for op in capped.forward), backward=capped.backward
    )


def _gather_logits(context: LayerContext, projection: Linear) -> Pass:
    """Returns every rank's slice of the logits on every rank: an all-gather into a list of slices, which are then
    joined; backward each rank cuts its own slice out of the gradient."""
    layout = context.layout
    rows = np.where(layout.tp > 1, projection.tokens, 0)
    whole = projection.outputs * layout.tp
    gather = collective(
        OpKey(Module.HEAD, Role.GATHER),
        Phase.FORWARD,
        Collective.ALL_GATHER,
        Axis.TP,
        context.activations(rows, whole),
        context.job.precision.activation,
    )

    def copy(width: IntArray) -> Pass:
        return kernel(context, Kernel(OpKey(Module.HEAD, Role.COPY).named("head.join"), "copy", rows, width))

    return Pass(forward=(gather, *copy(whole).forward), backward=copy(projection.outputs).backward)


def loss(context: LayerContext) -> Pass:
    """Returns the cross-entropy over this rank's slice of the vocabulary, or over the whole of it where the framework
    gathers the logits; it brings logits to fp32, and their gradient back, where it says so.

    Vocab-parallel: three small all-reduces of one fp32 per token (maximum, predicted logit, sum of
    exponentials; Megatron-LM, ``vocab_parallel_cross_entropy``).
    """
    chosen, rows = context.job.preset.loss, context.gemm_rows
    whole = chosen.gathers_logits or not context.traits.cuts_vocabulary
    width = padded_vocab(context) if whole else ceil_div(padded_vocab(context), context.layout.tp)
    name, saved_bytes, transient_bytes = _loss_kernel(context)
    upcasts = chosen.fused and chosen.upcasts and not chosen.chunked
    entropy = kernel(
        context,
        Kernel(
            OpKey(Module.LOSS, Role.CROSS_ENTROPY),
            name,
            rows,
            width,
            saved_bytes=saved_bytes * rows * width,
            transient_bytes=transient_bytes * rows * width,
            dtype="fp32" if upcasts else "",
        ),
    )
    if upcasts:
        cast = Kernel(OpKey(Module.LOSS, Role.CAST, Role.CROSS_ENTROPY), "cast", rows, width)
        entropy = sequence(kernel(context, cast), entropy)
    if whole:
        return entropy
    # one fp32 number a token
    what, size = OpKey(Module.LOSS, Role.REDUCE), 4 * context.tokens
    reduced = collective(what, Phase.FORWARD, Collective.ALL_REDUCE, Axis.TP, size, "fp32")
    return sequence(entropy, Pass(forward=(replace(reduced, repeat=3),)))


def _loss_kernel(context: LayerContext) -> tuple[str, float, float]:
    """Returns the kernel, and the bytes a logit keeps until the backward and takes beyond them at the loss's peak.

    Logits that the framework keeps are those of this micro-batch and, at the peak, of the one before. Fused:
    the logits, whose place their gradient takes, or an fp32 copy of them and one of it that the labels are
    shifted against (transformers 4.4x, LlamaForCausalLM.forward: logits.float(), shift_logits.contiguous());
    chunked, a chunk of them for a moment, whose gradient is spent at once (Liger,
    ops/fused_linear_cross_entropy.py). Megatron-LM's: the logits and the softmax in fp32, whose place its
    gradient takes (core/tensor_parallel/cross_entropy.py). Held: fp32 logits beside it till the loss is done.
    PyTorch's: the logits and the log-softmax in fp32; in the backward the gradients of the loss and of the
    log-softmax are two more fp32 tensors (aten/src/ATen/native/LossNLL.cpp and cuda/SoftMax.cu write each
    into a new one). Low precision: the same in 16 bits, beside the logits, which their caller holds (Picotron train.py,
    train_step: outputs).
    """
    preset, logit_bytes = context.job.preset, context.activation_bytes
    output_bytes = logit_bytes if preset.pipeline.keeps_stage_outputs else 0.0
    if preset.loss.chunked:
        return "cross_entropy_fused", 0.0, 0.0
    if preset.loss.fused and preset.loss.upcasts:
        return "cross_entropy_fused", 4.0, 4.0 + output_bytes
    if preset.loss.fused:
        return "cross_entropy_fused", logit_bytes, output_bytes
    if preset.loss.keeps_fp32_logits:
        return "cross_entropy", 4.0, 4.0
    if preset.loss.low_precision:
        return "cross_entropy_16bit", 2 * logit_bytes, output_bytes + 2 * logit_bytes
    if preset.loss.plain:
        return "cross_entropy_unfused", output_bytes + 4.0, output_bytes + 8.0
    return "cross_entropy", logit_bytes + 4.0, output_bytes
