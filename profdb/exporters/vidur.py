"""Our measurements as Vidur's profiling folders (profdb.importers.vidur describes them).

Network files have the measured samples themselves. Compute files have the cost model's times at the requested
numbers of tokens, and only rows in which every operation is interpolated inside measured data.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from profdb.cases import AttentionCase, Case, Family, GemmCase, MemoryBoundCase
from profdb.cost_model import ProfileCostModel
from profdb.importers.csv_rows import CsvRow
from profdb.importers.vidur import mlp_cases
from profdb.queries import AttentionQuery, LinearQuery, MemoryBoundQuery, TimeEstimate
from profdb.sample import ProfileDatabase
from spec.collectives import Collective
from spec.errors import ExportError
from spec.files import atomic_file
from spec.origin import Origin
from spec.units import MS

STATISTICS = ("min", "max", "mean", "median", "std")
CACHE_BLOCK = 16
"""Block size in attention rows: vLLM's default; prefill times do not depend on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VidurModel:
    """A model in Vidur's terms: ``n_embd`` is the hidden width, ``n_expanded_embd`` that of the feed-forward layer."""

    n_head: int
    n_kv_head: int
    n_embd: int
    n_expanded_embd: int
    vocab_size: int
    use_gated_mlp: bool


def write_network(profile: ProfileDatabase, folder: str | Path, *, gpus_per_node: int) -> list[Path]:
    """Returns the paths of ``all_reduce.csv`` and ``send_recv.csv`` in ``folder``, written from measured samples.
    Raises ExportError when there is none."""
    paths = []
    for kind, operation in ((Collective.ALL_REDUCE, "all_reduce"), (Collective.P2P, "send_recv")):
        rows = list(_network_rows(profile, kind, operation, gpus_per_node))
        if rows:
            path = Path(folder) / f"{operation}.csv"
            _write(path, rows)
            paths.append(path)
    if not paths:
        raise ExportError(f"{folder}: the profile has no measured all-reduce or p2p to write")
    return paths


def _network_rows(
    profile: ProfileDatabase, kind: Collective, operation: str, gpus_per_node: int
) -> Iterable[dict[str, object]]:
    table = profile.tables.get(Family.COLLECTIVE)
    if table is None:
        return
    chosen = table.labels["collective"].equals(kind.value) & (table.origin == int(Origin.MEASURED))
    for row in np.flatnonzero(chosen).tolist():
        start, stop = int(table.trial_offsets[row]), int(table.trial_offsets[row + 1])
        # Out of memory or failed: no trials.
        if start == stop:
            continue
        intra, inter = (int(table.numbers[name][row]) for name in ("intra", "inter"))
        yield _statistics(operation, table.trials_s[start:stop]) | {
            "rank": 0,
            "num_workers": intra * inter,
            "size": int(table.numbers["size_bytes"][row]),
            "collective": operation,
            "devices_per_node": intra,
            "max_devices_per_node": gpus_per_node,
        }


def write_compute(
    cost_model: ProfileCostModel,
    model: VidurModel,
    folder: str | Path,
    *,
    degrees: Sequence[int],
    tokens: Sequence[int],
) -> list[Path]:
    """Returns the paths of ``mlp.csv`` and ``attention.csv`` in ``folder`` that were written. Raises ExportError when
    not a single row is measured."""
    mlp = [row for tp in degrees for count in tokens if (row := _mlp_row(cost_model, model, tp, count))]
    attention = [row for tp in degrees for count in tokens if (row := _prefill_row(cost_model, model, tp, count))]
    paths = []
    for name, rows in (("mlp.csv", mlp), ("attention.csv", attention)):
        if rows:
            _write(Path(folder) / name, rows)
            paths.append(Path(folder) / name)
    if not paths:
        raise ExportError(f"{folder}: no operation of the model lies inside measured data at these tokens")
    return paths


def _mlp_row(cost_model: ProfileCostModel, model: VidurModel, tp: int, tokens: int) -> dict[str, object] | None:
    sizes = _model_cells(model) | {"num_tokens": tokens, "num_tensor_parallel_workers": tp}
    cells = {name: str(value) for name, value in sizes.items()}
    row: dict[str, object] = {}
    for operation, case in mlp_cases(CsvRow(Path("mlp.csv"), 0, cells)):
        estimate = _ask(cost_model, case)
        # A row has all operations or none: Vidur's format has no empty cells.
        if estimate.origin[0] != int(Origin.MEASURED):
            return None
        row |= _spread(operation, estimate)
    return row | sizes


def _prefill_row(cost_model: ProfileCostModel, model: VidurModel, tp: int, tokens: int) -> dict[str, object] | None:
    if model.n_head % tp:
        return None
    width = model.n_embd // model.n_head
    case = AttentionCase(
        batch=1,
        q_len=tokens,
        kv_len=tokens,
        heads=model.n_head // tp,
        kv_heads=max(model.n_kv_head // tp, 1),
        qk_dim=width,
        v_dim=width,
    )
    estimate = _ask(cost_model, case)
    if estimate.origin[0] != int(Origin.MEASURED):
        return None
    return _spread("attn_prefill", estimate) | {
        "n_embd": model.n_embd,
        "n_q_head": model.n_head,
        "n_kv_head": model.n_kv_head,
        "block_size": CACHE_BLOCK,
        "num_tensor_parallel_workers": tp,
        "max_model_len": tokens,
        "batch_size": 1,
        "prefill_chunk_size": tokens,
        "kv_cache_size": 0,
        "is_prefill": True,
        "attention_backend": "AttentionBackend.FLASH_ATTENTION",
    }


def _model_cells(model: VidurModel) -> dict[str, object]:
    return {name: getattr(model, name) for name in VidurModel.__dataclass_fields__}


def _ask(cost_model: ProfileCostModel, case: Case) -> TimeEstimate:
    """Returns the cost model's time of one compute case, in bf16 (Vidur's fp16 runs at the same rate)."""
    match case:
        case GemmCase():
            return cost_model.linear_s(LinearQuery(m=case.m, k=case.k, n=case.n, layout=case.layout))
        case MemoryBoundCase():
            return cost_model.memory_bound_s(MemoryBoundQuery(kernel=case.kernel, rows=case.rows, width=case.width))
        case AttentionCase():
            sizes = ("batch", "q_len", "kv_len", "heads", "kv_heads", "qk_dim", "v_dim")
            return cost_model.attention_s(AttentionQuery(**{name: getattr(case, name) for name in sizes}))
    raise TypeError(f"no compute case: {case}")


def _spread(operation: str, estimate: TimeEstimate) -> dict[str, object]:
    """Returns the statistics of an interpolated time: all equal but the standard error."""
    predicted = float(estimate.seconds[0]) / MS
    row: dict[str, object] = {f"time_stats.{operation}.{name}": predicted for name in STATISTICS}
    row[f"time_stats.{operation}.std"] = predicted * float(estimate.relative_std[0])
    return row


def _statistics(operation: str, trials_s: np.ndarray) -> dict[str, object]:
    trials = trials_s / MS
    values = (trials.min(), trials.max(), trials.mean(), np.median(trials), trials.std())
    return {f"time_stats.{operation}.{name}": float(value) for name, value in zip(STATISTICS, values, strict=True)}


def _write(path: Path, rows: list[dict[str, object]]) -> None:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportError(f"{path}: cannot be written: {error.strerror}") from error
    with atomic_file(path) as handle:
        handle.write(buffer.getvalue())
