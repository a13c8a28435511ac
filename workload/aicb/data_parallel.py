"""DeepSpeed ZeRO-1 and 2 and PyTorch FSDP as general workloads: rows by the tensors of a model.

All other workloads here are the operations that the solver prices (workload.stage_work). These, with ZeRO-3 in
workload.aicb.zero3, differ by design, as DeepSpeed and FSDP do from the list of operations:

| here | list of operations (ops/) | source | |---|---|---| | a row for each tensor of the checkpoint: queries, keys,
values, gate and up apart, every expert | joined and grouped products | DeepSpeed cuts buckets, owners and persistence
at tensors (runtime/zero/stage_1_and_2.py, stage3.py) | | broadcasts and gathers of the start | the step alone |
runtime/engine.py, zero/partition_parameters.py | | gathers by hooks, prefetch queue and reuse distance | a gather a
module, overlapped | zero/partitioned_param_coordinator.py | | gradient norm and overflow flag | not priced |
``get_grad_norm_direct``, ``has_overflow`` |"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from spec.mixers.mixer import LeafModule, Tensor, linear_module, norm_module, parameter_module
from spec.model import ACTIVATION_PARAMETERS, BlockSpec, MlpSpec, ModelSpec, MoeSpec, NormKind, PositionKind
from spec.parameters import mix_parameters
from workload.aicb.csv_workload import COMPUTATION, EPOCH_END, GeneralItem

ELEMENT_BYTES = 2  # bf16 or fp16 parameters and gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroOptions:
    """One training. Sizes are elements; defaults are DeepSpeed's (``DeepSpeedZeroConfig`` of
    runtime/zero/config.py). ``allgather_bucket_size`` None: one all-gather, as DeepSpeed does where torch has
    all_gather_into_tensor (runtime/utils.py ``all_gather_dp_groups``). ``tokens`` of a micro-batch on one
    rank."""

    ranks: int
    stage: int
    num_micro: int
    tokens: int
    epochs: int = 1
    reduce_bucket_size: int = 500_000_000
    allgather_bucket_size: int | None = None
    prefetch_bucket_size: int = 50_000_000
    param_persistence_threshold: int = 100_000
    model_persistence_threshold: int = 2**63 - 1
    max_live_parameters: int = 1_000_000_000
    max_reuse_distance: int = 1_000_000_000
    use_multi_rank_bucket_allreduce: bool = True
    fp16: bool = False
    computation: bool = False

    def padded(self, elements: int) -> int:
        """Elements rounded up to a whole number for every rank."""
        return -(-elements // self.ranks) * self.ranks

    def comm(self, kind: str, elements: int, stage: str, *, dst: int | None = None) -> GeneralItem:
        """A collective of parameters or gradients over the data-parallel group."""
        return replace(self.scalar(elements * ELEMENT_BYTES, stage), comm_type=kind, dst=dst)

    def scalar(self, size_bytes: int, stage: str) -> GeneralItem:
        """A small all-reduce."""
        return GeneralItem(
            comm_type="all_reduce", comm_group="dp_group", comm_group_size=self.ranks, msg_size=size_bytes, stage=stage
        )

    def products(self, module: LeafModule, direction: str) -> Iterator[GeneralItem]:
        """The matrix products of a module: one forward, input and weight gradient backward."""
        if not self.computation or module.name.startswith("embed"):
            return
        for tensor in module.tensors:
            if len(tensor.shape) != 2:
                continue
            outputs, inputs = tensor.shape
            shapes = [((self.tokens, inputs), (inputs, outputs))]
            if direction == "backward":
                shapes = [((self.tokens, outputs), tensor.shape), ((outputs, self.tokens), (self.tokens, inputs))]
            for pair in shapes:
                yield GeneralItem(comm_type=COMPUTATION, shapes=pair, stage=f"{direction}.{module.name}")


# A model's parameter tensors one by one, module by module, as its checkpoint names them.
#
# DeepSpeed and FSDP cut what they send along these tensors; their sizes sum to spec.parameters.


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Modules that belong together: a layer, the embedding, or the end of the model."""

    name: str
    modules: tuple[LeafModule, ...]


