"""Operations that run again in the backward: whole layers, named modules, every second product."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from ops.memory_bound import KERNELS
from ops.op import Attention, Axis, BatchedGemm, Comm, GroupedGemm, MemoryBound, Op, Ops, Pass, Phase, as_recompute
from ops.roles import Module, OpKey, Role
from spec.arrays import FloatArray, IntArray
from spec.collectives import Collective
from spec.dtypes import dtype_bytes
from spec.frameworks import Recomputation

# A layer's input, which recomputation saves, and the norm that reads it.


def rerun_bytes(first: Op, input_bytes: FloatArray) -> FloatArray:
    """Returns the bytes that a layer's first operation holds while the layer runs again, beyond the ``input_bytes``
    of its input: a norm that saves what it reads as it is saves that very tensor."""
    transient: FloatArray = first.transient_bytes + first.saved_bytes
    if first.role is not Role.NORM:
        return transient
    return transient - np.where(first.saved_bytes == input_bytes, input_bytes, 0.0)


# torchtitan's selective recomputation: of the matrix products every second runs again.
#
# Source: torchtitan ``activation_checkpoint.py`` (selective, option "op"): the outputs of attention kernels,
# of reduce-scatters and of the first, third, ... product of a layer are kept, everything else is made again.
# Its layers have separate query, key, value, gate and up products, which count one by one also where this
# project runs them as one.

EVERY_SECOND_PRODUCT = "every_second_product"
ATTENTION_OUT = OpKey(Module.ATTENTION, Role.OUT)


def every_second_product(block: Pass, input_bytes: FloatArray, until: int | None = None) -> Pass:
    """Returns the block with torchtitan's policy applied; ``input_bytes`` is the layer's input, which is saved. Of
    the forward's operations only the first ``until`` run again (torch.utils.checkpoint, early_stop, which holds for a
    policy too)."""
    cores = [op for op in block.forward if isinstance(op, Attention)]
    core = cores[0] if cores else None
    gated = any(_is_gate(op) for op in block.forward)
    # Gate and up as one product of ours are two of torchtitan's, unless the gate is a product of its own already.
    apart = any(op.role is Role.GATE for op in block.forward)
    forward: list[Op] = []
    repeated: list[Op] = []
    products = 0
    last = len(block.forward) if until is None else until
    for index, op in enumerate(block.forward):
        saved = input_bytes if index == 0 else 0.0 * op.saved_bytes
        if isinstance(op, BatchedGemm) and op.role is not Role.CORE:
            widths = _products(op, core, fused_gate=gated and not apart)
            # The policy counts products through the whole layer: even ones are saved, odd ones run again. Of a fused
            # product it may be q that stays and k that is repeated.
            stay = sum((w for i, w in enumerate(widths) if (products + i) % 2 == 0), 0 * op.n)
            products += len(widths)
            # Results of 8-bit products are 16-bit.
            saved = saved + max(dtype_bytes(op.dtype), 2.0) * op.m * stay
            # its input is the attention kernel's result, which the policy saves too
            if op.key == ATTENTION_OUT:
                saved = saved + op.saved_bytes
            if np.any(op.n > stay) and index < last:
                repeated.append(as_recompute(replace(op, n=op.n - stay)))
        elif isinstance(op, Attention):
            # q, k and v come from products that the policy has decided on; the kernel's own output stays
            saved = saved + op.saved_bytes - op.input_bytes
        elif not _is_saved(op) and index < last:
            repeated.append(as_recompute(op))
        transient = op.transient_bytes + op.saved_bytes if index else rerun_bytes(op, input_bytes)
        forward.append(replace(op, saved_bytes=saved, transient_bytes=transient))
    return Pass(forward=tuple(forward), backward=(*repeated, *block.backward))


def _is_gate(op: Op) -> bool:
    """Returns whether it multiplies gate and up; a mixer's own gate does neither."""
    return isinstance(op, MemoryBound) and KERNELS[op.kernel].gated and op.role is Role.ACTIVATION


def _is_saved(op: Op) -> bool:
    """Returns whether the policy saves its result: a reduce-scatter's, and those of attention to parts of a sequence."""
    if op.role is Role.RING_P2P or op.serves is Role.CORE:
        return True
    return isinstance(op, Comm) and op.collective is Collective.REDUCE_SCATTER


