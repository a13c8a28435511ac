"""Samples of one family as columns: the form of a profile file and the input of the fits.

Fifty thousand samples are a few dozen arrays. They become Sample objects only where single ones are
read (profdb.sample.Samples).
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from ops.op import Count
from profdb.cases import CASE_OF, Family
from spec.arrays import BoolArray, FloatArray, IntArray, ints

STATUSES: tuple[str, ...] = ("ok", "oom", "failed")
MOST_OF_A_SIZE = 2**50
"""Bytes, elements, rows: more than all accelerators of the world have together."""

NUMBERS = (Count, int, bool)


def number_names(family: Family) -> tuple[str, ...]:
    """Returns the fields of the family's case that are numbers (flags included)."""
    return tuple(field.name for field in fields(CASE_OF[family]) if field.type in NUMBERS)


def number_limits(family: Family) -> dict[str, tuple[int, int]]:
    """Returns the smallest and largest value of each number: of a flag 0 and 1, of a size 1 unless 0 is its default."""
    numbers = [field for field in fields(CASE_OF[family]) if field.type in NUMBERS]
    return {field.name: (int(field.default != 0), 1 if field.type is bool else MOST_OF_A_SIZE) for field in numbers}


def label_names(family: Family) -> tuple[str, ...]:
    """Returns the fields of the family's case that are words (layout, dtype, kernel, ...)."""
    return tuple(field.name for field in fields(CASE_OF[family]) if field.type not in NUMBERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelColumn:
    """A column of words: ``values[codes[i]]`` is the word of row i."""

    codes: IntArray
    values: tuple[str, ...]

    @classmethod
    def of(cls, labels: Iterable[str]) -> "LabelColumn":
        """Returns the column of these words, numbered in order of first appearance."""
        code_of: dict[str, int] = {}
        codes = [code_of.setdefault(word, len(code_of)) for word in labels]
        return cls(codes=np.asarray(codes, dtype=np.int64), values=tuple(code_of))

    def take(self, rows: IntArray) -> "LabelColumn":
        """Returns the column at ``rows``."""
        return LabelColumn(codes=self.codes[rows], values=self.values)

    def equals(self, word: str) -> BoolArray:
        """Returns which rows have ``word``."""
        if word not in self.values:
            return np.zeros(self.codes.shape[0], dtype=np.bool_)
        return np.asarray(self.codes == self.values.index(word), dtype=np.bool_)

    def labels(self) -> list[str]:
        """Returns the words themselves, one per row."""
        return [self.values[code] for code in self.codes.tolist()]


def join_labels(first: LabelColumn, second: LabelColumn) -> LabelColumn:
    """Returns one column after the other."""
    values = list(first.values)
    place = {word: code for code, word in enumerate(values)}
    for word in second.values:
        if word not in place:
            place[word] = len(values)
            values.append(word)
    # The second column numbers its words on its own: its codes are translated to those of the joint column.
    renamed = ints([place[word] for word in second.values]) if second.values else ints([])
    moved = renamed[second.codes] if second.codes.size else second.codes
    return LabelColumn(codes=np.concatenate([first.codes, moved]), values=tuple(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTable:
    """N samples of one family. ``trials_s`` has all trials end to end; those of row i are
    ``trials_s[trial_offsets[i]:trial_offsets[i + 1]]``. ``launched`` is JSON. ``status`` indexes STATUSES, ``origin``
    is a spec.origin.Origin. Every array is 1-D."""

    family: Family
    numbers: dict[str, IntArray]
    labels: dict[str, LabelColumn]
    trials_s: FloatArray
    trial_offsets: IntArray
    status: IntArray
    origin: IntArray
    nodes: IntArray
    ranks: IntArray
    date: LabelColumn
    launched: LabelColumn

    @property
    def size(self) -> int:
        """Returns the number of samples."""
        return int(self.status.shape[0])

    def medians_s(self) -> FloatArray:
        """Returns the median of each row's trials in seconds; infinity for rows without trials (not ok)."""
        counts = np.diff(self.trial_offsets)
        medians = np.full(self.size, np.inf)
        # Rows with equally many trials form one rows x trials array, whose medians are taken at once.
        for count in np.unique(counts[counts > 0]).tolist():
            rows = np.flatnonzero(counts == count)
            picks = self.trial_offsets[rows][:, None] + np.arange(count)[None, :]
            medians[rows] = np.median(self.trials_s[picks], axis=1)
        return medians

    def take(self, rows: IntArray) -> "SampleTable":
        """Returns the samples at ``rows``, in that order."""
        counts = np.diff(self.trial_offsets)[rows]
        offsets = np.concatenate([ints([0]), np.cumsum(counts)])
        # For each trial of the result, its index among the old trials less its index among the new ones.
        starts = np.repeat(self.trial_offsets[rows] - offsets[:-1], counts)
        return SampleTable(
            family=self.family,
            numbers={name: column[rows] for name, column in self.numbers.items()},
            labels={name: column.take(rows) for name, column in self.labels.items()},
            trials_s=self.trials_s[starts + np.arange(int(offsets[-1]))],
            trial_offsets=offsets,
            status=self.status[rows],
            origin=self.origin[rows],
            nodes=self.nodes[rows],
            ranks=self.ranks[rows],
            date=self.date.take(rows),
            launched=self.launched.take(rows),
        )

    def content_hash(self) -> str:
        """Returns the SHA-256 of everything a fit reads: cases, trials, status and origin."""
        digest = hashlib.sha256()
        for name in sorted(self.numbers):
            # Names separate the columns, so that equal bytes under another name give another hash.
            digest.update(name.encode() + b"\0" + np.ascontiguousarray(self.numbers[name]).tobytes())
        for name in sorted(self.labels):
            column = self.labels[name]
            digest.update("\0".join((name, *column.values)).encode() + column.codes.tobytes())
        for array in (self.trials_s, self.trial_offsets, self.status, self.origin):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def case_keys(self) -> list[tuple[object, ...]]:
        """Returns a hashable key of each row's case, equal exactly when the cases are."""
        columns: list[Sequence[object]] = [self.numbers[name].tolist() for name in sorted(self.numbers)]
        columns += [self.labels[name].labels() for name in sorted(self.labels)]
        return list(zip(*columns, strict=True))


def join_tables(first: SampleTable, second: SampleTable) -> SampleTable:
    """Returns the samples of ``first``, then those of ``second``."""
    return SampleTable(
        family=first.family,
        numbers={name: np.concatenate([column, second.numbers[name]]) for name, column in first.numbers.items()},
        labels={name: join_labels(column, second.labels[name]) for name, column in first.labels.items()},
        trials_s=np.concatenate([first.trials_s, second.trials_s]),
        # The second table's trials follow the first one's: its offsets start where those end.
        trial_offsets=np.concatenate([first.trial_offsets, second.trial_offsets[1:] + first.trial_offsets[-1]]),
        status=np.concatenate([first.status, second.status]),
        origin=np.concatenate([first.origin, second.origin]),
        nodes=np.concatenate([first.nodes, second.nodes]),
        ranks=np.concatenate([first.ranks, second.ranks]),
        date=join_labels(first.date, second.date),
        launched=join_labels(first.launched, second.launched),
    )
