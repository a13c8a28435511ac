"""About how long a launch of what only a step shows takes, from a sheet's times of its parts."""

from dataclasses import fields, replace
from math import ceil

from profdb.cases import (
    Case,
    CollectiveCase,
    ExpertExchangeCase,
    GemmCase,
    HostCopyCase,
    LayerCase,
    MemoryBoundCase,
    OverlapCase,
    WarmKernelCase,
    product_dtypes,
)
from profdb.lookup.layer_parts import parts_of_layer
from profdb.modelled.book import ModelledBook
from profdb.modelled.offload import host_transfer_s
from profdb.modelled.profile import modelled_seconds
from spec.arrays import floats
from spec.collectives import Collective
from spec.dtypes import dtype_bytes


def step_part_s(case: Case, book: ModelledBook) -> float | None:
    """Seconds of a launch; None for a case of another kind, or without what a sheet would have to say.

    Raises ConfigError or MissingCurveError where the sheet models no such part.
    """
    match case:
        case OverlapCase():
            return _overlap_s(case, book)
        case LayerCase():
            return sum(float(one.seconds[0]) for one in parts_of_layer(book, case))
        case HostCopyCase():
            host = book.cluster.host
            return host and float(host_transfer_s(host, floats([case.size_bytes]), case.devices).seconds[0])
        case ExpertExchangeCase():
            return float(modelled_seconds(book, [_exchange(case)])[0])
        case WarmKernelCase():
            values = {one.name: getattr(case, one.name) for one in fields(case)}
            return float(modelled_seconds(book, [MemoryBoundCase(**values)])[0])
        case _:
            return None


def _overlap_s(case: OverlapCase, book: ModelledBook) -> float:
    """The longer side, as if neither lost anything."""
    product = GemmCase(m=case.m, k=case.k, n=case.n, layout="NT", **product_dtypes(case.dtype))
    beside = CollectiveCase(
        collective=case.collective,
        size_bytes=case.size_bytes,
        intra=case.intra,
        inter=case.inter,
        siblings=case.siblings,
        dtype=case.dtype,
    )
    product_s, collective_s = (float(modelled_seconds(book, [one])[0]) for one in (product, beside))
    return max(case.products * product_s, case.collectives * collective_s)


def _exchange(case: ExpertExchangeCase) -> CollectiveCase:
    """An all-to-all of every token as often as it has experts."""
    size = ceil(case.tokens * case.topk * case.hidden * dtype_bytes(case.dtype))
    ranks = case.intra * case.inter
    one = CollectiveCase(
        collective=Collective.ALL_TO_ALL,
        size_bytes=size,
        intra=case.intra,
        inter=case.inter,
        siblings=case.siblings,
        dtype=case.dtype,
    )
    return replace(one, size_bytes=-(-size // ranks) * ranks)
