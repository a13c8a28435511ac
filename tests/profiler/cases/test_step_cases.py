"""What only a step shows: every collective beside products, layers, copies and exchanges, each both ways."""

from collections import defaultdict

from profdb.cases import ExpertExchangeCase, HostCopyCase, LayerCase, OverlapCase
from profiler.cases.step_cases import ON_GPU, exchange_cases, gpu_layer_cases, host_copy_cases, overlap_cases
from spec.collectives import Collective


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


def test_a_layer_is_measured_as_it_runs_and_as_one_graph() -> None:
    modes: dict[object, set[str]] = defaultdict(set)
    for plan in gpu_layer_cases():
        case = plan.case
        assert isinstance(case, LayerCase)
        modes[case.hidden, case.ffn_hidden, case.batch, case.seq_len].add(case.mode)
    assert all(held == {"eager", "graph"} for held in modes.values())
    # Llama-2-7B, Llama-2-70B and Llama-3.1-8B
    widths = {key[:2] for key in modes if isinstance(key, tuple)}
    assert widths == {(4096, 11008), (8192, 28672), (4096, 14336)}


def test_copies_to_the_host_and_back_and_exchanges_there_and_back() -> None:
    copies = [plan.case for plan in host_copy_cases(8)]
    assert {(case.direction, case.devices) for case in copies if isinstance(case, HostCopyCase)} == {
        ("to_device", 8),
        ("to_host", 8),
    }
    exchanges = [plan.case for plan in exchange_cases(8, 2)]
    kinds = {
        (case.direction, case.kernel, case.experts, case.topk, case.intra * case.inter)
        for case in exchanges
        if isinstance(case, ExpertExchangeCase)
    }
    # Mixtral's 8 experts, DeepSeek-V3's 256; over a domain and the world
    for direction in ("dispatch", "combine"):
        for kernel in ("all2all", "deepep"):
            assert {(direction, kernel, 8, 2, 8), (direction, kernel, 256, 8, 8)} <= kinds
            assert (direction, kernel, 256, 8, 16) in kinds
