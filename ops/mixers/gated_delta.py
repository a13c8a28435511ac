"""Gated DeltaNet as Megatron-LM runs it: projection, convolution, norms of queries and keys, the delta rule,
gated norm, projection.

Source: arXiv 2412.06464; Megatron-LM core/ssm/gated_delta_net/gdn.py and common.py for the order of things,
what is copied (queries and keys are repeated for the heads that share them) and the exchanges of context
parallelism. The rule itself is ops.mixers.gated_delta.
"""

from dataclasses import dataclass, replace

from ops.context import HeadTensor, HeadTensors, LayerContext
from ops.linear import column_parallel, linear, weight_collectives
from ops.memory_bound import Kernel, kernel
from ops.mixers.mixer import MixerRow, core_heads, into_mixer, out_of_mixer, projected_heads
from ops.op import BatchedGemm, Linear, Pass, Phase, as_recompute, gemm, sequence
from ops.roles import Module, OpKey, Role
from spec.arrays import IntArray, ceil_div
from spec.mixers.gated_delta import GatedDeltaSpec

# The gated delta rule over chunks as products, kernel by kernel of flash-linear-attention.
#
# Source: fla/ops/gated_delta_rule/chunk.py (chunk_gated_delta_rule_fwd, _bwd, save_for_backward), chunk_fwd.py,
# wy_fast.py, fla/ops/common/chunk_delta_h.py and chunk_o.py: every ``tl.dot`` is counted, with chunks of 64
# tokens (gdn.py). A head of a chunk is one problem; its operands are C x K queries and keys, C x V values, K x
# V states, C x C scores.
#
# ``Assumption:`` products of one kernel that share a dimension run as one batched product of their FLOPs,
# masked halves cost as much as the rest, and the recurrence, one block of threads a head that takes chunk after
# chunk, runs as a product whose inner dimension is the sequence.

CHUNK = 64
# Solving a chunk's triangle multiplies 16 pairs of 16 x 16 blocks (chunk_fwd.py, step 4): as much as 16 more channels
# of the keys do.
SOLVE_CHANNELS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaRule:
    """A rank's ``sequences`` (one for each head of a micro-batch) of ``length`` tokens."""

    sequences: IntArray
    length: IntArray
    key_dim: int
    value_dim: int
    channel_decay: bool = False

    @property
    def chunks(self) -> IntArray:
        """Returns the chunks of one sequence; the last one is padded."""
        return ceil_div(self.length, CHUNK)


def delta_rule(context: LayerContext, rule: DeltaRule) -> Pass:
    """Returns forward and backward; the backward first makes the WY representation and the states again."""
    forward = _forward(context, rule)
    _, weights, recurrence, *_ = forward
    return Pass(forward=forward, backward=(as_recompute(weights), as_recompute(recurrence), *_backward(context, rule)))


def _forward(context: LayerContext, rule: DeltaRule) -> tuple[BatchedGemm, ...]:
    """Returns the kernels of the forward: scores of keys against keys with their triangle solved (saved, C x C); w
    and u of the WY representation; the corrected values and the states; queries against keys; the output from states
    and values."""
    k, v = rule.key_dim, rule.value_dim
    tokens = rule.sequences * rule.chunks * CHUNK
    states = rule.sequences * rule.chunks * k * v
    # w, u, the corrected values and every chunk's state wait for the kernel after them
    waiting = context.activation_bytes * (tokens * (k + 2 * v) + states)
    # (m, k, n) of each product; those that share two dimensions are written as one with the sum of the third
    solved = _chunk_product(context, rule, "solve", (CHUNK, k + SOLVE_CHANNELS, CHUNK))
    scores = _chunk_product(context, rule, "scores", (CHUNK, k, CHUNK))
    return (
        replace(solved, saved_bytes=context.activation_bytes * tokens * CHUNK),
        _chunk_product(context, rule, "weights", (CHUNK, CHUNK, k + v)),
        replace(_recurrence(context, rule, "recurrence", 2), transient_bytes=waiting + 0.0),
        replace(scores, saved_bytes=context.activation_bytes * tokens * CHUNK * rule.channel_decay),
        _chunk_product(context, rule, "outputs", (CHUNK, k + CHUNK, v)),
    )