def model_units(model: ModelSpec) -> tuple[Unit, ...]:
    """Embedding, every decoder layer, final norm and head, in forward order. A tied head owns nothing;
    multi-token-prediction blocks are left out, as in the published counts."""
    hidden = model.hidden
    first = [linear_module("embed_tokens", (model.vocab + model.extra_embedding_rows, hidden))]
    if model.position is PositionKind.LEARNED:
        first.append(linear_module("embed_positions", (model.max_positions, hidden)))
    if model.rope_scales:
        first.append(parameter_module("rope_scales", (model.rope_scales,)))
    if model.embedding_norm:
        first.append(_norm("embed_norm", hidden, model.norm))
    units = [Unit(name="embedding", modules=tuple(first))]
    layer = 0
    for run in model.main_blocks:
        for _ in range(run.count):
            modules = (
                *block_modules(run.block, hidden, f"layers.{layer}"),
                *_mixes(model, f"layers.{layer}", run.block.num_halves),
            )
            units.append(Unit(name=f"layers.{layer}", modules=modules))
            layer += 1
    last = [
        *_mixes(model, "head", 1, expands=False),
        *([_norm("norm", hidden, model.norm)] if model.final_norm else []),
    ]
    if not model.tied_embeddings:
        last.append(linear_module("lm_head", (model.vocab, hidden), bias=model.head_bias))
    return (*units, Unit(name="head", modules=tuple(last)))


def _mixes(model: ModelSpec, prefix: str, halves: int, *, expands: bool = True) -> Iterator[LeafModule]:
    if model.residual_streams > 1:
        for half in range(halves):
            yield parameter_module(f"{prefix}.mix.{half}", (mix_parameters(model, expands=expands),))


def block_modules(block: BlockSpec, hidden: int, prefix: str) -> Iterator[LeafModule]:
    """The modules of one block in forward order."""
    place = block.norm_place
    if block.mixer is not None:
        if place.leads:
            yield _norm(f"{prefix}.input_norm", hidden, block.norm)
        yield from block.mixer.modules(hidden, f"{prefix}.{block.mixer.name}")
        for name, stands in (("mixer_output_norm", place.follows), ("mixer_closing_norm", place.closes)):
            if stands:
                yield _norm(f"{prefix}.{name}", hidden, block.norm)
    if block.feeds_forward and place.leads_second:
        yield _norm(f"{prefix}.post_norm", hidden, block.norm)
    if block.moe is not None:
        yield from _experts(block.moe, hidden, f"{prefix}.moe")
    elif block.mlp is not None:
        yield from _mlp(block.mlp, hidden, f"{prefix}.mlp")
    if block.moe is not None and block.moe.output_norm:
        yield _norm(f"{prefix}.moe.output_norm", hidden, block.norm)
    ranks = {
        "condition": block.condition_rank,
        "first_gate": block.first_gate_rank,
        "second_gate": block.second_gate_rank,
    }
    for name, rank in ranks.items():
        if rank:
            yield linear_module(f"{prefix}.{name}_down", (rank, hidden))
            yield linear_module(f"{prefix}.{name}_up", (hidden, rank))
    for name, stands in (("output_norm", place.follows), ("closing_norm", place.closes)):
        if block.feeds_forward and stands:
            yield _norm(f"{prefix}.{name}", hidden, block.norm)


def _norm(name: str, width: int, kind: NormKind) -> LeafModule:
    module = norm_module(name, width, bias=True)
    return replace(module, tensors=module.tensors[: kind.vectors])


def _mlp(mlp: MlpSpec, hidden: int, prefix: str) -> Iterator[LeafModule]:
    names = ("gate", "up") if mlp.gated else ("up",)
    for name in names:
        yield linear_module(f"{prefix}.{name}", (mlp.ffn_hidden, hidden), bias=mlp.bias)
    if mlp.activation in ACTIVATION_PARAMETERS:
        yield parameter_module(f"{prefix}.activation", (ACTIVATION_PARAMETERS[mlp.activation],))
    if mlp.inner_norm:
        yield norm_module(f"{prefix}.inner_norm", mlp.ffn_hidden, bias=mlp.inner_norm > 1)
    yield linear_module(f"{prefix}.down", (hidden, mlp.ffn_hidden), bias=mlp.bias)


def _experts(moe: MoeSpec, hidden: int, prefix: str) -> Iterator[LeafModule]:
    router = [Tensor(name=f"{prefix}.router.weight", shape=(moe.num_experts, hidden))]
    if moe.router_bias:
        router.append(Tensor(name=f"{prefix}.router.bias", shape=(moe.num_experts,)))
    yield LeafModule(name=f"{prefix}.router", tensors=tuple(router))
    if moe.latent_hidden:
        yield linear_module(f"{prefix}.latent_down", (moe.latent_hidden, hidden), bias=moe.bias)
        yield linear_module(f"{prefix}.latent_up", (hidden, moe.latent_hidden), bias=moe.bias)
    for expert in range(moe.num_experts):
        one = MlpSpec(ffn_hidden=moe.expert_ffn_hidden, gated=moe.gated, bias=moe.bias)
        yield from _mlp(one, moe.routed_hidden(hidden), f"{prefix}.experts.{expert}")
    if moe.shared_ffn_hidden:
        shared = MlpSpec(ffn_hidden=moe.shared_ffn_hidden, gated=moe.gated, bias=moe.bias)
        yield from _mlp(shared, hidden, f"{prefix}.shared")
        if moe.shared_gate:
            yield linear_module(f"{prefix}.shared_gate", (1, hidden))


