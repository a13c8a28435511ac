"""Benchmark: collectives while matrix products run, from the start of both to the end of both.

On a GPU the collectives are issued first, to a stream of their own, and the products to the timed stream, which
waits for the other at the end. Over gloo the collectives run in a thread of their own, as they block the caller.
The loss of each side follows from the times of both together and of each alone (profdb.overlap_losses).
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from profdb.cases import GemmCase, OverlapCase
from profiler.benchmarks.collectives import CALLS, GroupMember, tiling_for, whole_elements
from profiler.benchmarks.launched import Call, Launched, UnsupportedCaseError
from profiler.benchmarks.linear import launch_gemm
from profiler.benchmarks.torch_dtypes import torch_dtype
from profiler.distributed.world import World
from spec.collectives import Collective


def launch_overlap(case: OverlapCase, world: World) -> Launched:
    """Returns the call that runs the products and the collectives of the case on this rank together.

    Raises UnsupportedCaseError for nothing to run, a message between two ranks, and groups that this world cannot
    form.
    """
    if case.products + case.collectives < 1:
        raise UnsupportedCaseError("neither products nor collectives: nothing to run")
    if case.collective not in CALLS or case.collective is Collective.P2P:
        raise UnsupportedCaseError(f"{case.collective} during products is not measured")
    tiling = tiling_for(case, world)
    member = GroupMember(
        ranks=tiling.group_of(world.rank),
        rank=world.rank,
        handle=world.group_for(tiling),
        where=world.device.torch_device,
    )
    exchange = CALLS[case.collective](member, whole_elements(case), torch_dtype(case.dtype))
    product = GemmCase(m=case.m, k=case.k, n=case.n, dtype_in=case.dtype, dtype_out=case.dtype)
    multiplied = launch_gemm(product, world.device)
    exchanges = [exchange] * case.collectives
    # Sets of operands in turn, as in the product's own benchmark.
    products = [multiplied.calls[index % len(multiplied.calls)] for index in range(case.products)]
    together = on_two_streams if world.device.kind == "cuda" else in_two_threads
    names = [f"torch {world.backend} {case.collective.value}"] * bool(exchanges)
    names += [multiplied.implementation] * bool(products)
    return Launched(
        case=case, calls=(together(exchanges, products),), implementation=" beside ".join(names), collective=True
    )


def on_two_streams(exchanges: Sequence[Call], products: Sequence[Call]) -> Call:
    """Returns both queued on the device; the current stream goes on when both have ended."""
    side_stream = torch.cuda.Stream()

    def run() -> None:
        current = torch.cuda.current_stream()
        # Both sides start when the timed stream reaches this point.
        side_stream.wait_stream(current)
        with torch.cuda.stream(side_stream):
            for exchange in exchanges:
                exchange()
        for product in products:
            product()
        current.wait_stream(side_stream)

    return run


def in_two_threads(exchanges: Sequence[Call], products: Sequence[Call]) -> Call:
    """Returns the exchanges in a thread and the products in the caller's; it returns when both have ended."""
    executor = ThreadPoolExecutor(max_workers=1)

    def all_exchanges() -> None:
        for exchange in exchanges:
            exchange()

    def run() -> None:
        exchanging = executor.submit(all_exchanges)
        for product in products:
            product()
        exchanging.result()

    return run
