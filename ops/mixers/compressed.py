"""DeepSeek-V4's attention: queries of a low rank, one key for all heads, entries that stand for many tokens, a grouped product out.

Source: Megatron-LM branch dev (d48d6be) ``core/transformer/experimental_attention_variant``: deepseek_v4_hybrid_attention.py (the
order of things; an output rotated back in memory of its own), csa.py (a compressor's products in 16 bits under lower formats too),
csa_utils/fused_compressor.py (the pooling as one kernel, which keeps channels and weights), csa_utils/fused_sparse_attention.py (one
kernel over the keys of a window and entries, which keeps its inputs, output and the numbers of the keys).
"""

from dataclasses import replace

from ops.context import HeadTensor, HeadTensors, LayerContext
from ops.linear import column_parallel, linear, weight_collectives
from ops.memory_bound import Kernel, kernel, memory_pass
from ops.mixers.indexer import INDEX_BYTES, Index, detached_linear, mean_keys, selection
from ops.mixers.mixer import MixerRow, out_of_mixer
from ops.op import Attention, BatchedGemm, Linear, Op, Pass, Phase, sequence
from ops.roles import Module, OpKey, Role
from spec.arrays import FloatArray, IntArray, ints
from spec.mixers.compressed import CompressedAttentionSpec


def projections(context: LayerContext, mixer: CompressedAttentionSpec) -> Pass:
    """Returns queries and the key, normed and rotated, the entries, and the indexer's queries and entries."""
    hidden, rows = context.model.hidden, context.gemm_rows
    q_rank, width = mixer.q_lora_rank, mixer.num_heads * mixer.head_dim
    own = context.activations(rows, hidden)
    # products that read one input keep it once, unless each keeps a copy in a lower format
    again = own * _keeps_copies(context)
    rotated = (mixer.num_heads + 1) * mixer.rope_dim
    pieces = [
        _product(context, Role.Q_DOWN, (hidden, q_rank), own),
        _norm(context, Role.Q_UP, "q_norm", rows, q_rank, q_rank),
        _product(context, Role.Q_UP, (q_rank, width), context.activations(rows, q_rank)),
        _norm(context, Role.CORE, "head_norm", rows * mixer.num_heads, mixer.head_dim, 0),
        _product(context, Role.KV_DOWN, (hidden, mixer.head_dim), again),
        _norm(context, Role.KV_DOWN, "kv_norm", rows, mixer.head_dim, mixer.head_dim),
        kernel(context, Kernel(OpKey(Module.ATTENTION, Role.ROTARY), "rotary", rows, rotated)),
    ]
    if mixer.rate:
        channels = 2 * mixer.series * mixer.head_dim
        pieces += [
            _product(context, Role.COMPRESS, (hidden, channels), again, context.job.precision.activation),
            _pool(context, mixer, Role.COMPRESS, mixer.head_dim),
        ]
    if mixer.index_heads:
        pieces += _index(context, mixer)
    return sequence(*pieces)


def _keeps_copies(context: LayerContext) -> bool:
    if not context.job.precision.low_precision_linear:
        return False
    from ops.low_precision import keeps_low_precision

    return keeps_low_precision(context)


FURTHER = (Role.KV_DOWN, Role.COMPRESS)
"""Products that read the hidden states after the first."""


def _product(context: LayerContext, role: Role, shape: tuple[int, int], saved: FloatArray, dtype: str = "") -> Pass:
    layer = Linear(
        module=Module.ATTENTION,
        role=role,
        tokens=context.gemm_rows,
        inputs=context.layout.constant(shape[0]),
        outputs=context.layout.constant(shape[1]),
        saved_bytes=saved,
        dtype=dtype,
        gathered="input",
    )
    # gradients of the hidden states are added up, one kernel for each further product that reads them
    return column_parallel(context, layer, width=shape[0], first=role not in FURTHER)


def _norm(context: LayerContext, serves: Role, name: str, rows: IntArray, width: int, weights: int) -> Pass:
    what = OpKey(Module.ATTENTION, Role.NORM, serves).named(f"attention.{name}")
    saved = context.activations(rows, width)
    return kernel(context, Kernel(what, context.model.norm.kernel, rows, width, saved_bytes=saved, parameters=weights))


