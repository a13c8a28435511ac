"""Merging two profiles of one kind of machine into one, without losing a trial that was taken on it.

Published samples (their ``launched`` has the word "published": repository, commit and file) are of somebody else's
machine. They give way to the machine's own, family by family.
"""

import json
from dataclasses import dataclass, replace

import numpy as np

from profdb.sample import MachineFacts, ProfileDatabase, Samples, case_at
from profdb.store.columns import SampleTable, join_tables
from spec.arrays import BoolArray, IntArray
from spec.errors import ProfileError
from spec.origin import Origin

PUBLISHED = "published"
"""Key of ``launched`` under which a published sample names repository, commit and file."""

DIFFERS = 0.1
"""Assumption: two runs of one case differ when their medians are more than 10 % apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A case whose two runs disagree."""

    case: object
    first_s: float
    second_s: float

    @property
    def ratio(self) -> float:
        """Returns the second median over the first."""
        return self.second_s / self.first_s


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """The merged profile, the cases whose runs disagree (worst first), and the repeats left out."""

    profile: ProfileDatabase
    differences: tuple[Difference, ...]
    repeats: int


def merge(first: ProfileDatabase, second: ProfileDatabase, *, differs: float = DIFFERS) -> MergeResult:
    """Returns all samples of both. Trials of both runs of one case stay two samples; a sample that is in both files
    (same case, trials and date) is added once. ``differs`` is the relative difference of medians from which a case is
    reported. Raises ProfileError when the GPUs are not the same."""
    if first.machine.gpu != second.machine.gpu:
        raise ProfileError(
            f"profiles of different GPUs cannot be merged: {first.machine.gpu!r} and "
            f"{second.machine.gpu!r}; keep them in two files"
        )
    tables = dict(first.tables)
    differences: list[Difference] = []
    repeats = 0
    for family, table in second.tables.items():
        if family not in tables:
            tables[family] = table
            continue
        old, new = tables[family], table
        if _has_own(old) or _has_own(new):
            old, new = (one.take(np.flatnonzero(~is_published(one)).astype(np.int64)) for one in (old, new))
        fresh = _fresh_rows(old, new)
        repeats += new.size - fresh.shape[0]
        differences += _differences(old, new.take(fresh), differs)
        tables[family] = join_tables(old, new.take(fresh))
    differences.sort(key=lambda difference: -abs(np.log(difference.ratio)))
    profile = ProfileDatabase(
        machine=_merge_machines(first.machine, second.machine),
        samples=Samples(tables),
        # Fits are valid only while the samples they were made from are unchanged (their hash says so): of a family
        # that only one profile has, its fits stay.
        fits={**second.fits, **first.fits},
    )
    return MergeResult(profile=profile, differences=tuple(differences), repeats=repeats)


def is_published(table: SampleTable) -> BoolArray:
    """Returns which samples were taken on another machine of the kind, and published."""
    words = [PUBLISHED in json.loads(text) for text in table.launched.values]
    return np.asarray(words, dtype=np.bool_)[table.launched.codes]


def published_sources(table: SampleTable) -> list[str]:
    """Returns repository, commit and file of the published samples."""
    launched = (json.loads(text) for text in table.launched.values)
    return sorted({str(one[PUBLISHED]) for one in launched if PUBLISHED in one})


def _has_own(table: SampleTable) -> bool:
    """Returns whether any sample was measured on the machine itself."""
    return bool(((table.origin == int(Origin.MEASURED)) & ~is_published(table)).any())


def _trial_keys(table: SampleTable) -> list[tuple[object, ...]]:
    offsets, trials, dates = table.trial_offsets.tolist(), table.trials_s, table.date.labels()
    status, origin = table.status.tolist(), table.origin.tolist()
    return [
        (*case, status[row], origin[row], dates[row], trials[offsets[row] : offsets[row + 1]].tobytes())
        for row, case in enumerate(table.case_keys())
    ]


def _fresh_rows(old: SampleTable, new: SampleTable) -> IntArray:
    earlier = set(_trial_keys(old))
    return np.asarray([row for row, key in enumerate(_trial_keys(new)) if key not in earlier], dtype=np.int64)


def _differences(old: SampleTable, new: SampleTable, differs: float) -> list[Difference]:
    """Returns the measured cases of both tables whose medians are more than ``differs`` apart."""
    by_case: dict[tuple[object, ...], list[float]] = {}
    for key, median, origin in zip(old.case_keys(), old.medians_s().tolist(), old.origin.tolist(), strict=True):
        if np.isfinite(median) and origin == int(Origin.MEASURED):
            by_case.setdefault(key, []).append(median)
    result = []
    for row, (key, median) in enumerate(zip(new.case_keys(), new.medians_s().tolist(), strict=True)):
        if key not in by_case or not np.isfinite(median) or new.origin[row] != int(Origin.MEASURED):
            continue
        before = float(np.median(by_case[key]))
        if abs(median / before - 1.0) > differs:
            result.append(Difference(case=case_at(new, row), first_s=before, second_s=median))
    return result


def _merge_machines(first: MachineFacts, second: MachineFacts) -> MachineFacts:
    """Returns the facts of the later run, with the larger shape and the better rates of both."""
    # ISO dates compare as text.
    late, early = (second, first) if second.date >= first.date else (first, second)
    best = dict(early.best_flops)
    for dtype, flops in late.best_flops.items():
        best[dtype] = max(flops, best.get(dtype, 0.0))
    return replace(
        late,
        nodes=max(first.nodes, second.nodes),
        gpus_per_node=max(first.gpus_per_node, second.gpus_per_node),
        memory_bytes=late.memory_bytes or early.memory_bytes,
        driver=late.driver or early.driver,
        torch=late.torch or early.torch,
        nccl=late.nccl or early.nccl,
        sm_clock_hz=late.sm_clock_hz or early.sm_clock_hz,
        memory_clock_hz=late.memory_clock_hz or early.memory_clock_hz,
        best_flops=best,
        cluster=late.cluster or early.cluster,
        rest=late.rest or early.rest,
    )
