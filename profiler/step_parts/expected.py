"""About how long a launch of what only a step shows takes, from a sheet's times of its parts."""

from collections.abc import Sequence
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
from profdb.host_copies import host_transfer_s
from profdb.layer_sum import parts_of_layers
from profdb.modelled.cost_model import ModelledCostModel
from profdb.modelled.profile import modelled_seconds
from spec.arrays import floats
from spec.collectives import Collective
from spec.dtypes import dtype_bytes


def step_parts_s(cases: Sequence[Case], cost_model: ModelledCostModel) -> list[float | None]:
    """Seconds of a launch of each of ``cases``, which are of one kind; None for those without what a sheet
    would have to say.

    Raises ConfigError or MissingCurveError where the sheet models no such part.
    """
    match cases[0]:
        case OverlapCase():
            return _overlaps_s(cases, cost_model)
        case LayerCase():
            parts = parts_of_layers(cost_model, cases)
            return [float(one) for one in sum(part.seconds for part in parts)]
        case HostCopyCase():
            return _host_copies_s(cases, cost_model)
        case ExpertExchangeCase():
            return [float(one) for one in modelled_seconds(cost_model, [_exchange(case) for case in cases])]
        case WarmKernelCase():
            return [float(one) for one in modelled_seconds(cost_model, [_cold(case) for case in cases])]
        case _:
            return [None] * len(cases)


def _overlaps_s(cases: Sequence[OverlapCase], cost_model: ModelledCostModel) -> list[float | None]:
    """The longer side of each, as if neither lost anything."""
    products = [
        GemmCase(m=case.m, k=case.k, n=case.n, layout="NT", **product_dtypes(case.dtype)) for case in cases
    ]
    beside = [
        CollectiveCase(
            collective=case.collective,
            size_bytes=case.size_bytes,
            intra=case.intra,
            inter=case.inter,
            siblings=case.siblings,
            dtype=case.dtype,
        )
        for case in cases
    ]
    seconds = zip(
        cases, modelled_seconds(cost_model, products), modelled_seconds(cost_model, beside), strict=True
    )
    return [
        max(case.products * float(product_s), case.collectives * float(collective_s))
        for case, product_s, collective_s in seconds
    ]


def _host_copies_s(cases: Sequence[HostCopyCase], cost_model: ModelledCostModel) -> list[float | None]:
    """Over the link to the host, where the sheet names one."""
    host = cost_model.cluster.host
    if host is None:
        return [None] * len(cases)
    return [
        float(host_transfer_s(host, floats([case.size_bytes]), case.devices).seconds[0]) for case in cases
    ]


def _cold(case: WarmKernelCase) -> MemoryBoundCase:
    """The same kernel on operands from memory."""
    return MemoryBoundCase(**{one.name: getattr(case, one.name) for one in fields(case)})


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