def _pool(context: LayerContext, mixer: CompressedAttentionSpec, role: Role, dim: int) -> Pass:
    """Returns entries: channels of ``rate`` tokens weighed by a softmax over them, as one kernel that reads both and keeps them;
    backward it reads them again and writes their gradients. Then a norm and the rotation of the entries."""
    rows, name = context.gemm_rows, f"attention.{role}"
    read, entries = 2 * mixer.series * dim, ints(rows // mixer.rate)
    what = OpKey(Module.ATTENTION, Role.SOFTMAX, role).named(f"{name}_pool")
    dtype, width = context.job.precision.activation, context.layout.constant(read + dim // mixer.rate)
    pooled = replace(
        memory_pass(what, Phase.FORWARD, "norm_reduce", rows, dtype, width),
        saved_bytes=context.activations(rows, read),
        parameters=context.layout.constant(mixer.rate * mixer.series * dim),
    )
    gradient = memory_pass(what, Phase.INPUT_GRAD, "copy", rows, dtype, width)
    rotary = OpKey(Module.ATTENTION, Role.ROTARY, role).named(f"{name}_rotary")
    return sequence(
        Pass(forward=(pooled,), backward=(gradient,)),
        _norm(context, role, f"{role}_norm", entries, dim, dim),
        kernel(context, Kernel(rotary, "rotary", entries, mixer.rope_dim)),
    )


def _index(context: LayerContext, mixer: CompressedAttentionSpec) -> list[Pass]:
    """Returns the indexer's queries, and its entries and the weights of its heads, made of inputs that get no gradient."""
    rows, hidden, dim = context.gemm_rows, context.model.hidden, mixer.index_dim
    width = mixer.index_heads * dim
    rotary = OpKey(Module.ATTENTION, Role.ROTARY, Role.INDEX_Q).named("attention.index_rotary")
    kept = rows > context.norm_rows
    return [
        detached_linear(context, Role.INDEX_Q, mixer.q_lora_rank, width, kept),
        kernel(context, Kernel(rotary, "rotary", rows, mixer.index_heads * mixer.rope_dim)),
        detached_linear(context, Role.INDEX_K, hidden, 2 * mixer.series * dim + mixer.index_heads, kept),
        _pool(context, mixer, Role.INDEX_K, dim),
    ]


def core(context: LayerContext, mixer: CompressedAttentionSpec) -> Pass:
    """Returns the selection of entries, and one kernel over the keys of the window and entries.

    Assumption: it takes what attention to as many keys takes, on average over the queries of a sequence.
    """
    layout, job = context.layout, context.job
    length = context.core_sequence
    rows, heads, dim = layout.micro_batch * length, mixer.num_heads, mixer.head_dim
    entries = length // mixer.rate if mixer.rate else 0 * length
    most = mixer.window + (mixer.index_topk or entries)
    keys = mean_keys(length, 1, mixer.window)
    if mixer.rate:
        keys = keys + mean_keys(length, mixer.rate, mixer.index_topk or None)
    pieces = []
    if mixer.index_heads:
        index = Index(
            heads=mixer.index_heads,
            dim=mixer.index_dim,
            topk=mixer.index_topk,
            num_heads=heads,
            channels=dim,
            rate=mixer.rate,
        )
        pieces.append(selection(context, index))
    # queries and output, keys with their entries, a statistic of each row, the numbers of the keys
    inputs = context.activations(rows, heads * dim) + context.activations(layout.micro_batch * (length + entries), dim)
    forward = Attention(
        module=Module.ATTENTION,
        role=Role.CORE,
        phase=Phase.FORWARD,
        batch=layout.micro_batch,
        q_len=length,
        kv_len=keys,
        heads=layout.constant(heads),
        kv_heads=layout.constant(1),
        qk_dim=layout.constant(dim),
        v_dim=layout.constant(dim),
        mask="full",
        kernel=job.attention_kernel if job.flash_attention else "core",
        dtype=job.precision.attention,
        saved_bytes=inputs + context.activations(rows, heads * dim) + 4.0 * rows * heads + INDEX_BYTES * rows * most,
        input_bytes=inputs,
        parameters=layout.constant(heads),
    )
    nothing = 0.0 * forward.saved_bytes
    backward = replace(
        forward, phase=Phase.INPUT_GRAD, direction="backward", saved_bytes=nothing, parameters=0 * forward.parameters
    )
    return sequence(*pieces, Pass(forward=(forward,), backward=(backward,)))


def output(context: LayerContext, mixer: CompressedAttentionSpec) -> Pass:
    """Returns the outputs rotated back, a product of each group of heads, and the product back to hidden states."""
    rows, groups, rank = context.gemm_rows, mixer.out_groups, mixer.out_rank
    width = mixer.num_heads * mixer.head_dim
    rotary = OpKey(Module.ATTENTION, Role.ROTARY, Role.OUT_DOWN).named("attention.out_rotary")
    # the whole output is written anew, as its kernel keeps it as it was
    rotated = kernel(context, Kernel(rotary, "rotary", rows, width))
    down = Linear(
        module=Module.ATTENTION,
        role=Role.OUT_DOWN,
        tokens=rows,
        inputs=context.layout.constant(width // groups),
        outputs=context.layout.constant(groups * rank),
        saved_bytes=context.activations(rows, width),
        # a plain batched product
        dtype=context.job.precision.activation,
    )
    grouped = sequence(*weight_collectives(context, down), _in_groups(linear(context, down), groups))
    return sequence(
        rotated,
        grouped,
        out_of_mixer(context, OpKey(Module.ATTENTION, Role.OUT), context.layout.constant(groups * rank)),
    )


SPLIT = {Phase.FORWARD: "n", Phase.INPUT_GRAD: "k", Phase.WEIGHT_GRAD: "m"}
"""The size of a product that is a linear's outputs."""


def _in_groups(product: Pass, groups: int) -> Pass:
    """Returns a linear's products as so many, each of its share of the outputs."""

    def split(op: Op) -> Op:
        if not isinstance(op, BatchedGemm):
            return op
        size = SPLIT[op.phase]
        return replace(op, batch=op.batch * groups, **{size: getattr(op, size) // groups})

    return Pass(forward=tuple(map(split, product.forward)), backward=tuple(map(split, product.backward)))


def core_tensors(mixer: CompressedAttentionSpec) -> HeadTensors:
    """Returns queries, the key, and the output."""
    q, out = (HeadTensor(name=name, heads=mixer.num_heads, dim=mixer.head_dim) for name in ("q", "out"))
    return HeadTensors(module=Module.ATTENTION, into=(q, HeadTensor(name="k", heads=1, dim=mixer.head_dim)), out=(out,))


# A window and entries begin in what other ranks hold: no kind of context parallelism.
COMPRESSED = MixerRow(
    module=Module.ATTENTION, projections=projections, core=core, output=output, core_tensors=core_tensors
)