def _backward(context: LayerContext, rule: DeltaRule) -> tuple[BatchedGemm, ...]:
    """Returns the kernels of the backward: chunk_bwd_dv_local, chunk_gated_delta_rule_bwd_dhu, chunk_bwd_dqkwg and
    prepare_wy_repr_bwd, in that order. With decays of channels fla/ops/kda/chunk_bwd.py and chunk_intra.py (bc3b101), which
    have the same products but for both kinds of scores: those are saved."""
    k, v = rule.key_dim, rule.value_dim
    shapes = {
        "d_values_scores": (CHUNK, k, CHUNK),
        "d_values": (CHUNK, CHUNK, v),
        "d_scores": (CHUNK, v, CHUNK),
        # of queries, keys and w through the states
        "d_through_states": (3 * CHUNK, v, k),
        "d_within": (2 * CHUNK, CHUNK, k),
        "d_solved": (CHUNK, k + v, CHUNK),
        "d_weights": (CHUNK, CHUNK, k + v),
        "d_solve": (CHUNK, CHUNK, 2 * CHUNK),
        "solve_scores": (CHUNK, k, CHUNK),
        "d_solve_keys": (2 * CHUNK, CHUNK, k),
    }
    first, second, *rest = (
        replace(_chunk_product(context, rule, name, shape), phase=Phase.INPUT_GRAD)
        for name, shape in shapes.items()
        if not (rule.channel_decay and name in SAVED_SCORES)
    )
    recurrence = replace(_recurrence(context, rule, "d_recurrence", 3), phase=Phase.INPUT_GRAD)
    return (first, second, recurrence, *rest)


SAVED_SCORES = ("d_values_scores", "solve_scores")


def _chunk_product(context: LayerContext, rule: DeltaRule, name: str, shape: tuple[int, int, int]) -> BatchedGemm:
    """Returns a product of ``shape`` (m, k, n) for every head of every chunk."""
    m, k, n = (context.layout.constant(size) for size in shape)
    return gemm(
        OpKey(Module.GATED_DELTA, Role.CORE).named(f"gated_delta.{name}"),
        Phase.FORWARD,
        (rule.sequences * rule.chunks, m, k, n),
        "NN",
        context.job.precision.activation,
    )


def _recurrence(context: LayerContext, rule: DeltaRule, name: str, products: int) -> BatchedGemm:
    """Returns ``products`` products of C x K x V a chunk, one chunk after the other."""
    return replace(
        _chunk_product(context, rule, name, (rule.key_dim, 1, rule.value_dim)),
        batch=rule.sequences,
        # chunks depend on each other: one long product a head instead of a batch of short ones
        k=products * rule.chunks * CHUNK,
        layout="TN",
    )


FP32_BYTES = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Channels on one rank of all its keys (and of its queries), of all its values, and its value heads."""

    keys: IntArray
    values: IntArray
    heads: IntArray


def _projection_widths(context: LayerContext, spec: GatedDeltaSpec) -> Widths:
    heads = projected_heads(context, spec.num_value_heads)
    keys = projected_heads(context, spec.num_key_heads) * spec.key_dim
    return Widths(keys=keys, values=heads * spec.value_dim, heads=heads)


def projections(context: LayerContext, spec: GatedDeltaSpec) -> Pass:
    """Returns queries, keys, values, gates, write strengths and decays of every token in one product."""
    own = _projection_widths(context, spec)
    outputs = 2 * own.keys + 2 * own.values + 2 * own.heads
    if spec.gate_rank:
        outputs = 2 * own.keys + own.values + own.heads
    elif spec.channel_decay:
        outputs = 3 * own.keys + 2 * own.values + own.heads
    joined = into_mixer(context, OpKey(Module.GATED_DELTA, Role.PROJECTION), outputs)
    return sequence(joined, _low_rank_gates(context, spec, own)) if spec.gate_rank else joined


def _low_rank_gates(context: LayerContext, spec: GatedDeltaSpec, own: Widths) -> Pass:
    """Returns decays and output gates: a product to ``gate_rank`` channels of each, whole on every rank for its own tokens, of
    hidden states that the first product keeps; and one of each to a rank's channels, here one of both."""
    rank = 2 * spec.gate_rank
    down = Linear(
        module=Module.GATED_DELTA,
        role=Role.LATENT_DOWN,
        tokens=context.norm_rows,
        inputs=context.layout.constant(context.model.hidden),
        outputs=context.layout.constant(rank),
        saved_bytes=0.0 * context.norm_rows,
    )
    up = Linear(
        module=Module.GATED_DELTA,
        role=Role.LATENT_UP,
        tokens=context.gemm_rows,
        inputs=context.layout.constant(spec.gate_rank),
        outputs=own.keys + own.values,
        saved_bytes=context.activations(context.saved_rows, rank),
        gathered="input",
    )
    return sequence(*weight_collectives(context, down), linear(context, down), column_parallel(context, up, width=rank))


