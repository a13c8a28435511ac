"""What computation loses while a collective runs beside it.

NCCL runs one thread block a channel (NCCL documentation, NCCL_MAX_CTAS), each on a multiprocessor that it shares with no
other kernel (NVIDIA/nccl issue 689). What computes meanwhile has the others. Kernels with a thread block a tile lose
that share. Persistent ones that deal their tiles to as many thread blocks as there are multiprocessors before they start
run their last blocks after the first ones: a second wave, so they take twice as long (PyTorch issue 143988, FSDP on
H100; pull request 144974; NVIDIA CUTLASS, Blackwell Cluster Launch Control, "static scheduler").

Where what products and a collective lose to each other was measured (profdb.lookup.overlap_losses), that is taken for
both; without such samples a collective loses nothing.

``Assumption:`` matrix products are such kernels where the architecture says so, attention and what moves bytes are not;
a collective lasts for many products, so none of them is doubled for a part of it alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from profdb.lookup.overlap_losses import Losses
from spec.arrays import FloatArray
from spec.cluster.cluster import GpuSpec

# Assumption: thread blocks of a collective, one figure for all; NCCL's channel count differs by GPU and links.
COLLECTIVE_BLOCKS = 20

# Assumption: at most half of a GPU with few multiprocessors.
MOST_SHARE = 0.5
# Blocks that found no multiprocessor run after those that did.
SECOND_WAVE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """``sm_share`` of the multiprocessors go to a collective; ``static_tiles`` as in ArchitectureSpec."""

    sm_share: float = 0.0
    static_tiles: bool = False

    @staticmethod
    def on(gpu: GpuSpec) -> "Contention":
        """On a GPU's multiprocessors."""
        share = min(COLLECTIVE_BLOCKS / gpu.num_sms, MOST_SHARE)
        return Contention(sm_share=share, static_tiles=gpu.architecture.static_tiles)

    def loss(
        self,
        compute_s: FloatArray,
        products_s: FloatArray,
        blocks: FloatArray | float = COLLECTIVE_BLOCKS,
        measured: Losses | None = None,
    ) -> FloatArray:
        """Of the time that a collective of so many thread ``blocks`` and computation run together, the share lost to
        the computation, which takes ``compute_s`` alone, of which ``products_s`` matrix products. What products lose is
        ``measured``, where it was; other kernels were not, and lose their multiprocessors."""
        products = products_share(compute_s, products_s)
        taken = np.minimum(self.sm_share * blocks / COLLECTIVE_BLOCKS, MOST_SHARE)
        thinner = 1.0 / (1.0 - taken)
        longer = np.where(self.static_tiles & (taken > 0), SECOND_WAVE, thinner)
        if measured is not None:
            longer = 1.0 / (1.0 - measured.compute)
        return np.asarray(1.0 - 1.0 / (products * longer + (1.0 - products) * thinner), dtype=np.float64)


def products_share(compute_s: FloatArray, products_s: FloatArray) -> FloatArray:
    """Matrix products' share of computation."""
    share = np.divide(products_s, compute_s, out=np.zeros_like(compute_s), where=compute_s > 0)
    return np.asarray(share, dtype=np.float64)


def lost_by_collective(
    compute_s: FloatArray, products_s: FloatArray, measured: Losses | None
) -> FloatArray | float:
    """The share that the collective loses of its rate meanwhile, where that was measured; beside other kernels than
    matrix products, and unmeasured, none (Assumption)."""
    return 0.0 if measured is None else measured.comm * products_share(compute_s, products_s)


def averaged(losses: Sequence[tuple[FloatArray, Losses | None]]) -> Losses | None:
    """Of collectives that run one after another, each with its seconds; None unless all were measured."""
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
