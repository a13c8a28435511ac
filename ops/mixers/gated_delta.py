"""Gated DeltaNet as Megatron-LM runs it: projection, convolution, norms of queries and keys, the delta rule,
gated norm, projection.

Source: arXiv 2412.06464; Megatron-LM core/ssm/gated_delta_net/gdn.py and common.py for the order of things,
what is copied (queries and keys are repeated for the heads that share them) and the exchanges of context
parallelism. The rule itself is ops.mixers.delta_rule.
"""

from dataclasses import dataclass

from ops.context import LayerContext
from ops.head_exchange import HeadTensor, HeadTensors
from ops.memory_bound import Kernel, kernel
from ops.mixers.delta_rule import DeltaRule, delta_rule
from ops.mixers.mixer_row import MixerRow
from ops.mixers.projections import core_heads, core_length, into_mixer, out_of_mixer, projected_heads
from ops.op import Piece, sequence
from ops.roles import Module, OpKey, Role
from ops.strategies.sharding import Sharding
from spec.arrays import IntArray, ceil_div
from spec.mixers.gated_delta import GatedDeltaSpec

FP32_BYTES = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Channels on one rank of all its keys (and of its queries), of all its values, and its value heads."""

    keys: IntArray
    values: IntArray
    heads: IntArray


def _projected(context: LayerContext, sharding: Sharding, spec: GatedDeltaSpec) -> Widths:
    heads = projected_heads(context, sharding, spec.num_value_heads)
    keys = projected_heads(context, sharding, spec.num_key_heads) * spec.key_dim
    return Widths(keys=keys, values=heads * spec.value_dim, heads=heads)


def _project(context: LayerContext, sharding: Sharding, spec: GatedDeltaSpec) -> Piece:
    """Queries, keys, values, gates, write strengths and decays of every token in one product."""
    own = _projected(context, sharding, spec)
    outputs = 2 * own.keys + 2 * own.values + 2 * own.heads
    return into_mixer(context, sharding, OpKey(Module.GATED_DELTA, Role.PROJECTION), outputs)


def _output(context: LayerContext, sharding: Sharding, spec: GatedDeltaSpec) -> Piece:
    """The product back to hidden states."""
    values = _projected(context, sharding, spec).values
    return out_of_mixer(context, sharding, OpKey(Module.GATED_DELTA, Role.OUT), values)


def _exchanged(spec: GatedDeltaSpec) -> HeadTensors:
    """gdn.py, a2a_cp_to_hp of what the projection gives; common.py, a2a_hp_to_cp of what the norm gives."""
    keys, values = spec.num_key_heads, spec.num_value_heads
    return HeadTensors(
        module=Module.GATED_DELTA,
        into=(
            HeadTensor(name="q", heads=keys, dim=spec.key_dim),
            HeadTensor(name="k", heads=keys, dim=spec.key_dim),
            HeadTensor(name="v", heads=values, dim=spec.value_dim),
            HeadTensor(name="z", heads=values, dim=spec.value_dim),
            HeadTensor(name="beta", heads=values, dim=1),
            HeadTensor(name="alpha", heads=values, dim=1),
        ),
        out=(HeadTensor(name="out", heads=values, dim=spec.value_dim),),
    )


def _core(context: LayerContext, sharding: Sharding, spec: GatedDeltaSpec) -> Piece:
    """Everything between the projections: over whole sequences of this rank's heads."""
    heads = core_heads(context, spec.num_value_heads)
    keys = core_heads(context, spec.num_key_heads) * spec.key_dim
    rows = context.layout.micro_batch * core_length(context)
    widths = Widths(keys=keys, values=heads * spec.value_dim, heads=heads)
    rule = DeltaRule(
        sequences=context.layout.micro_batch * heads,
        length=core_length(context),
        key_dim=spec.key_dim,
        value_dim=spec.value_dim,
    )
    own = _projected(context, sharding, spec)
    return sequence(
        _convolution(context, rows, widths, spec.conv_kernel * (2 * own.keys + own.values)),
        _prepared(context, rows, widths, spec),
        _decays(context, rows, widths, own),
        delta_rule(context, rule),
        _gated_norm(context, rows, widths, spec),
    )