def output(context: LayerContext, spec: GatedDeltaSpec) -> Pass:
    """Returns the product back to hidden states."""
    values = _projection_widths(context, spec).values
    return out_of_mixer(context, OpKey(Module.GATED_DELTA, Role.OUT), values)


def core_tensors(spec: GatedDeltaSpec) -> HeadTensors:
    """Returns the activations that context parallelism exchanges: gdn.py, a2a_cp_to_hp of what the projection gives;
    common.py, a2a_hp_to_cp of what the norm gives."""
    keys, values = spec.num_key_heads, spec.num_value_heads
    return HeadTensors(
        module=Module.GATED_DELTA,
        into=(
            HeadTensor(name="q", heads=keys, dim=spec.key_dim),
            HeadTensor(name="k", heads=keys, dim=spec.key_dim),
            HeadTensor(name="v", heads=values, dim=spec.value_dim),
            HeadTensor(name="z", heads=values, dim=spec.value_dim),
            HeadTensor(name="beta", heads=values, dim=1),
            HeadTensor(name="alpha", heads=values, dim=spec.key_dim if spec.channel_decay else 1),
        ),
        out=(HeadTensor(name="out", heads=values, dim=spec.value_dim),),
    )


def core(context: LayerContext, spec: GatedDeltaSpec) -> Pass:
    """Returns everything between the projections: over whole sequences of this rank's heads."""
    heads = core_heads(context, spec.num_value_heads)
    keys = core_heads(context, spec.num_key_heads) * spec.key_dim
    rows = context.layout.micro_batch * context.core_sequence
    widths = Widths(keys=keys, values=heads * spec.value_dim, heads=heads)
    rule = DeltaRule(
        sequences=context.layout.micro_batch * heads,
        length=context.core_sequence,
        key_dim=spec.key_dim,
        value_dim=spec.value_dim,
        channel_decay=spec.channel_decay,
    )
    # Kernels run over this rank's heads of the core; weights are those of the heads whose projections it holds.
    own = _projection_widths(context, spec)
    return sequence(
        _convolution(context, rows, widths, spec.conv_kernel * (2 * own.keys + own.values)),
        _prepare_inputs(context, rows, widths, spec),
        _channel_decays(context, rows, widths, own) if spec.channel_decay else _decays(context, rows, widths, own),
        delta_rule(context, rule),
        _norm_and_gate(context, rows, widths, spec),
    )


def _convolution(context: LayerContext, rows: IntArray, widths: Widths, parameters: IntArray) -> Pass:
    """Returns the convolution over queries, keys and values, with its SiLU. It saves a view of the projection's
    output, and so all of it."""
    mixed = 2 * widths.keys + widths.values
    return kernel(
        context,
        Kernel(
            OpKey(Module.GATED_DELTA, Role.CONVOLUTION),
            "causal_conv1d",
            rows,
            mixed,
            saved_bytes=context.activations(rows, mixed + widths.values + 2 * widths.heads),
            transient_bytes=context.activations(rows, mixed),
            parameters=parameters,
        ),
    )


