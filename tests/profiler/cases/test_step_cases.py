"""What only a step shows: every collective beside products, layers, copies and exchanges, each both ways."""

from collections import defaultdict
from collections.abc import Iterable

from profdb.cases import OverlapCase
from profiler.benchmarks.expert_exchange import KERNELS
from profiler.cases.step_cases import ON_GPU, exchange_cases, gpu_layer_cases, host_copy_cases, overlap_cases
from profiler.cases.tiers import PlannedCase
from spec.collectives import Collective

WAYS = ("dispatch", "combine")


def test_every_collective_of_training_is_measured_beside_products() -> None:
    """Inside a domain, between domains and over the world; with each alone, and either side much the longer,
    as the shares that they lose to each other need it (profdb.overlap_losses)."""
    mixes: dict[object, set[tuple[int, int]]] = defaultdict(set)
    for plan in overlap_cases(ON_GPU, 8, 2, "bf16"):
        case = plan.case
        assert isinstance(case, OverlapCase)
        mixes[case.collective, case.intra, case.inter, case.size_bytes].add((case.products, case.collectives))
    assert {key[0] for key in mixes if isinstance(key, tuple)} == {
        Collective.ALL_GATHER,
        Collective.REDUCE_SCATTER,
        Collective.ALL_REDUCE,
        Collective.ALL_TO_ALL,
    }
    assert {key[1:3] for key in mixes if isinstance(key, tuple)} == {(8, 1), (1, 2), (8, 2)}
    assert len(mixes) == 4 * 3 * 3  # three sizes each
    for held in mixes.values():
        assert any(collectives == 0 < products for products, collectives in held)
        assert any(products == 0 < collectives for products, collectives in held)
        both = [products / collectives for products, collectives in held if products * collectives]
        assert min(both) <= 1 / 8
        assert max(both) >= 64


def kinds(plans: Iterable[PlannedCase], *names: str) -> set[tuple[object, ...]]:
    """The different values of some fields of the cases."""
    return {tuple(getattr(plan.case, name) for name in names) for plan in plans}


def test_layers_copies_and_exchanges_are_measured_each_way() -> None:
    widths = ((4096, 11008), (8192, 28672), (4096, 14336))  # Llama-2-7B, Llama-2-70B and Llama-3.1-8B
    layers = kinds(gpu_layer_cases(), "hidden", "ffn_hidden", "mode")
    assert layers == {(*width, mode) for width in widths for mode in ("eager", "graph")}
    assert kinds(host_copy_cases(8), "direction", "devices") == {("to_device", 8), ("to_host", 8)}
    # Mixtral's 8 experts over a domain, DeepSeek-V3's 256 over the world too
    exchanges = kinds(exchange_cases(8, 2), "direction", "kernel", "experts", "topk", "inter")
    shapes = ((8, 2, 1), (256, 8, 1), (256, 8, 2))
    assert exchanges == {(way, kernel, *shape) for way in WAYS for kernel in KERNELS for shape in shapes}