# DeepSpeed ZeRO-1 and ZeRO-2 as a general workload, with one optimizer parameter group.
#
# Source: DeepSpeed 0.17.5, runtime/zero/stage_1_and_2.py. Stage 2 reduces from hooks of the backward of every
# micro-batch (``process_gradients``), stage 1 without overlap_comm (its default) after the last micro-batch in
# the order of the parameters (``reduce_gradients``). A bucket goes when the next gradient would not fit
# (``reduce_independent_p_g_buckets_and_remove_grads``); ``average_tensor`` cuts it where the owner of the
# gradient changes and ``allreduce_and_scatter`` all-reduces pieces until they pass the bucket size, or, without
# ``use_multi_rank_bucket_allreduce``, ``allreduce_no_retain`` reduces each owner's pieces to it. ``step``:
# ``check_overflow`` in fp16 alone (bf16.check_grad_overflow is off), ``get_grad_norm_direct`` (one fp32),
# ``all_gather_dp_groups``: one gather where torch has all_gather_into_tensor, shards of the all-gather bucket
# otherwise. ``contiguous_gradients`` copies gradients into one buffer and moves nothing else.

# ``nccl_start_alignment_factor``: the flat buffer holds a multiple of so many elements a rank.
ALIGNMENT = 2


def zero12_items(modules: tuple[LeafModule, ...], options: ZeroOptions) -> Iterator[GeneralItem]:
    """All rows of one rank."""
    tensors = [tensor for module in modules for tensor in module.tensors]
    flat = _Flat(tensors, options)
    if options.ranks > 1:
        for tensor in tensors:  # engine.py ``_broadcast_model``
            yield options.comm("broadcast", tensor.elements, f"init.{tensor.name}")
    yield GeneralItem(comm_type=EPOCH_END)
    for _ in range(options.epochs):
        for _ in range(options.num_micro):
            for module in modules:
                yield from options.products(module, "forward")
            yield from _backward(modules, flat, options)
        if options.ranks > 1 and options.stage < 2:
            yield from _buckets(tensors, flat, options)
        if options.ranks > 1:
            yield from _step(flat, options)
        yield GeneralItem(comm_type=EPOCH_END)