def _prepare_inputs(context: LayerContext, rows: IntArray, widths: Widths, spec: GatedDeltaSpec) -> Pass:
    """Returns the copies of common.py, _prepare_input_for_gated_delta_rule: queries and keys in one piece, normed
    head by head (flash-linear-attention modules/l2norm.py keeps what it gives), repeated for the value heads that
    share them; values and gates in one piece each. The rule keeps its queries, keys and values, the gated norm its
    gates."""
    shared = spec.num_value_heads // spec.num_key_heads
    both = 2 * widths.keys
    normed = Kernel(
        OpKey(Module.GATED_DELTA, Role.NORM, Role.PROJECTION).named("gated_delta.qk_norm"),
        "rmsnorm",
        rows * ceil_div(both, spec.key_dim),
        spec.key_dim,
        saved_bytes=context.activations(rows, both) * (shared > 1),
    )
    # a copy reads and writes as much; repeating reads once what it writes ``shared`` times
    repeated = ceil_div(both * (1 + shared), 2) if shared > 1 else 0
    copied = Kernel(
        OpKey(Module.GATED_DELTA, Role.COPY),
        "copy",
        rows,
        both + 2 * widths.values + repeated,
        saved_bytes=context.activations(rows, both * shared + 2 * widths.values),
    )
    return sequence(kernel(context, normed), kernel(context, copied))


def _decays(context: LayerContext, rows: IntArray, widths: Widths, own: Widths) -> Pass:
    """Returns gdn.py, _compute_gates: softplus of the decays in fp32, of which the rule saves the sums over a chunk,
    and the sigmoid of the write strengths, which it saves."""
    return kernel(
        context,
        Kernel(
            OpKey(Module.GATED_DELTA, Role.CORE).named("gated_delta.decays"),
            "cast",
            rows,
            2 * widths.heads,
            saved_bytes=(FP32_BYTES + context.activation_bytes) * rows * widths.heads,
            parameters=2 * own.heads,
        ),
    )


def _channel_decays(context: LayerContext, rows: IntArray, widths: Widths, own: Widths) -> Pass:
    """Returns fla/ops/kda/gate.py, kda_gate_chunk_cumsum: softplus and running sums of each channel's decay in fp32, again in
    the backward, of the product's output, which is saved with the sigmoid of the write strengths. The convolution's view
    (``_convolution``) is of twice as many heads' numbers as stand there, which are few."""
    channels = widths.keys + widths.heads
    what = OpKey(Module.GATED_DELTA, Role.CORE).named("gated_delta.decays")
    made = kernel(
        context,
        Kernel(
            what,
            "cast",
            rows,
            channels,
            saved_bytes=context.activations(rows, channels),
            parameters=own.keys + own.heads,
        ),
    )
    return replace(made, backward=(*map(as_recompute, made.forward), *made.backward))


def _norm_and_gate(context: LayerContext, rows: IntArray, widths: Widths, spec: GatedDeltaSpec) -> Pass:
    """Returns common.py, _apply_gated_norm: each head's output normed, times SiLU of its gate; both save what they
    read, and the gate stands already in one piece."""
    normed = Kernel(
        OpKey(Module.GATED_DELTA, Role.NORM, Role.OUT).named("gated_delta.inner_norm"),
        "rmsnorm",
        rows * widths.heads,
        spec.value_dim,
        saved_bytes=context.activations(rows, widths.values),
        parameters=spec.value_dim,
    )
    gated = Kernel(
        OpKey(Module.GATED_DELTA, Role.OUTPUT_GATE),
        "swiglu",
        rows,
        widths.values,
        saved_bytes=context.activations(rows, widths.values),
    )
    return sequence(kernel(context, normed), kernel(context, gated))


GATED_DELTA = MixerRow(
    module=Module.GATED_DELTA,
    projections=projections,
    core=core,
    output=output,
    core_tensors=core_tensors,
    context_parallel=frozenset({"all_to_all"}),
)
