"""From the samples of a profile to its curves, and the packed form in which curves are stored.

A curve covers the samples of one set of labels (layout, dtype, kernel, ...) and one origin. Fits are stored with the
samples, with the hash of those samples and the version of the method. They are used while both agree and fitted anew
otherwise.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from profdb.cases import Family
from profdb.fits.families import FITTERS, Fitter
from profdb.fits.lines import Arrays
from profdb.sample import ProfileDatabase
from profdb.store.columns import STATUSES, SampleTable
from spec.arrays import FloatArray, IntArray
from spec.origin import Origin

MAX_WORST_POINTS = 5
VERSIONS = {family: fitter.version for family, fitter in FITTERS.items()}
"""Versions of the families' methods. Samples of other families are compared with each other and have no curves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstPoint:
    """A sampled case and the relative error of the curve there when the case is left out."""

    sizes: dict[str, int]
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A fitted curve. ``key`` holds its labels and flags ("0"/"1"), ``ranges`` the smallest and largest sampled size
    by name, ``points`` the number of different cases, ``worst`` the sizes with the largest errors when left out."""

    family: Family
    key: dict[str, str]
    origin: Origin
    points: int
    ranges: dict[str, tuple[int, int]]
    arrays: Arrays
    worst: tuple[WorstPoint, ...] = ()


def fit_table(table: SampleTable) -> list[Curve]:
    """Returns all curves of one family, in order of their keys; none for a family whose samples are only compared
    with others."""
    if table.family not in FITTERS:
        return []
    fitter = FITTERS[table.family]
    counts = np.diff(table.trial_offsets)
    usable = np.flatnonzero((table.status == STATUSES.index("ok")) & (counts > 0))
    if not usable.size:
        return []
    samples = table.take(usable.astype(np.int64))
    # One curve per combination of labels, flags and origin: codes stand for the words, so that rows of integers are
    # compared.
    split = [samples.labels[name].codes for name in fitter.labels]
    split += [samples.numbers[name] for name in fitter.flags] + [samples.origin]
    keys, which = np.unique(np.stack(split, axis=1), axis=0, return_inverse=True)
    curves = [
        _fit_curve(samples.take(np.flatnonzero(which.reshape(-1) == index)), fitter) for index in range(keys.shape[0])
    ]
    return sorted(curves, key=lambda curve: (sorted(curve.key.items()), curve.origin))


def _fit_curve(table: SampleTable, fitter: Fitter) -> Curve:
    table = table.take(_commonest_variant(table, fitter))
    # One curve's samples share their labels: those of the first row are those of all.
    labels = {name: table.labels[name].values[int(table.labels[name].codes[0])] for name in fitter.labels}
    columns = {name: column for name, column in table.numbers.items() if name not in fitter.flags}
    medians = table.medians_s()
    noise = _noise(table, medians)
    cases, seconds = _one_time_per_case(columns, medians)
    flags = {name: str(int(table.numbers[name][0])) for name in fitter.flags}
    arrays = fitter.fit(cases, labels, seconds, noise)
    return Curve(
        family=table.family,
        key=labels | flags,
        origin=Origin(int(table.origin[0])),
        points=int(seconds.shape[0]),
        ranges={name: (int(column.min()), int(column.max())) for name, column in cases.items()},
        worst=_worst(arrays.pop("cv_row", np.zeros(0)), arrays.get("cv_error", np.zeros(0)), cases),
        arrays=arrays,
    )


def _worst(rows: FloatArray, errors: FloatArray, cases: dict[str, IntArray]) -> tuple[WorstPoint, ...]:
    order = np.argsort(-errors)[:MAX_WORST_POINTS]
    return tuple(
        WorstPoint(
            sizes={name: int(column[int(rows[place])]) for name, column in cases.items()}, error=float(errors[place])
        )
        for place in order
    )


def _commonest_variant(table: SampleTable, fitter: Fitter) -> IntArray:
    """Returns the rows of the commonest combination of labels that do not split curves (accumulate dtype, ...)."""
    rest = [column.codes for name, column in sorted(table.labels.items()) if name not in fitter.labels]
    if not rest:
        return np.arange(table.size, dtype=np.int64)
    _, which, counts = np.unique(np.stack(rest, axis=1), axis=0, return_inverse=True, return_counts=True)
    return np.flatnonzero(which.reshape(-1) == int(np.argmax(counts))).astype(np.int64)


def _one_time_per_case(columns: dict[str, IntArray], medians: FloatArray) -> tuple[dict[str, IntArray], FloatArray]:
    """Returns the different cases and the median over the runs of each."""
    if not columns:
        return {}, np.asarray([float(np.median(medians))])
    names = list(columns)
    cases, which = np.unique(np.stack([columns[name] for name in names], axis=1), axis=0, return_inverse=True)
    # Medians of all cases at once: rows sorted by case, then by time; the middle one or two of each case's stretch
    # are its median.
    order = np.lexsort((medians, which.reshape(-1)))
    ends = np.cumsum(np.bincount(which.reshape(-1)))
    starts = np.concatenate([[0], ends[:-1]])
    ordered = medians[order]
    seconds = (ordered[(starts + ends - 1) // 2] + ordered[(starts + ends) // 2]) / 2.0
    return {name: cases[:, column] for column, name in enumerate(names)}, np.asarray(seconds)


def _noise(table: SampleTable, medians: FloatArray) -> float:
    """Returns the median over the samples of (standard deviation of the trials / median); 0 for single trials."""
    counts = np.diff(table.trial_offsets)
    # ``row`` says for each trial which sample it belongs to.
    row = np.repeat(np.arange(table.size), counts)
    square = np.bincount(row, weights=(table.trials_s / medians[row] - 1.0) ** 2, minlength=table.size)
    several = counts > 1
    if not several.any():
        return 0.0
    return float(np.median(np.sqrt(square[several] / (counts[several] - 1))))


def pack_curves(curves: list[Curve], table: SampleTable) -> dict[str, object]:
    """Returns curves as one flat array and a JSON index, with the hash of the samples they are valid for."""
    index: list[dict[str, object]] = []
    values: list[FloatArray] = []
    for curve in curves:
        index.append(
            {
                "key": curve.key,
                "origin": int(curve.origin),
                "points": curve.points,
                "ranges": {name: list(ends) for name, ends in curve.ranges.items()},
                "worst": [[point.error, point.sizes] for point in curve.worst],
                "arrays": [[name, list(array.shape)] for name, array in curve.arrays.items()],
            }
        )
        values += [np.ravel(array) for array in curve.arrays.values()]
    return {
        "sample_hash": table.content_hash(),
        "version": VERSIONS.get(table.family, 0),
        "index": json.dumps(index),
        "values": np.concatenate(values) if values else np.zeros(0),
    }


def unpack_curves(packed: Mapping[str, object], family: Family) -> list[Curve]:
    """Returns the curves that pack_curves wrote."""
    values = np.asarray(packed["values"], dtype=np.float64)
    curves: list[Curve] = []
    place = 0
    for entry in json.loads(str(packed["index"])):
        arrays: Arrays = {}
        for name, shape in entry["arrays"]:
            length = int(np.prod(shape))
            arrays[name] = values[place : place + length].reshape(shape)
            place += length
        # Arrays were packed in the order of the index, each flattened.
        curves.append(
            Curve(
                family=family,
                key=entry["key"],
                origin=Origin(entry["origin"]),
                points=entry["points"],
                ranges=dict(zip(entry["ranges"], map(tuple, entry["ranges"].values()), strict=True)),
                arrays=arrays,
                worst=tuple(WorstPoint(error=error, sizes=sizes) for error, sizes in entry["worst"]),
            )
        )
    return curves


def stored_curves(profile: ProfileDatabase, family: Family) -> list[Curve] | None:
    """Returns the family's stored curves; None when there are none for these samples and this method, or they cannot
    be read (they can always be fitted anew)."""
    packed = profile.fits.get(family.value)
    if packed is None or packed.get("version") != VERSIONS.get(family, 0):
        return None
    if packed.get("sample_hash") != profile.tables[family].content_hash():
        return None
    try:
        return unpack_curves(packed, family)
    except (KeyError, ValueError, TypeError):
        return None


def curves_of(profile: ProfileDatabase, family: Family) -> list[Curve]:
    """Returns the family's curves: stored ones when they are valid, else fitted now; [] without samples."""
    if family not in profile.tables:
        return []
    stored = stored_curves(profile, family)
    return fit_table(profile.tables[family]) if stored is None else stored
