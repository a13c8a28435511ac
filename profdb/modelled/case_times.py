"""Times of stored cases from the hardware spec: what a rehearsal estimates and a transfer compares."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from ops.op import Count
from profdb.cases import (
    FAMILY_OF,
    AttentionCase,
    Case,
    CollectiveCase,
    GemmCase,
    GroupedGemmCase,
    HostCase,
    MemoryBoundCase,
    OptimizerCase,
)
from profdb.cost_model import ask
from profdb.modelled.cost_model import ModelledCostModel
from profdb.queries import (
    AttentionQuery,
    CollectiveQuery,
    GroupedLinearQuery,
    LinearQuery,
    MemoryBoundQuery,
    OptimizerQuery,
    names_of,
)
from spec.arrays import FloatArray, ints
from spec.errors import ConfigError

QUERIES: dict[type, type] = {
    GemmCase: LinearQuery,
    GroupedGemmCase: GroupedLinearQuery,
    AttentionCase: AttentionQuery,
    MemoryBoundCase: MemoryBoundQuery,
    OptimizerCase: OptimizerQuery,
    CollectiveCase: CollectiveQuery,
}
"""The query for each type of case."""


def modelled_seconds(cost_model: ModelledCostModel, cases: Sequence[Case]) -> FloatArray:
    """Returns the time of each case (length of ``cases``), with one query per combination of labels.

    Raises ConfigError for a case whose time is 0 or not finite, or that a hardware spec does not determine.
    """
    # Rows of cases that differ in numbers only: their labels select one query.
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, case in enumerate(cases):
        labels = (getattr(case, item.name) for item in fields(case) if item.type not in (int, Count))
        groups.setdefault((type(case), *labels), []).append(index)
    seconds = np.full(len(cases), np.nan)
    for rows in groups.values():
        seconds[rows] = _price(cost_model, [cases[row] for row in rows])
    # Zero sizes and infinite times have no place in a sum or a ratio of times.
    good = np.isfinite(seconds) & (seconds > 0.0)
    if not good.all():
        raise ConfigError(
            where=cost_model.cluster.name,
            key="modelled case",
            value=cases[int(np.argmin(good))],
            allowed="a case that takes a finite time",
        )
    return seconds


def _price(cost_model: ModelledCostModel, cases: Sequence[Case]) -> FloatArray:
    """Returns the times of cases of one type that share their labels."""
    first = cases[0]
    if isinstance(first, HostCase):
        return cost_model.cpu_s(first.kind).seconds
    if type(first) not in QUERIES:
        family = FAMILY_OF[type(first)].value
        raise ConfigError(
            where=cost_model.cluster.name,
            key="modelled case",
            value=family,
            allowed="a family that a hardware spec determines",
        )
    query = QUERIES[type(first)]
    names = {item.name for item in fields(first)}
    values: dict[str, Any] = {}
    for item in fields(query):
        # A query has one format, that of the operands of a product; its result's format follows from it.
        name = "dtype_in" if item.name == "dtype" and "dtype_in" in names else item.name
        if item.name in names_of(query).numbers and name in names:
            values[item.name] = ints([getattr(case, name) for case in cases])
        elif name in names:
            values[item.name] = getattr(first, name)
    return ask(cost_model, query(**values)).seconds