def _products(op: BatchedGemm, core: Attention | None, *, fused_gate: bool) -> list[IntArray]:
    """Returns the output widths of the products that one of ours stands for."""
    if op.role is Role.QKV and core is not None:
        key = core.kv_heads * core.qk_dim
        value = core.kv_heads * core.v_dim
        return [op.n - key - value, key, value]
    if fused_gate and op.role is Role.UP:
        return [op.n // 2, op.n - op.n // 2]
    return [op.n]


# Which forward operations run again in the backward, and what is kept instead.
#
# Source: Korthikanti et al. 2022 (arXiv 2205.05198) sec. 5: full recomputation keeps a layer's input
# and repeats its forward; selective recomputation repeats the attention core alone, torchtitan's every second
# product (ops.recompute).

CORE_ATTENTION = "core_attn"
# What selective recomputation of the attention core repeats: its kernels, and the router's top-k over its scores.
SCORES = frozenset(
    {
        OpKey(Module.ATTENTION, Role.CORE),
        OpKey(Module.ATTENTION, Role.RING),
        OpKey(Module.ATTENTION, Role.RING_P2P),
        OpKey(Module.ATTENTION, Role.BIAS),
        OpKey(Module.ATTENTION, Role.SOFTMAX),
        OpKey(Module.ATTENTION, Role.DROPOUT),
        OpKey(Module.ATTENTION, Role.JOIN_HEADS),
        OpKey(Module.MOE, Role.TOP_K),
    }
)
BF16_BYTES = 2.0


class Recompute(StrEnum):
    """The part of a layer that is run again: SELECTIVE what the preset selects; BLOCK everything in the first
    num_recompute_layers layers of every chunk of a stage and nothing in the others (Megatron-LM,
    recompute_method "block")."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"
    BLOCK = "block"


PLAIN = Recomputation()


def recompute_layer(block: Pass, mode: Recompute, input_bytes: FloatArray, chosen: Recomputation = PLAIN) -> Pass:
    """Returns the block with ``mode`` applied as a framework has ``chosen`` to: what selective recomputation repeats,
    whether full recomputation ends with the last thing needed, and what it keeps of attention too; ``input_bytes`` is
    what full recomputation keeps.

    With full recomputation what the layer saves lives only while its own backward runs: it moves from
    ``saved_bytes`` to ``transient_bytes``.
    """
    if mode is Recompute.NONE:
        return block
    if mode is Recompute.SELECTIVE and chosen.selective != EVERY_SECOND_PRODUCT:
        return _repeat(block, lambda op: op.key in SCORES, keep=None)
    until = _num_needed(block) if chosen.stops_early else None
    if mode is Recompute.SELECTIVE:
        return every_second_product(block, input_bytes, until)
    whole = _repeat(block, lambda op: True, keep=input_bytes, until=until)
    return _keep(block, whole, chosen.keeps, input_bytes) if chosen.keeps else whole


# By what full recomputation keeps: the operations that make it.
MLPS = (Module.MLP, Module.MOE)
MAKERS: dict[str, frozenset[OpKey]] = {
    "qkv": frozenset({OpKey(Module.ATTENTION, Role.QKV), OpKey(Module.ATTENTION, Role.ROTARY)}),
    "context": frozenset({OpKey(Module.ATTENTION, Role.CORE), OpKey(Module.ATTENTION, Role.RING)}),
    "out": frozenset({OpKey(Module.ATTENTION, Role.OUT)}),
    "up": frozenset(OpKey(module, role) for module in MLPS for role in (Role.GATE, Role.UP)),
}


def _keep(block: Pass, again: Pass, names: Collection[str], input_bytes: FloatArray) -> Pass:
    """Returns the layer run again whole with the results ``names`` saved: queries, keys and values as attention reads
    them, its own result, its output product's (as large as a layer's input) or those of gate and up. What makes them
    does not run again (MaxText ``layers/attentions.py``, ``linears.py`` and ``moe.py``: checkpoint_name behind the
    rotary embedding, the kernel and each product). Casts of inputs for the weight gradients do. ``Assumption:`` casts
    of weights too, which nobody needs and which take little."""
    makers = frozenset[OpKey]().union(*(MAKERS[name] for name in names))

    def makes(op: Op) -> bool:
        return op.served in makers and op.role is not Role.CAST

    def more(op: Op) -> FloatArray:
        none = 0.0 * input_bytes
        if isinstance(op, Attention):
            output_bytes = np.maximum(op.saved_bytes - op.input_bytes, 0.0)
            both: FloatArray = ("qkv" in names) * op.input_bytes + ("context" in names) * output_bytes
            return both
        if not isinstance(op, (BatchedGemm, GroupedGemm)) or op.phase is not Phase.FORWARD:
            return none
        if op.role is Role.OUT:
            # A 16-bit product reads the attention kernel's own output; with an fp8 product the kernel saves it itself.
            read = op.saved_bytes if dtype_bytes(op.dtype) >= BF16_BYTES else none
            return ("out" in names) * input_bytes + ("context" in names) * read
        return BF16_BYTES * op.m * op.n if "up" in names and op.served in MAKERS["up"] else none

    forward = tuple(
        replace(op, saved_bytes=op.saved_bytes + more(was), transient_bytes=op.transient_bytes - more(was))
        if isinstance(op, Attention)
        else replace(op, saved_bytes=op.saved_bytes + more(was))
        for op, was in zip(again.forward, block.forward, strict=True)
    )
    backward = tuple(op for op in again.backward if not (op.phase is Phase.RECOMPUTE and makes(op)))
    return Pass(forward=forward, backward=backward)


def _num_needed(block: Pass) -> int:
    """Returns how many of the forward operations bring back all that the backward needs: a last product's input is
    known before it runs, and nothing after it keeps anything (torch.utils.checkpoint, early_stop)."""
    keeping = [index for index, op in enumerate(block.forward) if op.saved_bytes.any()]
    last = keeping[-1] if keeping else -1
    return last + int(last < 0 or not isinstance(block.forward[last], BatchedGemm))


def _repeat(block: Pass, chosen: Callable[[Op], bool], keep: FloatArray | None, until: int | None = None) -> Pass:
    """Returns the block with the chosen ones of the first ``until`` forward operations copied into the backward; what
    they saved is dropped."""
    again: Ops = tuple(as_recompute(op) for op in block.forward[:until] if chosen(op))
    forward = []
    for op in block.forward:
        if not chosen(op):
            forward.append(op)
            continue
        saved: FloatArray = 0.0 * op.saved_bytes
        transient: FloatArray = op.transient_bytes + op.saved_bytes
        # Selective: what the core reads stays, since it makes nothing of it again. Full: the layer's input alone
        # stays.
        if keep is None:
            saved = _inputs_of_core(op)
        elif op is block.forward[0]:
            saved, transient = keep, rerun_bytes(op, keep)
        forward.append(replace(op, saved_bytes=saved, transient_bytes=transient))
    backward = tuple(op for op in block.backward if keep is None or not _gathers_weights(op))
    return Pass(forward=tuple(forward), backward=again + backward)


def _gathers_weights(op: Op) -> bool:
    """Returns whether an operation is isp's gather before the backward: the repeated forward has just gathered the
    same weights, and InternEvo keeps them until the layer's backward is done."""
    return isinstance(op, Comm) and op.axis is Axis.WP and op.phase is Phase.INPUT_GRAD


