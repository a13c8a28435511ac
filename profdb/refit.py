"""Fits of a whole profile, family by family, on all processors; and merging new samples into a profile file."""

import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from profdb.cases import Family
from profdb.fitting import fit_table, pack_curves, stored_curves
from profdb.sample import ProfileDatabase
from profdb.store.columns import SampleTable
from profdb.store.data_file import load_profile, save_profile
from profdb.store.merge import MergeResult, merge
from profdb.store.sole_writer import sole_writer

PARALLEL_FROM = 10_000
"""Samples from which a second process gains more than its start costs (a second)."""

TOGETHER = frozenset({Family.ATTENTION, Family.OPTIMIZER})
"""Families whose curves are the likeliest to try trees (profdb.fits.surface), fitted by one process: scikit-learn takes
two seconds to import. They also take longest, and begin first."""

Packed = Mapping[str, object]


def with_fits(profile: ProfileDatabase) -> ProfileDatabase:
    """Returns the profile with valid fits for every family, ready to be saved; valid ones are kept."""
    stale = [table for family, table in profile.tables.items() if stored_curves(profile, family) is None]
    # Fits end in any order; the result below has the order of the tables.
    fits = dict(profile.fits) | {family.value: packed for family, packed in _pack(stale)}
    return replace(profile, fits={family.value: fits[family.value] for family in profile.tables})


def _pack(tables: list[SampleTable]) -> Iterator[tuple[Family, Packed]]:
    """Yields each table's packed curves, in the order in which they are done."""
    workers = min(len(tables), len(os.sched_getaffinity(0)))
    if workers < 2 or sum(table.size for table in tables) < PARALLEL_FROM:
        yield from map(_fit_one, tables)
        return
    shared = [table for table in tables if table.family in TOGETHER]
    # ``shared`` is one task, and the first: [shared] * False is no task.
    tasks = [shared] * bool(shared) + [[table] for table in tables if table.family not in TOGETHER]
    # spawn: a forked copy of a process with threads (torch's, BLAS's) may hang
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, initializer=_leave_interrupts_to_the_parent) as pool:
        for fits in pool.imap_unordered(_fit_all, tasks):
            yield from fits


def _fit_all(tables: list[SampleTable]) -> list[tuple[Family, Packed]]:
    return [_fit_one(table) for table in tables]


def _fit_one(table: SampleTable) -> tuple[Family, Packed]:
    return table.family, pack_curves(fit_table(table), table)


def _leave_interrupts_to_the_parent() -> None:
    """Ignores Ctrl-C, which reaches every process; the parent ends its workers and prints one line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def merge_into(into: Path, new: ProfileDatabase) -> MergeResult:
    """Returns the result of merging ``new`` into the profile at ``into`` (made when absent), with new fits. It is one
    step: no other program can write between reading and writing.

    Raises ProfileError, and leaves the file as it was, when it is of another GPU, cannot be read or written.
    """
    with sole_writer(into):
        result = MergeResult(profile=new, differences=(), repeats=0)
        if into.exists():
            result = merge(load_profile(into), new)
        fitted = with_fits(result.profile)
        save_profile(into, fitted)
    return MergeResult(profile=fitted, differences=result.differences, repeats=result.repeats)
