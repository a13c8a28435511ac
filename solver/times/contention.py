"""What computation loses while a collective runs beside it.

NCCL runs one thread block a channel (NCCL documentation, NCCL_MAX_CTAS), each on a multiprocessor that it shares with
no other kernel (NVIDIA/nccl issue 689); what computes meanwhile has the others. Kernels with a thread block a tile lose
that share. Persistent kernels that assign their tiles to as many thread blocks as there are multiprocessors before they
start run their last blocks after the first ones: a second wave (PyTorch pull request 144974; NVIDIA CUTLASS, Blackwell
Cluster Launch Control, "static scheduler"). By count that doubles products of many tiles (``wave_ratio``); measurements
saw less (SECOND_WAVE).

Where a profile measured what products and a collective lose to each other (profdb.overlap_losses), both lose that;
without such samples a collective loses nothing.

``Assumption:`` matrix products are such kernels where the architecture says so, attention and memory-bound kernels are
not; a collective lasts for many products, so none of them is doubled for a part of it alone.
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
        """Returns the contention on a GPU's multiprocessors."""
        share = min(COLLECTIVE_BLOCKS / gpu.num_sms, MOST_SHARE)
        return Contention(sm_share=share, static_tiles=gpu.architecture.static_tiles, num_sms=gpu.num_sms)

    def second_wave(self, op: BatchedGemm | GroupedGemm) -> FloatArray:
        """Returns the share of a product's seconds that a second wave doubles by count, for every row; the rest loses
        no more than its multiprocessors. 1 where tiles are not assigned before products start, or the number of
        multiprocessors is unknown."""
        if not self.static_tiles or not self.num_sms:
            return np.ones(1)
        fewer_sms = 1.0 / (1.0 - self.sm_share)
        longer = wave_ratio(tiles(op), self.num_sms, round(self.sm_share * self.num_sms))
        # longer = share x 2 + (1 - share) x fewer_sms, solved for the share.
        share = np.clip((longer - fewer_sms) / (2.0 - fewer_sms), 0.0, 1.0)
        return np.asarray(share, dtype=np.float64)

    def shares_lost(
        self,
        compute_s: FloatArray,
        products_s: FloatArray,
        blocks: FloatArray | float = COLLECTIVE_BLOCKS,
        measured: Losses | None = None,
    ) -> tuple[FloatArray, FloatArray | float]:
        """Returns the shares that computation and a collective of so many thread ``blocks`` lose of their rates while
        both run.

        The computation takes ``compute_s`` alone, of which ``products_s`` are matrix products (where a second wave is
        counted, the part of them that it doubles, which then takes SECOND_WAVE of its time). ``measured`` is what
        products and the collective lose to each other; other kernels were not measured, lose their multiprocessors, and
        cost the collective nothing (Assumption).
        """
        products = np.divide(products_s, compute_s, out=np.zeros_like(compute_s), where=compute_s > 0)
        lost_sms = np.minimum(self.sm_share * blocks / COLLECTIVE_BLOCKS, MOST_SHARE)
        # Times of a kernel that loses its multiprocessors, and of a product, over their times alone.
        fewer_sms = 1.0 / (1.0 - lost_sms)
        if measured is not None:
            longer = 1.0 / (1.0 - measured.compute)
        else:
            longer = np.where(self.static_tiles & (lost_sms > 0), np.maximum(SECOND_WAVE, fewer_sms), fewer_sms)
        computing = 1.0 - 1.0 / (products * longer + (1.0 - products) * fewer_sms)
        return computing, 0.0 if measured is None else measured.comm * products


def tiles(op: BatchedGemm | GroupedGemm) -> IntArray:
    """Returns the tiles of one product of every row; experts' products run one by one (Transformer Engine,
    multi_stream_cublas_gemm)."""
    short, long = TILE
    if isinstance(op, BatchedGemm):
        m, n, batch = op.m, op.n, op.batch
    else:
        rows = ceil_div(op.m, np.maximum(op.groups, 1))
        m, n = (op.n, op.k) if op.layout == "TN" else (rows, op.n)
        batch = ints(1)
    wide = ceil_div(m, short) * ceil_div(n, long)
    tall = ceil_div(m, long) * ceil_div(n, short)
    return ints(batch * np.minimum(wide, tall))


def wave_ratio(num_tiles: IntArray, sms: int, busy_sms: int) -> FloatArray:
    """Returns the seconds of products of so many tiles on ``sms`` multiprocessors, of which another kernel has
    ``busy_sms``, 1 to half of them, over their seconds alone: between 1 and 2; 1 where there is no tile.

    Of ``T = q S + r`` tiles over ``S`` multiprocessors ``r`` blocks have ``q + 1`` tiles, the others ``q``. Only
    ``S - D`` blocks start beside ``D`` of another kernel, the others where one has ended: with few tiles the last wave
    leaves them room, with many they take as long again (NVIDIA, "Matrix Multiplication Background User's Guide", wave
    quantisation).
    """
    free = sms - busy_sms
    rounds, rest = np.divmod(num_tiles, sms)
    alone = rounds + (rest > 0)
    early = free - rest  # Blocks of the first wave that end one tile before the others.
    together = np.where(
        # No block ends early: the second wave starts after q + 1 tiles, and has blocks of q + 1.
        early < 0,
        2 * rounds + 2,
        # Enough blocks end early for all that wait, which have q tiles; else some of them start one tile later.
        np.where(early >= busy_sms, np.maximum(alone, 2 * rounds), 2 * rounds + 1),
    )
    ratio = np.divide(together, alone, out=np.ones(len(num_tiles)), where=alone > 0)
    return np.asarray(ratio, dtype=np.float64)


def mean_losses(losses: Sequence[tuple[FloatArray, Losses | None]]) -> Losses | None:
    """Returns the losses of collectives that run one after another, averaged by their seconds; None unless all were
    measured."""
    measured = [(seconds, one) for seconds, one in losses if one is not None]
    if not measured or len(measured) < len(losses):
        return None
    total = np.sum([seconds for seconds, _ in measured], axis=0)

    def mean(shares: list[FloatArray]) -> FloatArray:
        sums = np.sum([seconds * share for (seconds, _), share in zip(measured, shares, strict=True)], axis=0)
        share = np.divide(sums, total, out=np.zeros_like(sums), where=total > 0)
        return np.asarray(share, dtype=np.float64)

    return Losses(compute=mean([one.compute for _, one in measured]), comm=mean([one.comm for _, one in measured]))


ALONE = Contention()