def _inputs_of_core(op: Op) -> FloatArray:
    """Returns the bytes that the attention core needs to run again: q, k and v, without its own by-products."""
    return op.input_bytes if isinstance(op, Attention) else 0.0 * op.saved_bytes


# Parts of a layer that run again in the backward by name, as Megatron-LM's recompute_modules.
#
# Source where no other is named: Megatron-LM ``core/transformer/moe/README.md``, "Checkpointing", and
# ``transformer_config.py``, recompute_modules. What a part hands on is dropped and made again; its own input
# stays. Norms before linears that Transformer Engine fuses them into are not modules of their own and stay as
# they are.


def _in(module: Module, *roles: Role) -> frozenset[OpKey]:
    return frozenset(OpKey(module, role) for role in roles)


ROUTER, DENSE_UP = OpKey(Module.MOE, Role.ROUTER), OpKey(Module.MLP, Role.UP)
LATENT = OpKey(Module.ATTENTION, Role.KV_DOWN)
SHARED_INNER = _in(Module.SHARED_EXPERTS, Role.ACTIVATION, Role.DOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputedModule:
    """``again`` are the operations, or the modules whole, that run again with all that serves them; ``drops``
    those that need not keep what they saved (the attention core: its inputs); only where an operation ``where``
    is in the layer.
    """

    again: frozenset[Module | OpKey]
    drops: frozenset[OpKey]
    where: OpKey | None = None

    @property
    def begins_with_norm(self) -> bool:
        """Returns whether norms before linears are among what runs again."""
        return any(isinstance(part, OpKey) and part.role is Role.NORM for part in self.again)


# By the name of the module; "layernorm" is two, before experts and before MLA's projections.
MODULES: dict[str, tuple[RecomputedModule, ...]] = {
    "moe_act": (
        RecomputedModule(
            again=_in(Module.MOE, Role.CLAMP, Role.ACTIVATION), drops=_in(Module.MOE, Role.CLAMP, Role.DOWN)
        ),
    ),
    "layernorm": (
        RecomputedModule(
            again=_in(Module.MLP, Role.NORM), drops=_in(Module.SHARED_EXPERTS, Role.UP) | {ROUTER}, where=ROUTER
        ),
        RecomputedModule(
            again=_in(Module.ATTENTION, Role.NORM), drops=_in(Module.ATTENTION, Role.Q_DOWN, Role.KV_DOWN), where=LATENT
        ),
    ),
    # DeepSeek-V3 (arXiv 2412.19437 sec. 3.2.3): every RMSNorm runs again and nothing keeps what it makes.
    "norm": (
        RecomputedModule(
            again=_in(Module.ATTENTION, Role.NORM) | _in(Module.MLP, Role.NORM),
            drops=_in(Module.ATTENTION, Role.QKV, Role.Q_DOWN, Role.KV_DOWN)
            | _in(Module.MLP, Role.UP)
            | _in(Module.SHARED_EXPERTS, Role.UP)
            | {ROUTER},
        ),
    ),
    # InternEvo's dropout_selective_checkpoint (internlm/model/modeling_internlm.py): residual add and norm.
    "dropout_norm": (
        RecomputedModule(
            again=_in(Module.ATTENTION, Role.NORM, Role.RESIDUAL) | _in(Module.MLP, Role.NORM),
            drops=frozenset(),
            where=DENSE_UP,
        ),
    ),
    "mla_up_proj": (
        RecomputedModule(
            again=_in(Module.ATTENTION, Role.Q_UP, Role.KV_UP, Role.ROTARY),
            drops=_in(Module.ATTENTION, Role.Q_UP, Role.KV_UP, Role.CORE),
            where=LATENT,
        ),
    ),
    "mlp": (
        RecomputedModule(
            again=_in(Module.MLP, Role.NORM, Role.GATE, Role.UP, Role.ACTIVATION, Role.DOWN),
            drops=_in(Module.MLP, Role.UP, Role.ACTIVATION, Role.DOWN),
            where=DENSE_UP,
        ),
    ),
    "shared_experts": (RecomputedModule(again=frozenset({Module.SHARED_EXPERTS}), drops=SHARED_INNER),),
    "moe": (
        RecomputedModule(
            again=frozenset({Module.MOE, Module.SHARED_EXPERTS}),
            drops=SHARED_INNER
            | _in(Module.MOE, Role.TOP_K, Role.UP, Role.CLAMP, Role.ACTIVATION, Role.DOWN)
            | _in(Module.MOE, Role.LATENT_DOWN, Role.LATENT_UP),
            where=ROUTER,
        ),
    ),
}


def affecting_modules(block: Pass, names: Iterable[str]) -> tuple[str, ...]:
    """Returns those of the named modules that do anything to ``block``; KeyError for an unknown name."""
    keys = {op.key for op in block.forward}
    return tuple(
        name
        for name in sorted(names)
        if any(
            (one.where is None or one.where in keys)
            and (keys & one.drops or any(op.is_within(one.again) for op in block.forward))
            for one in MODULES[name]
        )
    )


def recompute_parts(block: Pass, names: Iterable[str], *, norms_lead: bool = True) -> Pass:
    """Returns ``block`` with the named modules run again; KeyError for an unknown name. Unless norms make what
    linears read (``norms_lead``), parts that begin with a norm stay as they are: they could not be made again from
    its input."""
    present = {op.key for op in block.forward}
    modules = [
        module
        for name in sorted(names)
        for module in MODULES[name]
        if (module.where is None or module.where in present) and (norms_lead or not module.begins_with_norm)
    ]
    again = tuple(as_recompute(op) for op in block.forward if any(op.is_within(m.again) for m in modules))
    # What a part makes is saved by whoever reads it: those readers drop their copy, and the part's own input stays.
    dropped = {key for module in modules for key in module.drops}
    forward = tuple(_drop_saved(op) if op.key in dropped else op for op in block.forward)
    return Pass(forward=forward, backward=again + block.backward)


def _drop_saved(op: Op) -> Op:
    """Returns the operation with what it saved living only while its layer runs."""
    saved = 0.0 * op.saved_bytes
    if isinstance(op, Attention):
        saved = np.maximum(op.saved_bytes - op.input_bytes, 0.0)
    return replace(op, saved_bytes=saved, transient_bytes=op.transient_bytes + op.saved_bytes - saved)
