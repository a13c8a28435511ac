"""The exact shapes of one model: the operations of a rank, for each tensor-parallel degree."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ops.block import ModelOps, model_ops
from ops.layout import Layout
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
    flat,
    number_names,
    size_names,
)
from ops.recompute import Recompute
from profdb.cases import AttentionCase, Case, GemmCase, GroupedGemmCase, MemoryBoundCase, product_dtypes
from profiler.cases.tiers import PlannedCase, in_tier
from spec.arrays import ints
from spec.errors import ConfigError
from spec.frameworks import FrameworkPreset, framework_preset
from spec.readers.config_file import ConfigFile
from spec.readers.read_config import read_config
from spec.settings.job import JobRequest, job_of

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
            for op in operations(config, tp, strategy, framework_preset(framework)):
                cases.update(dict.fromkeys(cases_of(op)))
    return in_tier(BEFORE_ALL, cases)


def operations(config: ConfigFile, tp: int, strategy: str, preset: FrameworkPreset) -> list[Op]:
    """Returns the op list of one rank out of ``tp``, for a few micro-batch sizes, with experts spread over the ranks
    as well."""
    if config.seq_len is None:
        raise ConfigError(
            where=config.path, key="seq_len", value=None, allowed="a config with a sequence length, or --seq_len"
        )
    request = JobRequest(
        world_size=tp,
        seq_len=config.seq_len,
        global_batch_tokens=config.seq_len,
        framework=preset.name,
        settings=config.job,
        where=config.path,
    )
    job = job_of(request)
    layout = Layout.of(tp, tp=tp, micro_batch=ints(MICRO_BATCHES))
    result: ModelOps = model_ops(config.model, job, layout, strategy, Recompute.NONE)
    return [op for piece in (*result.blocks, result.embedding, result.head) for op in flat(piece)]


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
