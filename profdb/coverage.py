"""Curves that a profile lacks for a model, found by a query for every operation of its layers.

The operations are those of one rank under fsp (which shards weights as mtp and msp do) for the tensor-
parallel degrees that divide the model's heads. The queries for collectives are inside a domain and across two.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import numpy as np

from ops.block import model_ops
from ops.layout import Layout
from ops.op import Op, flat
from ops.recompute import Recompute
from profdb.cost_model import ProfileCostModel, kernel_s
from profdb.queries import CollectiveQuery, OptimizerQuery, P2PQuery, TimeEstimate
from spec.arrays import ints
from spec.collectives import TRAINING_COLLECTIVES, Collective
from spec.errors import ConfigError, MissingCurveError
from spec.origin import ORIGIN_NAMES, Origin
from spec.readers.config_file import ConfigFile
from spec.settings.job import JobRequest, job_of
from spec.units import MIB

DEGREES = (1, 2, 4, 8)
PROBE_BYTES = 16 * MIB
"""Size of the collectives in the queries; any size does, a curve covers all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One operation and the profile's answer: the name of an origin, or "missing" with the missing curve and the
    command that would measure it."""

    name: str
    answer: str
    curve: str = ""
    command: str = ""


def rank_operations(
    config: ConfigFile, tp: int, micro_batches: Sequence[int], strategy: str = "fsp", framework: str = "megatron"
) -> list[Op]:
    """Returns the operations of one rank out of ``tp`` in every layer kind, the embedding and the head, for these
    micro-batch sizes. Raises ConfigError for a config without a sequence length."""
    if config.seq_len is None:
        raise ConfigError(
            where=config.path, key="seq_len", value=None, allowed="a config with a sequence length, or --seq_len"
        )
    request = JobRequest(
        world_size=tp,
        seq_len=config.seq_len,
        global_batch_tokens=config.seq_len,
        framework=framework,
        settings=config.job,
        where=config.path,
    )
    layout = Layout.of(tp, tp=tp, micro_batch=ints(micro_batches))
    operations = model_ops(config.model, job_of(request), layout, strategy, Recompute.NONE)
    return [op for piece in (*operations.blocks, operations.embedding, operations.head) for op in flat(piece)]


def needs_of(config: ConfigFile, cost_model: ProfileCostModel) -> list[Need]:
    """Returns the profile's answer for each operation of the model; equal names are listed once per degree."""
    needs: dict[tuple[str, str], Need] = {}
    # Degrees that do not divide every kind of head cannot shard the model.
    for tp in (one for one in DEGREES if not any(heads % one for heads in config.model.cut_heads)):
        for op in rank_operations(config, tp, [1]):
            name = f"tp {tp}: {op.phase.value} {op.name}"
            need = _need_of(name, partial(kernel_s, cost_model, op))
            if need is not None:
                needs.setdefault((need.name, need.answer), need)
    return [*needs.values(), *_collective_needs(cost_model)]


def missing_lines(needs: list[Need]) -> list[str]:
    """Returns every missing curve, the operations that need it, and the command that would measure it."""
    names_by_curve: dict[tuple[str, str], list[str]] = {}
    for need in needs:
        if need.answer == "missing":
            names_by_curve.setdefault((need.command, need.curve), []).append(need.name)
    lines = []
    for command, members in groupby(sorted(names_by_curve.items()), key=lambda item: item[0][0]):
        lines.append(f"  measure with: {command}")
        lines += [
            f"    {curve}: {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
            for (_, curve), names in members
        ]
    return lines


def _need_of(name: str, ask: Callable[[], TimeEstimate | None]) -> Need | None:
    try:
        estimate = ask()
    except MissingCurveError as error:
        return Need(name=name, answer="missing", curve=error.key, command=error.command)
    if estimate is None:
        return None
    # Shapes without work are DERIVED; of the others the least known decides.
    busy = estimate.origin[estimate.origin != int(Origin.DERIVED)]
    return Need(name=name, answer=ORIGIN_NAMES[int(np.max(busy))]) if busy.size else None


def _collective_needs(cost_model: ProfileCostModel) -> Iterator[Need]:
    ranks = max(cost_model.profile.machine.gpus_per_node, 2)
    for intra, inter, where in ((ranks, 1, "inside a domain"), (ranks, 2, "across domains")):
        for kind in TRAINING_COLLECTIVES:
            if kind is Collective.P2P:
                # A message is between two ranks, in one domain or in two.
                pair = P2PQuery(size_bytes=PROBE_BYTES, intra=2 if inter == 1 else 1, inter=inter)
                need = _need_of(f"p2p {where}", partial(cost_model.p2p_s, pair))
            else:
                query = CollectiveQuery(collective=kind, size_bytes=PROBE_BYTES, intra=intra, inter=inter)
                need = _need_of(f"{kind.value} {where}", partial(cost_model.collective_s, query))
            if need is not None:
                yield need
    update = _need_of("optimizer step", partial(cost_model.optimizer_s, OptimizerQuery(elements=1 << 28)))
    if update is not None:
        yield update
