"""Checks of columns and stored curves before they are used; the same on reading and writing."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from profdb.cases import Family
from profdb.store.columns import STATUSES, SampleTable, number_limits
from spec.collectives import Collective
from spec.errors import ProfileError
from spec.origin import Origin

TRIAL_LIMITS_S = (1e-9, 1e7)
"""No kernel ends within a nanosecond, and none, modelled ones of a processor included, takes more than four months."""

FIT_KEYS = ("sample_hash", "version", "index", "values")
MOST_VALUES_A_SAMPLE = 64
MOST_VALUES_A_FAMILY = 2**20
"""Curves have a few values per sample, and trees (profdb.fits.surface) of at most 0.1 million values a curve."""


def check_table(table: SampleTable, where: str) -> None:
    """Raises ProfileError for an impossible trial time, an unknown code or label, or an impossible size."""
    where = f"{where}: {table.family.value}"
    low_s, high_s = TRIAL_LIMITS_S
    # Written so that NaN fails.
    if table.trials_s.size and not (low_s <= table.trials_s.min() and table.trials_s.max() <= high_s):
        raise ProfileError(f"{where}: a trial is not a time from {low_s:g} to {high_s:g} s; measure this family again")
    # The offsets must ascend, and only samples with status ok may, and must, have trials.
    counts = np.diff(table.trial_offsets)
    if np.any(counts < 0):
        raise ProfileError(f"{where}: trial offsets run backwards; the file is damaged")
    for name, column, allowed in (("status", table.status, len(STATUSES)), ("origin", table.origin, len(Origin))):
        if table.size and not 0 <= int(column.min()) <= int(column.max()) < allowed:
            raise ProfileError(f"{where}: unknown {name} code; the file is damaged or newer than this program")
    if np.any(counts[table.status == STATUSES.index("ok")] == 0):
        raise ProfileError(f"{where}: status ok without a single trial; the file is damaged")
    for name, (least, most) in number_limits(table.family).items():
        numbers = table.numbers[name]
        if table.size and not least <= int(numbers.min()) <= int(numbers.max()) <= most:
            raise ProfileError(f"{where}: a {name} outside {least} to {most}; the file is damaged")
    if not _are_json_objects(table.launched.values):
        raise ProfileError(f"{where}: what was launched is no JSON object; the file is damaged")
    if table.family is Family.COLLECTIVE:
        unknown = [word for word in table.labels["collective"].values if word not in set(Collective)]
        if unknown:
            raise ProfileError(f"{where}: unknown collective {unknown[0][:40]!r}")


def _are_json_objects(texts: tuple[str, ...]) -> bool:
    """Returns whether each text is a JSON object; all are parsed at once, as there may be one per sample."""
    try:
        result = json.loads("[" + ",".join(texts) + "]")
    except (ValueError, RecursionError):
        return False
    return len(result) == len(texts) and all(isinstance(one, dict) for one in result)


def check_fit(packed: Mapping[str, Any], table: SampleTable, where: str) -> None:
    """Raises ProfileError for stored curves (profdb.fitting.pack_curves) that are not finite, not whole, or larger
    than any fit of this table."""
    where = f"{where}: fits of {table.family.value}"
    try:
        length = sum(_values_of(entry) for entry in json.loads(packed["index"]))
        values = packed["values"]
        # An index and values of one fit: the arrays named in the index must add up to the values.
        whole = (
            sorted(packed) == sorted(FIT_KEYS)
            and isinstance(packed["sample_hash"], str)
            and isinstance(packed["version"], int)
            and values.dtype == np.float64
            and values.shape == (length,)
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ProfileError(f"{where}: damaged ({type(error).__name__}: {error})") from error
    if not whole:
        raise ProfileError(f"{where}: damaged: index and values do not fit each other")
    if length > MOST_VALUES_A_FAMILY + MOST_VALUES_A_SAMPLE * table.size:
        raise ProfileError(f"{where}: {length:,} values, too many for {table.size:,} samples")
    if not np.isfinite(values).all():
        raise ProfileError(f"{where}: a value is not finite; refit with python -m profdb show FILE --refit")


def _values_of(entry: Mapping[str, Any]) -> int:
    """Returns the number of values of one curve of the index; ValueError when a shape is invalid."""
    length = 0
    for name, shape in entry["arrays"]:
        if not isinstance(name, str) or not all(type(side) is int and side >= 0 for side in shape):
            raise ValueError(f"an array of shape {shape}")
        size = 1
        for side in shape:
            size *= side
        length += size
    return length
