"""Muon (arXiv 2502.16982 sec. 2): the momentum of every matrix of a layer, orthogonalised, is its update.

Source: Megatron-LM ``core/optimizer/layer_wise_optimizer.py`` (whole matrices are dealt to data-parallel
ranks, to the one with the least work by ``_ns_compute_cost``; gradients and parameters travel as with AdamW)
and ``emerging_optimizers.py`` (matrices of layers alone: embedding, head, norms and biases keep AdamW;
queries, keys and values apart; tp_mode "duplicated": every tensor-parallel rank gathers the momentum and
works on all of it); Emerging-Optimizers ``muon_utils.py``, newton_schulz (five steps of three products in
bf16), and ``orthogonalized_optimizer.py``, step (the passes around them). ``Assumption:`` all matrices of
layers are cut over tensor-parallel ranks (a router is not), and the busiest rank has the mean work, or the
largest matrix.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from ops.block import model_ops
from ops.context import LayerContext
from ops.layout import Layout
from ops.memory_bound import memory_pass
from ops.op import Axis, BatchedGemm, GroupedGemm, MemoryBound, Op, Owner, Phase, collective, gemm
from ops.recompute import Recompute
from ops.roles import Identity, Module, OpKey, Role
from spec.arrays import FloatArray, IntArray
from spec.collectives import Collective
from spec.job import JobSpec
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import BlockRun, BlockSpec, ModelSpec

STEPS = 5
FP32_BYTES, BF16_BYTES = 4.0, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """One of the matrices of a layer, whole, the smaller side first; an expert's, if ``owner`` says so."""

    small: int
    large: int
    owner: Owner

    @property
    def elements(self) -> int:
        """Returns the elements of one matrix."""
        return self.small * self.large

    @property
    def cost(self) -> float:
        """Returns half the FLOPs of one Newton-Schulz step: small^2 large for X X^T and for B X, small^3 for A A
        (``_ns_compute_cost``)."""
        return float(self.small) ** 2 * (2.0 * self.large + self.small)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixCount:
    """``count`` equal matrices whose slices, or wholes, a rank holds, one entry per row."""

    matrix: Matrix
    count: IntArray

    def take(self, rows: IntArray) -> "MatrixCount":
        """Returns these rows."""
        return replace(self, count=self.count[rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixShards:
    """The matrices of one owner among ``num_shards`` ranks: ``elements`` of the busiest one's, whole; its work is
    ``load`` times the mean."""

    matrices: tuple[MatrixCount, ...]
    num_shards: IntArray
    elements: FloatArray
    load: FloatArray


def matrices_of_stage(
    model: ModelSpec, job: JobSpec, layout: Layout, layers: tuple[IntArray, ...]
) -> tuple[MatrixCount, ...]:
    """Returns the matrices of a stage with so many ``layers`` of each block kind (kinds may come twice); of experts
    those of a rank."""
    counts: dict[Matrix, IntArray] = {}
    per_block = {run.block: _layer_matrices(model, job, run.block) for run in model.blocks}
    for index, number in enumerate(layers):
        for matrix, each in per_block[model.blocks[index % len(model.blocks)].block].items():
            ranks = layout.ep if matrix.owner is Owner.EXPERT else 1
            counts[matrix] = counts.get(matrix, 0 * number) + number * each // ranks
    return tuple(MatrixCount(matrix=matrix, count=count) for matrix, count in counts.items())


def _layer_matrices(model: ModelSpec, job: JobSpec, block: BlockSpec) -> dict[Matrix, int]:
    """Returns the number of matrices of each size in one layer: its products' weights on a rank that has them whole."""
    # The op list itself says which products a layer has; on one rank nothing is cut, so k x n is the whole matrix.
    alone = replace(model, blocks=(BlockRun(block=block, count=1),))
    (piece,) = model_ops(alone, job, Layout.of(1), "mtp", Recompute.NONE).blocks
    result: dict[Matrix, int] = {}
    for op in piece.forward:
        if not isinstance(op, BatchedGemm | GroupedGemm) or not op.parameters.any():
            continue
        expert = isinstance(op, GroupedGemm)
        for outputs in _parts(op, block):
            sides = sorted((int(op.k[0]), outputs))
            matrix = Matrix(small=sides[0], large=sides[1], owner=Owner.EXPERT if expert else Owner.DENSE)
            result[matrix] = result.get(matrix, 0) + (int(op.groups[0]) if isinstance(op, GroupedGemm) else 1)
    return result


def _parts(op: BatchedGemm | GroupedGemm, block: BlockSpec) -> Iterable[int]:
    """Returns the outputs of the matrices that a weight is: queries, keys, values and gates are one each
    (muon_split_qkv)."""
    mixer = block.mixer
    if op.role is not Role.QKV or not isinstance(mixer, AttentionSpec) or mixer.kind is AttentionKind.MLA:
        return (int(op.n[0]),)
    queries, keys = mixer.num_heads, mixer.num_kv_heads
    gates = (mixer.gates,) if mixer.gates else ()
    return (queries * mixer.qk_dim, *gates, keys * mixer.qk_dim, keys * mixer.v_dim)


def shard_matrices(matrices: tuple[MatrixCount, ...], owner: Owner, shards: IntArray) -> MatrixShards:
    """Returns the matrices of ``owner`` on ``shards`` ranks."""
    own = tuple(one for one in matrices if one.matrix.owner is owner)

    def busiest_and_mean(weights: list[float]) -> tuple[FloatArray, FloatArray]:
        """Returns the weight on the busiest rank, and on the mean one."""
        none = np.zeros(len(shards))
        total = sum((one.count * weight for one, weight in zip(own, weights, strict=True)), none)
        largest = np.max([(one.count > 0) * weight for one, weight in zip(own, weights, strict=True)] or [none], axis=0)
        # No rank has less than one matrix to do if it has any: with few matrices the largest decides.
        return np.maximum(total / shards, largest), total / shards

    elements, _ = busiest_and_mean([float(one.matrix.elements) for one in own])
    most, mean = busiest_and_mean([one.matrix.cost for one in own])
    load = np.divide(most, mean, out=np.ones_like(most), where=mean > 0)
    return MatrixShards(matrices=own, num_shards=shards, elements=elements, load=load)


def update_ops(context: LayerContext, shards: MatrixShards, owner: Owner) -> list[Op]:
    """Returns the busiest rank's update of its matrices of ``owner``: weight decay, momentum, Newton-Schulz in bf16,
    and the step."""
    axis, ranks = (Axis.ETP, context.layout.etp) if owner is Owner.EXPERT else (Axis.TP, context.layout.tp)
    whole = np.ceil(shards.elements).astype(np.int64)
    own = np.ceil(shards.elements / ranks).astype(np.int64)

    def step_pass(name: str, kernel: str, elements: IntArray, dtype: str = "fp32") -> MemoryBound:
        what = Identity(module=Module.STEP, role=Role.UPDATE, name=f"{Module.STEP}.muon_{owner.value}_{name}")
        return memory_pass(what, Phase.STEP, kernel, elements, dtype)

    # tp_mode "duplicated": every tensor-parallel rank gathers the whole momentum and repeats the same work
    gather = collective(
        OpKey(Module.STEP, Role.UPDATE).named(f"{Module.STEP}.muon_{owner.value}_gather"),
        Phase.STEP,
        Collective.ALL_GATHER,
        axis,
        np.where(ranks > 1, FP32_BYTES * whole, 0),
        "fp32",
    )
    return [
        step_pass("decay", "copy", own),
        step_pass("momentum", "add", own),
        gather,
        step_pass("norm", "norm_reduce", whole),
        step_pass("normed", "copy", whole),
        step_pass("narrow", "cast", whole, "bf16"),
        *(product for one in shards.matrices for product in _newton_schulz(one, shards)),
        step_pass("wide", "cast", whole, "bf16"),
        step_pass("scale", "copy", own),
        step_pass("add", "add", own),
    ]


def _newton_schulz(matrices: MatrixCount, shards: MatrixShards) -> list[Op]:
    """Returns the products of newton_schulz_step (muon_utils.py), A = X X^T, B = b A + c A A, X = a X + B X, for the
    rank's share of the matrices."""
    small, large = (np.full(len(matrices.count), side) for side in (matrices.matrix.small, matrices.matrix.large))
    share = STEPS * matrices.count / shards.num_shards * shards.load
    shapes = {
        "gram": (small, large, small, "NT"),
        "square": (small, small, small, "NN"),
        "turn": (small, small, large, "NN"),
    }
    return [
        replace(
            gemm(
                OpKey(Module.STEP, Role.UPDATE).named(
                    f"{Module.STEP}.muon_{name}_{matrices.matrix.small}x{matrices.matrix.large}"
                ),
                Phase.STEP,
                (m, k, n),
                layout,
                "bf16",
            ),
            repeat=share,
        )
        for name, (m, k, n, layout) in shapes.items()
    ]


def working_bytes(context: LayerContext, matrices: tuple[MatrixCount, ...]) -> FloatArray:
    """Returns the bytes that the largest matrix takes while it is orthogonalised: the gathered slices and their whole
    in fp32 under tensor parallelism, its normed fp32 copy, two in bf16, and two squares of its smaller side."""
    gathered = 2.0 * FP32_BYTES * (context.layout.tp > 1)
    needed = [
        (one.count > 0)
        * (one.matrix.elements * (gathered + FP32_BYTES + 2.0 * BF16_BYTES) + 2.0 * BF16_BYTES * one.matrix.small**2)
        for one in matrices
    ]
    return np.asarray(np.max(needed, axis=0) if needed else np.zeros(len(context.layout)), dtype=np.float64)