class _Flat:
    """The flat buffer of all parameters, cut evenly over the ranks: who owns which part of a tensor."""

    def __init__(self, tensors: list[Tensor], options: ZeroOptions) -> None:
        self.start: dict[str, int] = {}
        end = 0
        for tensor in tensors:
            self.start[tensor.name] = end
            end += tensor.elements
        unit = ALIGNMENT * options.ranks
        self.elements = -(-end // unit) * unit
        self.owned = self.elements // options.ranks

    def parts(self, tensor: Tensor) -> Iterator[tuple[int, int]]:
        """(owner, elements) of the pieces of a tensor, first to last."""
        low = self.start[tensor.name]
        high = low + tensor.elements
        cuts = [low, *range((low // self.owned + 1) * self.owned, high, self.owned), high]
        for begin, end in pairwise(cuts):
            yield begin // self.owned, end - begin


def _backward(modules: tuple[LeafModule, ...], flat: _Flat, options: ZeroOptions) -> Iterator[GeneralItem]:
    """Modules last to first; stage 2 sends full buckets as they fill up, the rest when it is done."""
    pending: list[Tensor] = []
    reduces = options.ranks > 1 and options.stage == 2
    for module in reversed(modules):
        yield from options.products(module, "backward")
        if reduces:
            pending += reversed(module.tensors)
            pending, full = full_buckets(pending, options)
            for bucket in full:
                yield from _reduction(bucket, flat, options)
    if reduces:
        yield from _buckets(pending, flat, options)


def _buckets(tensors: list[Tensor], flat: _Flat, options: ZeroOptions) -> Iterator[GeneralItem]:
    """Gradients of ``tensors`` in this order, the last bucket too."""
    rest, full = full_buckets(tensors, options)
    for bucket in (*full, rest):
        if bucket:
            yield from _reduction(bucket, flat, options)


def full_buckets(tensors: list[Tensor], options: ZeroOptions) -> tuple[list[Tensor], list[list[Tensor]]]:
    """Returns the open bucket, and the buckets that were sent because the next tensor did not fit."""
    bucket: list[Tensor] = []
    full: list[list[Tensor]] = []
    elements = 0
    for tensor in tensors:
        if bucket and elements + tensor.elements > options.reduce_bucket_size:
            full.append(bucket)
            bucket, elements = [], 0
        bucket.append(tensor)
        elements += tensor.elements
    return bucket, full


def _reduction(bucket: list[Tensor], flat: _Flat, options: ZeroOptions) -> Iterator[GeneralItem]:
    """One bucket, as the pieces of its owners."""
    pieces: list[tuple[int, int]] = []
    for tensor in bucket:
        for owner, elements in flat.parts(tensor):
            if pieces and pieces[-1][0] == owner:
                pieces[-1] = (owner, pieces[-1][1] + elements)
            else:
                pieces.append((owner, elements))
    if options.use_multi_rank_bucket_allreduce:
        for elements in _gathered([size for _, size in pieces], options.reduce_bucket_size):
            yield options.comm("all_reduce", elements, "backward.allreduce_bucket")
        return
    for owner in dict.fromkeys(owner for owner, _ in pieces):
        mine = [size for each, size in pieces if each == owner]
        for elements in _gathered(mine, options.reduce_bucket_size):
            yield options.comm("reduce", elements, "backward.average_tensor", dst=owner)


def _gathered(sizes: list[int], limit: int) -> Iterator[int]:
    """Sums of neighbours, each let go once it passes the limit."""
    total = 0
    for size in sizes:
        total += size
        if total > limit:
            yield total
            total = 0
    if total:
        yield total


def _step(flat: _Flat, options: ZeroOptions) -> Iterator[GeneralItem]:
    """Overflow flag (one byte, stage 2 alone asks the other ranks), gradient norm, parameters back."""
    if options.fp16 and options.stage == 2:
        yield options.scalar(1, "step.has_overflow")
    yield options.scalar(4, "step.get_grad_norm_direct")
    num_shards, shard = 1, flat.owned
    if options.allgather_bucket_size is not None:
        num_shards = max(flat.elements // options.allgather_bucket_size, 1)
        shard = flat.owned // num_shards
        shard -= shard % ALIGNMENT
    for index in range(num_shards):
        part = flat.owned - shard * index if index == num_shards - 1 else shard
        if part:
            yield options.comm("all_gather", part * options.ranks, "step.all_gather_dp_groups")


# PyTorch FSDP as a general workload.
#
# Source: arXiv 2304.11277 sec. 3.2-3.3 and torch.distributed.fsdp: one unit a layer, embedding, final norm and
# head in the root unit; FULL_SHARD (stage 3) gathers a unit before its forward and again before its backward,
# SHARD_GRAD_OP (stage 2) once; the root is not let go between the two. Every backward reduce-scatters the
# unit's gradient.


def fsdp_items(units: tuple[Unit, ...], options: ZeroOptions) -> Iterator[GeneralItem]:
    """All rows of one rank; stage 0 (NO_SHARD) all-reduces each unit's gradient."""
    layers = [unit for unit in units if unit.name.startswith("layers.")]
    root = sum(_elements(unit) for unit in units if unit not in layers)
    yield GeneralItem(comm_type=EPOCH_END)
    for _ in range(options.epochs):
        for _ in range(options.num_micro):
            yield from _fsdp_forward(units, layers, root, options)
            yield from _fsdp_backward(units, layers, root, options)
        if options.ranks > 1:
            yield options.scalar(4, "step.grad_norm")
        yield GeneralItem(comm_type=EPOCH_END)


def _elements(unit: Unit) -> int:
    return sum(module.elements for module in unit.modules)


def _moved(kind: str, elements: int, stage: str, options: ZeroOptions) -> Iterator[GeneralItem]:
    if options.ranks > 1:
        yield options.comm(kind, options.padded(elements), stage)


def _fsdp_forward(
    units: tuple[Unit, ...], layers: list[Unit], root: int, options: ZeroOptions
) -> Iterator[GeneralItem]:
    gathers = options.stage >= 2
    if gathers:
        yield from _moved("all_gather", root, "forward.root", options)
    for unit in units:
        if gathers and unit in layers:
            yield from _moved("all_gather", _elements(unit), f"forward.{unit.name}", options)
        for module in unit.modules:
            yield from options.products(module, "forward")


def _fsdp_backward(
    units: tuple[Unit, ...], layers: list[Unit], root: int, options: ZeroOptions
) -> Iterator[GeneralItem]:
    reduction = "reduce_scatter" if options.stage >= 2 else "all_reduce"
    for unit in reversed(units):
        inner = unit in layers
        if options.stage == 3 and inner:
            yield from _moved("all_gather", _elements(unit), f"backward.{unit.name}", options)
        for module in reversed(unit.modules):
            yield from options.products(module, "backward")
        if inner:
            yield from _moved(reduction, _elements(unit), f"backward.{unit.name}", options)
    yield from _moved(reduction, root, "backward.root", options)
