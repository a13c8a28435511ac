"""What computation loses while a collective runs beside it.

NCCL runs one thread block a channel (NCCL documentation, NCCL_MAX_CTAS), each on a multiprocessor that it
shares with no other kernel (NVIDIA/nccl issue 689). What computes meanwhile has the others. Kernels with a
thread block a tile lose that share. Persistent ones that deal their tiles to as many thread blocks as there
are multiprocessors before they start run their last blocks after the first ones: a second wave (PyTorch pull
request 144974; NVIDIA CUTLASS, Blackwell Cluster Launch Control, "static scheduler"), which by count doubles
those of many tiles (``slowed``) and was seen to cost less (SECOND_WAVE).

Where what products and a collective lose to each other was measured (profdb.overlap_losses), that is taken for
both; without such samples a collective loses nothing.

``Assumption:`` matrix products are such kernels where the architecture says so, attention and what moves bytes are not;
a collective lasts for many products, so none of them is doubled for a part of it alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ops.op import BatchedGemm, GroupedGemm
from profdb.overlap_losses import Losses
from spec.arrays import FloatArray, IntArray, ceil_div, ints
from spec.cluster.cluster import GpuSpec

# Assumption: thread blocks of a collective, one figure for all; NCCL's channel count differs by GPU and links.
COLLECTIVE_BLOCKS = 20

# Assumption: at most half of a GPU with few multiprocessors.
MOST_SHARE = 0.5
# Blocks that found no multiprocessor run after those that did: by count products of many tiles take twice as
# long. What they were seen to take on H100 while a collective ran, over their time alone, the mean of three
# sources: 2.0 (PyTorch issue 143988, FSDP), 80 / 47 (NVIDIA developer forum 337991: share of peak of a
# product of 132 blocks, without and beside an all-gather of 24), 1.35 (PyTorch pull request 179937: 30 to 40
# % slower).
SECOND_WAVE = (2.0 + 80 / 47 + 1.35) / 3
# Assumption: rows and columns of the tile of a thread block, the largest that CUTLASS and cuBLAS ship for Hopper's 16-
# and 8-bit products (CUTLASS, "Efficient GEMM in CUDA": two warp groups of 64 x 256); either way round.
TILE = (128, 256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """``sm_share`` of ``num_sms`` multiprocessors go to a collective; ``static_tiles`` as in ArchitectureSpec."""

    sm_share: float = 0.0
    static_tiles: bool = False
    num_sms: int = 0

    @staticmethod
    def on(gpu: GpuSpec) -> "Contention":
        """On a GPU's multiprocessors."""
        share = min(COLLECTIVE_BLOCKS / gpu.num_sms, MOST_SHARE)
        return Contention(sm_share=share, static_tiles=gpu.architecture.static_tiles, num_sms=gpu.num_sms)

    def twice(self, op: BatchedGemm | GroupedGemm) -> FloatArray:
        """The share of a product's seconds that a second wave doubles by count, for every row; the rest loses
        no more than its multiprocessors. 1 where products are not dealt out before they start, or the
        multiprocessors are not known."""
        if not self.static_tiles or not self.num_sms:
            return np.ones(1)
        thinner = 1.0 / (1.0 - self.sm_share)
        longer = slowed(tiles(op), self.num_sms, round(self.sm_share * self.num_sms))
        share = np.clip((longer - thinner) / (2.0 - thinner), 0.0, 1.0)
        return np.asarray(share, dtype=np.float64)

    def lost(
        self,
        compute_s: FloatArray,
        products_s: FloatArray,
        blocks: FloatArray | float = COLLECTIVE_BLOCKS,
        measured: Losses | None = None,
    ) -> tuple[FloatArray, FloatArray | float]:
        """Returns the shares that computation and a collective of so many thread ``blocks`` lose of their rates while
        both run. The computation takes ``compute_s`` alone, of which ``products_s`` matrix products (where a second
        wave is counted, what it doubles of them; that takes SECOND_WAVE of its time). What products and the collective
        lose to each other is ``measured``, where it was; other kernels were not, and lose their multiprocessors, beside
        which the collective loses nothing (Assumption)."""
        products = np.divide(products_s, compute_s, out=np.zeros_like(compute_s), where=compute_s > 0)
        taken = np.minimum(self.sm_share * blocks / COLLECTIVE_BLOCKS, MOST_SHARE)
        thinner = 1.0 / (1.0 - taken)
        if measured is not None:
            longer = 1.0 / (1.0 - measured.compute)
        else:
            longer = np.where(self.static_tiles & (taken > 0), np.maximum(SECOND_WAVE, thinner), thinner)
        computing = 1.0 - 1.0 / (products * longer + (1.0 - products) * thinner)
        return computing, 0.0 if measured is None else measured.comm * products


def tiles(op: BatchedGemm | GroupedGemm) -> IntArray:
    """Tiles of one product of every row; experts' products run one by one (Transformer Engine,
    multi_stream_cublas_gemm)."""
    short, long = TILE
    if isinstance(op, BatchedGemm):
        m, n, batch = op.m, op.n, op.batch
    else:
        rows = ceil_div(op.m, np.maximum(op.groups, 1))
        m, n = (op.n, op.k) if op.layout == "TN" else (rows, op.n)
        batch = ints(1)
    lying = ceil_div(m, short) * ceil_div(n, long)
    standing = ceil_div(m, long) * ceil_div(n, short)
    return ints(batch * np.minimum(lying, standing))


def slowed(dealt: IntArray, sms: int, taken: int) -> FloatArray:
    """Seconds of products of so many tiles ``dealt`` to ``sms`` multiprocessors of which ``taken``, 1 to half of them,
    are another kernel's, over their seconds alone: between 1 and 2; 1 where there is no tile.

    Of ``T = q S + r`` tiles over ``S`` multiprocessors ``r`` blocks have ``q + 1`` tiles, the others ``q``.
    Only ``S - D`` blocks start beside ``D`` of another kernel, the others where one has ended: with few tiles
    the last wave leaves them room, with many they take as long again (NVIDIA, "Matrix Multiplication
    Background User's Guide", wave quantisation).
    """
    free = sms - taken
    rounds, over = np.divmod(dealt, sms)
    alone = rounds + (over > 0)
    early = free - over  # Blocks of the first that end one tile before the others.
    beside = np.where(
        early < 0,
        2 * rounds + 2,
        np.where(early >= taken, np.maximum(alone, 2 * rounds), 2 * rounds + 1),
    )
    ratio = np.divide(beside, alone, out=np.ones(len(dealt)), where=alone > 0)
    return np.asarray(ratio, dtype=np.float64)


def averaged(losses: Sequence[tuple[FloatArray, Losses | None]]) -> Losses | None:
    """Returns the losses of collectives that run one after another, each with its seconds; None unless all were
    measured."""
    known = [(seconds, one) for seconds, one in losses if one is not None]
    if not known or len(known) < len(losses):
        return None
    total = np.sum([seconds for seconds, _ in known], axis=0)

    def mean(shares: list[FloatArray]) -> FloatArray:
        weighed = np.sum([seconds * share for (seconds, _), share in zip(known, shares, strict=True)], axis=0)
        share = np.divide(weighed, total, out=np.zeros_like(weighed), where=total > 0)
        return np.asarray(share, dtype=np.float64)

    return Losses(compute=mean([one.compute for _, one in known]), comm=mean([one.comm for _, one in known]))


ALONE = Contention()