def _convolution(context: LayerContext, rows: IntArray, widths: Widths, parameters: IntArray) -> Piece:
    """Over queries, keys and values, with its SiLU. It keeps a view of the projection's output, and so all of it."""
    mixed = 2 * widths.keys + widths.values
    return kernel(
        context,
        Kernel(
            module=Module.GATED_DELTA,
            role=Role.CONVOLUTION,
            kernel="causal_conv1d",
            rows=rows,
            width=mixed,
            saved_bytes=context.activations(rows, mixed + widths.values + 2 * widths.heads),
            transient_bytes=context.activations(rows, mixed),
            parameters=parameters,
        ),
    )


def _prepared(context: LayerContext, rows: IntArray, widths: Widths, spec: GatedDeltaSpec) -> Piece:
    """common.py, _prepare_input_for_gated_delta_rule: queries and keys in one piece, normed head by head
    (flash-linear-attention modules/l2norm.py keeps what it gives), repeated for the value heads that share
    them; values and gates in one piece each. The rule keeps its queries, keys and values, the gated norm its
    gates."""
    shared = spec.num_value_heads // spec.num_key_heads
    both = 2 * widths.keys
    normed = Kernel(
        module=Module.GATED_DELTA,
        role=Role.NORM,
        serves=Role.PROJECTION,
        name="gated_delta.qk_norm",
        kernel="rmsnorm",
        rows=rows * ceil_div(both, spec.key_dim),
        width=spec.key_dim,
        saved_bytes=context.activations(rows, both) * (shared > 1),
    )
    # a copy reads and writes as much; repeating reads once what it writes ``shared`` times
    repeated = ceil_div(both * (1 + shared), 2) if shared > 1 else 0
    copied = Kernel(
        module=Module.GATED_DELTA,
        role=Role.COPY,
        kernel="copy",
        rows=rows,
        width=both + 2 * widths.values + repeated,
        saved_bytes=context.activations(rows, both * shared + 2 * widths.values),
    )
    return sequence(kernel(context, normed), kernel(context, copied))


def _decays(context: LayerContext, rows: IntArray, widths: Widths, own: Widths) -> Piece:
    """gdn.py, _compute_gates: softplus of the decays in fp32, of which the rule keeps the sums over a chunk, and the
    sigmoid of the write strengths, which it keeps."""
    return kernel(
        context,
        Kernel(
            module=Module.GATED_DELTA,
            role=Role.CORE,
            name="gated_delta.decays",
            kernel="cast",
            rows=rows,
            width=2 * widths.heads,
            saved_bytes=(FP32_BYTES + context.activation_bytes) * rows * widths.heads,
            parameters=2 * own.heads,
        ),
    )


def _gated_norm(context: LayerContext, rows: IntArray, widths: Widths, spec: GatedDeltaSpec) -> Piece:
    """common.py, _apply_gated_norm: each head's output normed, times SiLU of its gate; both keep what they
    read, and the gate stands already in one piece."""
    normed = Kernel(
        module=Module.GATED_DELTA,
        role=Role.NORM,
        serves=Role.OUT,
        name="gated_delta.inner_norm",
        kernel="rmsnorm",
        rows=rows * widths.heads,
        width=spec.value_dim,
        saved_bytes=context.activations(rows, widths.values),
        parameters=spec.value_dim,
    )
    gated = Kernel(
        module=Module.GATED_DELTA,
        role=Role.OUTPUT_GATE,
        kernel="swiglu",
        rows=rows,
        width=widths.values,
        saved_bytes=context.activations(rows, widths.values),
    )
    return sequence(kernel(context, normed), kernel(context, gated))


GATED_DELTA = MixerRow(
    module=Module.GATED_DELTA,
    project=_project,
    core=_core,
    output=_output,
    exchanged=_exchanged,
    context_parallel=frozenset({"all_to_all"}),
)
