"""Cases of several operations to measure: collectives during products, whole layers, copies to the host, and
tokens to their experts."""

from collections.abc import Iterable
from dataclasses import dataclass

from profdb.cases import ExpertExchangeCase, HostCopyCase, LayerCase, OverlapCase
from profiler.cases.collective_cases import MIB, case
from profiler.cases.group_tilings import GroupTiling, all_tilings
from profiler.cases.model_widths import EXPERT_MODELS, MODELS, TINY_MODEL, ModelWidths
from profiler.cases.tiers import PlannedCase, in_tier
from spec.collectives import Collective

OVERLAPPED_COLLECTIVES = (
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALL_REDUCE,
    Collective.ALL_TO_ALL,
)
"""Collectives that training runs during products: of weights and tokens, of gradients, and of experts' tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapGrid:
    """The product (m, k, n) of overlap cases, the sizes of their collectives, and ``mixes`` of (products, collectives):
    each alone, and together with either side much the longer (profdb.overlap_losses)."""

    product: tuple[int, int, int]
    sizes: tuple[int, ...]
    mixes: tuple[tuple[int, int], ...]


ON_GPU = OverlapGrid(
    product=(8192, 4096, 4096), sizes=(4 * MIB, 64 * MIB, 512 * MIB), mixes=((8, 0), (0, 8), (1, 8), (8, 1), (64, 1))
)
"""The product takes about 0.4 ms on an H100, a collective of these sizes 0.03 to 20 ms by links and ranks. From one
product with eight collectives to 64 with one, some mixes have longer products and some longer collectives."""

ON_CPU = OverlapGrid(product=(128, 256, 256), sizes=(64 * 1024,), mixes=((8, 0), (0, 8), (1, 8), (64, 1)))


def overlap_cases(grid: OverlapGrid, domain_ranks: int, domains: int, dtype: str) -> list[PlannedCase]:
    """Returns every collective of training during products, over whole domains and one rank of each."""
    plans: list[PlannedCase] = []
    m, k, n = grid.product
    for tiling in overlap_tilings(domain_ranks, domains):
        for kind in OVERLAPPED_COLLECTIVES:
            for size in grid.sizes:
                alone = case(kind, size, tiling, dtype)
                for products, collectives in grid.mixes:
                    mixed = OverlapCase(
                        collective=kind,
                        size_bytes=alone.size_bytes,
                        intra=tiling.intra,
                        inter=tiling.inter,
                        siblings=tiling.siblings,
                        m=m,
                        k=k,
                        n=n,
                        products=products,
                        collectives=collectives,
                        dtype=dtype,
                    )
                    plans += in_tier(2, [mixed])
    return plans


def overlap_tilings(domain_ranks: int, domains: int) -> list[GroupTiling]:
    """Returns groups of a whole domain, of one rank in every domain, and of the whole world."""
    shapes = {(domain_ranks, 1), (1, domains), (domain_ranks, domains)}
    return [one for one in all_tilings(domain_ranks, domains) if (one.intra, one.inter) in shapes]


def layer_cases(models: Iterable[ModelWidths], shapes: Iterable[tuple[int, int]], dtype: str) -> list[PlannedCase]:
    """Returns whole layers of models on (batch, tokens of a sequence), operation by operation and as one graph."""
    lengths = tuple(shapes)
    return in_tier(
        2,
        [
            LayerCase(
                batch=batch,
                seq_len=length,
                hidden=model.hidden,
                ffn_hidden=model.ffn,
                heads=model.heads,
                kv_heads=model.kv_heads,
                head_dim=model.head_dim,
                mode=mode,
                dtype=dtype,
            )
            for model in models
            for batch, length in lengths
            for mode in ("eager", "graph")
        ],
    )


def gpu_layer_cases() -> list[PlannedCase]:
    """Returns layers of Llama-2-7B, Llama-2-70B and Llama-3.1-8B on 1k to 16k tokens."""
    chosen = [model for model in MODELS if model.name in ("Llama-2-7B", "Llama-2-70B", "Llama-3.1-8B")]
    return layer_cases(chosen, ((1, 1024), (1, 4096), (2, 4096), (4, 4096), (1, 8192), (2, 8192)), "bf16")


def cpu_layer_cases(dtype: str) -> list[PlannedCase]:
    """Returns a tiny layer, operation by operation."""
    # A processor has no CUDA graphs.
    tiny = layer_cases((TINY_MODEL,), ((1, 64), (1, 256), (2, 256)), dtype)
    return [plan for plan in tiny if isinstance(plan.case, LayerCase) and plan.case.mode == "eager"]


def host_copy_cases(devices: int) -> list[PlannedCase]:
    """Returns copies in both directions of 1 MiB to 4 GiB (activations of a layer), on every device of a node at once."""
    return in_tier(
        2,
        [
            HostCopyCase(direction=direction, size_bytes=size, devices=devices)
            for direction in ("to_device", "to_host")
            for size in (MIB, 16 * MIB, 128 * MIB, 1024 * MIB, 4096 * MIB)
        ],
    )


def exchange_cases(domain_ranks: int, domains: int) -> list[PlannedCase]:
    """Returns tokens of Mixtral and DeepSeek-V3 to their experts and back, by torch and by DeepEP, over a domain and
    the world."""
    plans: list[PlannedCase] = []
    for tiling in overlap_tilings(domain_ranks, domains):
        ranks = tiling.intra * tiling.inter
        for model in EXPERT_MODELS:
            # Expert parallelism fills a domain before it crosses one; experts have to divide over the ranks.
            if tiling.intra == domain_ranks and model.experts % ranks == 0:
                plans += in_tier(3, model_exchanges(model, tiling))
    return plans


def model_exchanges(model: ModelWidths, tiling: GroupTiling) -> list[ExpertExchangeCase]:
    """Returns 1k to 16k tokens of one model, in both directions, by either kernel."""
    return [
        ExpertExchangeCase(
            direction=direction,
            tokens=tokens,
            hidden=model.hidden,
            experts=model.experts,
            topk=model.topk,
            intra=tiling.intra,
            inter=tiling.inter,
            siblings=tiling.siblings,
            kernel=kernel,
        )
        for direction in ("dispatch", "combine")
        for tokens in (1024, 4096, 16384)
        for kernel in ("all2all", "deepep")
    ]


def cpu_exchange_cases(domain_ranks: int, domains: int, dtype: str) -> list[PlannedCase]:
    """Returns a few tokens to eight experts and back, over every rank."""
    return in_tier(
        2,
        [
            ExpertExchangeCase(
                direction=direction,
                tokens=64,
                hidden=256,
                experts=8,
                topk=2,
                intra=tiling.intra,
                inter=tiling.inter,
                siblings=tiling.siblings,
                dtype=dtype,
            )
            for tiling in overlap_tilings(domain_ranks, domains)
            if 8 % (tiling.intra * tiling.inter) == 0
            for direction in ("dispatch", "combine")
        ],
    )
