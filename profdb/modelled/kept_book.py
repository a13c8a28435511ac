"""A cost model that remembers what it was asked, from one run to the next.

The model prices a shape in microseconds of computing; a search asks for the same few ten thousand shapes again
and again. Each is priced once, and kept in a file of the cache folder under a hash of everything the times
come from: the sheet, and the source of the model itself. The file is a convenience: one that is damaged,
of other sources or cannot be written is passed over.
"""

import hashlib
import json
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from profdb.lookup.priced import TimeEstimate
from profdb.lookup.queries import (
    AttentionQuery,
    CollectiveQuery,
    GroupedLinearQuery,
    LinearQuery,
    MemoryBoundQuery,
    OptimizerQuery,
    P2PQuery,
    Query,
)
from profdb.lookup.unique_shapes import unique_shapes
from profdb.modelled.cost_model import ModelledCostModel
from spec.arrays import FloatArray, IntArray
from spec.cluster.cluster import ClusterSpec
from spec.errors import ExportError
from spec.files import replaced_path
from spec.origin import Origin

MOST_SHAPES = 500_000
MOST_FILE_BYTES = 2**28
MOST_FILES = 24
"""Sheets and versions of the model whose times are kept; the oldest go first."""

Asked = TypeVar("Asked", bound=Query)


@dataclass(slots=True, kw_only=True)
class Kept:
    """Shapes of one question: ``rows`` (U x D), ``seconds`` and ``relative_std`` (U), and each row's place."""

    rows: list[IntArray] = field(default_factory=list)
    seconds: list[FloatArray] = field(default_factory=list)
    relative_std: list[FloatArray] = field(default_factory=list)
    places: dict[bytes, int] = field(default_factory=dict)

    def add(self, rows: IntArray, seconds: FloatArray, relative_std: FloatArray) -> None:
        """Remember more shapes."""
        first = len(self.places)
        self.rows.append(rows)
        self.seconds.append(seconds)
        self.relative_std.append(relative_std)
        self.places.update((row.tobytes(), first + place) for place, row in enumerate(rows))

    def joined(self) -> tuple[IntArray, FloatArray, FloatArray]:
        """All shapes with their times."""
        self.rows = [np.concatenate(self.rows)]
        self.seconds = [np.concatenate(self.seconds)]
        self.relative_std = [np.concatenate(self.relative_std)]
        return self.rows[0], self.seconds[0], self.relative_std[0]


