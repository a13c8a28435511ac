"""The exact shapes of one model: the operations of a rank, for each tensor-parallel degree."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ops.op import (
    Attention,
    AttentionCall,
    BatchedGemm,
    GroupedGemm,
    GroupedProductCall,
    KernelCall,
    MemoryBound,
    Op,
    ProductCall,
    fields_of,
    number_names,
    size_names,
)
from profdb.cases import AttentionCase, Case, GemmCase, GroupedGemmCase, MemoryBoundCase, product_dtypes
from profdb.coverage import rank_operations
from profiler.cases.tiers import PlannedCase, in_tier
from spec.arrays import ints
from spec.errors import ConfigError
from spec.readers.read_config import read_config

BEFORE_ALL = -1
"""Tier of a model's own shapes: the user asked for them by name."""

MICRO_BATCHES = (1, 2, 4)
RUNS = (("fsp", "megatron"), ("isp", "internevo"))
"""fsp shards the weights over tp (as mtp and msp do), isp the tokens (as ulysses does)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A model whose shapes are requested: its config, the tensor-parallel ranks, the type as which a config.json of
    an unknown type is read, and the tokens of a sequence where the config has none or another number is requested."""

    path: Path
    ranks: tuple[int, ...]
    assume: str | None = None
    seq_len: int | None = None

    def cases(self) -> list[PlannedCase]:
        """Returns the cases of the model (model_cases)."""
        return model_cases(self.path, self.ranks, self.assume, self.seq_len)


def model_cases(
    path: Path, ranks: Sequence[int], assume: str | None = None, seq_len: int | None = None
) -> list[PlannedCase]:
    """Returns every compute case that the model at ``path`` runs on one of ``ranks`` tensor-parallel ranks;
    ``assume`` as in read_config, ``seq_len`` instead of the config's.

    Raises ConfigError for a config that cannot be read, has no sequence length, or heads that no degree of ``ranks``
    divides.
    """
    config = read_config(path, assume=assume)
    config = config if seq_len is None else replace(config, seq_len=seq_len)
    heads = config.model.cut_heads
    # Degrees that do not divide every kind of head are skipped.
    degrees = [tp for tp in ranks if all(count % tp == 0 for count in heads)]
    if not degrees:
        raise ConfigError(
            where=str(path),
            key="--tp",
            value=",".join(map(str, ranks)),
            allowed=f"at least one divisor of the heads: {', '.join(map(str, heads))}",
        )
    # A dict: layers, strategies and degrees repeat shapes, each of which is measured once.
    cases: dict[Case, None] = {}
    for tp in degrees:
        for strategy, framework in RUNS:
            for op in rank_operations(config, tp, MICRO_BATCHES, strategy, framework):
                cases.update(dict.fromkeys(cases_of(op)))
    return in_tier(BEFORE_ALL, cases)


def cases_of(op: Op) -> Iterator[Case]:
    """Yields the benchmark case of each row of a compute operation; none for the others."""
    match op:
        case BatchedGemm():
            yield from (GemmCase(**row, **product_dtypes(op.dtype)) for row in rows(ProductCall, op))
        case GroupedGemm():
            yield from (GroupedGemmCase(**row, **product_dtypes(op.dtype)) for row in rows(GroupedProductCall, op))
        case Attention():
            yield from (AttentionCase(**row) for row in rows(AttentionCall, op))
        case MemoryBound():
            direction = "backward" if op.backward else "forward"
            yield from (MemoryBoundCase(**row, direction=direction) for row in rows(KernelCall, op))


def rows(call: type, op: Op) -> list[dict[str, Any]]:
    """Returns an operation's call for each of its rows, without those that do nothing."""
    values = fields_of(call, op)
    names = number_names(call)
    # One row per layout, one column per number of the call; labels are the same for all rows.
    table = np.stack(np.broadcast_arrays(*(ints(values[name]) for name in names)), axis=1)
    calls = [values | dict(zip(names, row, strict=True)) for row in table.tolist()]
    return [one for one in calls if all(one[name] > 0 for name in size_names(call))]
