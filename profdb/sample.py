"""One sample, the machine it was taken on, and a profile: all samples of one machine."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import overload

import numpy as np

from profdb.cases import CASE_OF, FAMILY_OF, Case, Family
from profdb.store.checks import TRIAL_LIMITS_S
from profdb.store.columns import STATUSES, LabelColumn, SampleTable, label_names, number_limits
from spec.arrays import IntArray, ints
from spec.collectives import Collective
from spec.errors import ProfileError
from spec.origin import Origin
from spec.program.kinds import MOST_GPUS, shortened

SCHEMA_VERSION = 1

Launched = Mapping[str, str | int | float | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldShape:
    """The processes that ran when a sample was measured; 0 for a modelled one. Raises ProfileError for an impossible
    number."""

    nodes: int = 1
    ranks: int = 1

    def __post_init__(self) -> None:
        for name, number in (("nodes", self.nodes), ("ranks", self.ranks)):
            # ``type(...) is``: True is an int in Python, but no number of ranks.
            if type(number) is not int or not 0 <= number <= MOST_GPUS:
                text = shortened(str(number))
                raise ProfileError(f"{name} = {text} of a sample: a whole number from 0 to {MOST_GPUS}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Raw trials (seconds, each the maximum over the ranks) of one benchmark case.

    ``launched`` describes what really ran (kernel name, real sizes). ``status`` is ok, oom or failed; only an ok
    sample has trials. ``date`` is an ISO date. Raises ProfileError if a trial is not a plausible time.
    """

    case: Case
    trials_s: tuple[float, ...]
    status: str = "ok"
    launched: Launched = field(default_factory=dict)
    origin: Origin = Origin.MEASURED
    date: str = ""
    world: WorldShape = field(default_factory=WorldShape)

    def __post_init__(self) -> None:
        trials = tuple(float(trial) for trial in self.trials_s)
        object.__setattr__(self, "trials_s", trials)
        if self.status not in STATUSES:
            raise ProfileError(f"{self.case}: status {self.status!r} is not one of {', '.join(STATUSES)}")
        if self.status == "ok" and not trials:
            raise ProfileError(f"{self.case}: status ok without a single trial")
        low_s, high_s = TRIAL_LIMITS_S
        if not all(low_s <= trial <= high_s for trial in trials):
            text = str(trials)[:80]
            raise ProfileError(f"{self.case}: a trial is not a time from {low_s:g} to {high_s:g} s: {text}")

    @property
    def median_s(self) -> float:
        """Returns the median of the trials in seconds; infinity when there are none (out of memory, failed)."""
        return float(np.median(self.trials_s)) if self.trials_s else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """The machine on which the samples were measured. Unknown facts are 0 or "".

    ``best_flops`` maps a dtype to the best FLOP/s seen; ``cluster`` is the name of the hardware spec of the machine;
    ``rest`` "modelled": what was not measured is computed from that spec, as in published profiles.
    """

    gpu: str
    memory_bytes: int = 0
    nodes: int = 1
    gpus_per_node: int = 1
    driver: str = ""
    torch: str = ""
    nccl: str = ""
    date: str = ""
    sm_clock_hz: float = 0.0
    memory_clock_hz: float = 0.0
    best_flops: dict[str, float] = field(default_factory=dict)
    cluster: str = ""
    rest: str = ""


def tabulate(samples: Sequence[Sample]) -> dict[Family, SampleTable]:
    """Returns the samples as columns, one table per family that occurs. Raises ProfileError for an impossible size."""
    by_family: dict[Family, list[Sample]] = {}
    for sample in samples:
        by_family.setdefault(FAMILY_OF[type(sample.case)], []).append(sample)
    return {family: _table_of(family, members) for family, members in by_family.items()}


def _table_of(family: Family, samples: list[Sample]) -> SampleTable:
    # Trials of all samples lie end to end in one array; those of sample i are trials_s[offsets[i]:offsets[i + 1]].
    counts = ints([len(sample.trials_s) for sample in samples])
    return SampleTable(
        family=family,
        numbers={name: _sizes(samples, name, limits) for name, limits in number_limits(family).items()},
        labels={name: LabelColumn.of(str(getattr(s.case, name)) for s in samples) for name in label_names(family)},
        trials_s=np.asarray([trial for s in samples for trial in s.trials_s], dtype=np.float64),
        trial_offsets=np.concatenate([ints([0]), np.cumsum(counts)]),
        status=ints([STATUSES.index(s.status) for s in samples]),
        origin=ints([int(s.origin) for s in samples]),
        nodes=ints([s.world.nodes for s in samples]),
        ranks=ints([s.world.ranks for s in samples]),
        date=LabelColumn.of(s.date for s in samples),
        launched=LabelColumn.of(json.dumps(dict(s.launched), sort_keys=True) for s in samples),
    )