class KeptBook:
    """Answers as ModelledCostModel does, and remembers. ``folder`` None keeps nothing beyond this process."""

    def __init__(self, cluster: ClusterSpec, folder: Path | None) -> None:
        self.model = ModelledCostModel(cluster=cluster)
        self.path = None if folder is None else folder / f"{digest_of(cluster)}.npz"
        self._kept: dict[str, Kept] = {}
        self._fresh = 0
        if self.path is not None:
            with suppress(
                OSError, ValueError, KeyError, TypeError, EOFError, MemoryError, zipfile.BadZipFile
            ):
                self._kept = _read(self.path)

    def linear_s(self, query: LinearQuery) -> TimeEstimate:
        """As ModelledCostModel."""
        return self._priced(query, ModelledCostModel.linear_s)

    def grouped_linear_s(self, query: GroupedLinearQuery) -> TimeEstimate:
        """As ModelledCostModel."""
        return self._priced(query, ModelledCostModel.grouped_linear_s)

    def attention_s(self, query: AttentionQuery) -> TimeEstimate:
        """As ModelledCostModel."""
        return self._priced(query, ModelledCostModel.attention_s)

    def memory_bound_s(self, query: MemoryBoundQuery) -> TimeEstimate:
        """As ModelledCostModel."""
        return self._priced(query, ModelledCostModel.memory_bound_s)

    def collective_s(self, query: CollectiveQuery) -> TimeEstimate:
        """As ModelledCostModel."""
        return self._priced(query, ModelledCostModel.collective_s)

    def p2p_s(self, query: P2PQuery) -> TimeEstimate:
        """As ModelledCostModel."""
        return self._priced(query, ModelledCostModel.p2p_s)

    def optimizer_s(self, query: OptimizerQuery) -> TimeEstimate:
        """As ModelledCostModel."""
        return self._priced(query, ModelledCostModel.optimizer_s)

    def cpu_s(self, kind: str) -> TimeEstimate:
        """As ModelledCostModel; nothing to remember."""
        return self.model.cpu_s(kind)

    def _priced(self, query: Asked, ask: Callable[[ModelledCostModel, Asked], TimeEstimate]) -> TimeEstimate:
        """Each different shape priced once."""
        unique, inverse = unique_shapes(query.columns())
        rows = np.ascontiguousarray(np.stack(list(unique.values()), axis=1))
        question = _question(query)
        kept = self._kept.get(question, Kept())
        known = np.fromiter((row.tobytes() in kept.places for row in rows), dtype=np.bool_, count=len(rows))
        if not known.all():
            asked: dict[str, Any] = {name: column[~known] for name, column in unique.items()}
            told = ask(self.model, replace(query, **asked))
            kept.add(rows[~known], told.seconds, told.relative_std)
            self._kept[question] = kept
            self._fresh += int(np.count_nonzero(~known))
        _, seconds, relative_std = kept.joined()
        at = np.fromiter((kept.places[row.tobytes()] for row in rows), dtype=np.int64, count=len(rows))
        return TimeEstimate(
            seconds=seconds[at][inverse],
            relative_std=relative_std[at][inverse],
            origin=np.full(inverse.shape, int(Origin.MODELLED), dtype=np.int64),
        )

    def keep(self) -> None:
        """Write what is new to the cache folder, where there is one that can be written."""
        if self.path is None or not self._fresh:
            return
        if sum(len(kept.places) for kept in self._kept.values()) > MOST_SHAPES:
            return
        with suppress(OSError, ExportError):
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write(self.path, self._kept)
            _drop_oldest(self.path.parent)
            self._fresh = 0


def digest_of(cluster: ClusterSpec) -> str:
    """A hash of the sheet and of the source that makes times of it."""
    here = Path(__file__).resolve().parents[2]
    sources = sorted((here / "profdb" / "modelled").rglob("*.py"))
    for folder in ("ops", "profdb/lookup", "spec"):
        sources += sorted((here / folder).glob("*.py"))
    digest = hashlib.sha256(repr(cluster).encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:32]


def _question(query: Query) -> str:
    """What is asked besides the shape, as a key."""
    numbers = query.numeric_names()
    words = {name: getattr(query, name) for name in query.__dataclass_fields__ if name not in numbers}
    return json.dumps([type(query).__name__, words], sort_keys=True, default=str)


def _write(path: Path, kept: dict[str, Kept]) -> None:
    arrays: dict[str, Any] = {"questions": np.array(json.dumps(list(kept)))}
    for index, one in enumerate(kept.values()):
        arrays[f"rows{index}"], arrays[f"seconds{index}"], arrays[f"std{index}"] = one.joined()
    with replaced_path(path) as temporary, temporary.open("wb") as handle:
        np.savez(handle, **arrays)


def _read(path: Path) -> dict[str, Kept]:
    """What _write wrote; any of the errors that KeptBook passes over for another file."""
    if not path.is_file() or path.stat().st_size > MOST_FILE_BYTES:
        return {}
    found: dict[str, Kept] = {}
    with np.load(path, allow_pickle=False) as archive:
        for index, question in enumerate(json.loads(str(archive["questions"]))):
            rows, seconds, std = (archive[f"{name}{index}"] for name in ("rows", "seconds", "std"))
            whole = rows.dtype == np.int64 and rows.ndim == 2 and seconds.shape == std.shape == rows.shape[:1]
            if not whole or not (np.isfinite(seconds) & (seconds >= 0.0) & np.isfinite(std)).all():
                raise ValueError(question)
            found[question] = Kept()
            found[question].add(rows, seconds.astype(np.float64), std.astype(np.float64))
    return found


def _drop_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*.npz"), key=lambda path: path.stat().st_mtime)
    for path in files[:-MOST_FILES]:
        path.unlink(missing_ok=True)