def _sizes(samples: Sequence[Sample], name: str, limits: tuple[int, int]) -> IntArray:
    """Returns one numeric field of each sample's case as an array."""
    least, most = limits
    for sample in samples:
        size = getattr(sample.case, name)
        if not isinstance(size, int) or not least <= size <= most:
            raise ProfileError(
                f"{name} = {shortened(str(size))} of a {FAMILY_OF[type(sample.case)].value} sample: a whole number "
                f"from {least} to {most}"
            )
    return ints([int(getattr(sample.case, name)) for sample in samples])


def case_at(table: SampleTable, row: int) -> Case:
    """Returns the case of one row of a table."""
    case_type = CASE_OF[table.family]
    values: dict[str, object] = {}
    for item in fields(case_type):
        if item.name in table.numbers:
            # Flags are stored as 0 or 1 among the numbers; collectives and other labels as codes into the words of a
            # column.
            number = int(table.numbers[item.name][row])
            values[item.name] = bool(number) if item.type is bool else number
        else:
            column = table.labels[item.name]
            word = column.values[int(column.codes[row])]
            values[item.name] = Collective(word) if item.type is Collective else word
    case: Case = case_type(**values)
    return case


def sample_at(table: SampleTable, row: int) -> Sample:
    """Returns one row of a table as a Sample."""
    start, stop = int(table.trial_offsets[row]), int(table.trial_offsets[row + 1])
    return Sample(
        case=case_at(table, row),
        trials_s=tuple(table.trials_s[start:stop].tolist()),
        status=STATUSES[int(table.status[row])],
        launched=json.loads(table.launched.values[int(table.launched.codes[row])]),
        origin=Origin(int(table.origin[row])),
        date=table.date.values[int(table.date.codes[row])],
        world=WorldShape(nodes=int(table.nodes[row]), ranks=int(table.ranks[row])),
    )


class Samples(Sequence[Sample]):
    """A sequence of samples stored as columns; a Sample object is made only when an element is read."""

    __slots__ = ("tables",)

    def __init__(self, tables: Mapping[Family, SampleTable]) -> None:
        self.tables = {family: tables[family] for family in Family if family in tables}

    def __len__(self) -> int:
        return sum(table.size for table in self.tables.values())

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | Sequence[Sample]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if place < 0:
            raise IndexError(index)
        for table in self.tables.values():
            # Indices run over the families' tables one after another.
            if place < table.size:
                return sample_at(table, place)
            place -= table.size
        raise IndexError(index)

    def __iter__(self) -> Iterator[Sample]:
        for table in self.tables.values():
            for row in range(table.size):
                yield sample_at(table, row)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileDatabase:
    """All samples of one machine. ``samples`` may be any sequence and is stored as columns (``tables``). ``fits``
    holds the packed curves of each family as profdb.fitting stores them."""

    machine: MachineFacts
    samples: Sequence[Sample] = ()
    fits: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        if not isinstance(self.samples, Samples):
            object.__setattr__(self, "samples", Samples(tabulate(self.samples)))

    @property
    def tables(self) -> dict[Family, SampleTable]:
        """Returns the samples as columns, one table for each family that occurs."""
        assert isinstance(self.samples, Samples)
        return self.samples.tables

    def measured_samples(self, family: Family) -> list[Sample]:
        """Returns the good samples of a family that were measured on the machine itself."""
        table = self.tables.get(family)
        if table is None:
            return []
        good = (table.status == STATUSES.index("ok")) & (table.origin == int(Origin.MEASURED))
        return [sample_at(table, row) for row in np.flatnonzero(good).tolist()]

    def missing(self, requested: str) -> str:
        """Returns what is done about a missing curve: "modelled" where the profile says so of itself, else as requested
        ("error" or "modelled")."""
        return self.machine.rest or requested

    @property
    def is_measured(self) -> bool:
        """Returns whether any sample was measured on the machine itself."""
        return any(bool((table.origin == int(Origin.MEASURED)).any()) for table in self.tables.values())
