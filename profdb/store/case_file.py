"""A file of cases to measure: those of a search's queries, each with all fields of its key.

JSON, so that a person can read it and take lines out:

    {"format": "cases 1", "origin": {"model": "...", ...},
     "cases": [{"seconds": 0.12, "family": "gemm", "case": {"batch": 1, "m": 4096, ...}}, ...]}

``seconds`` is the time of a step that depends on the case, by the search's cost model; cases with the most time come
first. Programs read only the cases and their order.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from profdb.cases import FAMILY_OF, Case
from profdb.store.columns import number_limits
from profdb.store.journal import case_from_plain
from spec.dtypes import DTYPE_BYTES
from spec.errors import ProfileError
from spec.files import MOST_MEASURED_BYTES, UnreadableFileError, atomic_file, read_file_text

FORMAT = "cases 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeighedCase:
    """A case and the time of a step that depends on it."""

    case: Case
    seconds: float


def write_cases(path: Path, cases: Sequence[WeighedCase], origin: Mapping[str, object]) -> None:
    """Writes the cases in their order, whole or not at all; ``origin`` describes the search."""
    lines = [
        json.dumps({"seconds": one.seconds, "family": FAMILY_OF[type(one.case)].value, "case": asdict(one.case)})
        for one in cases
    ]
    head = f'{{"format": {json.dumps(FORMAT)},\n "origin": {json.dumps(dict(origin))},\n "cases": [\n'
    with atomic_file(path) as handle:
        handle.write(head + ",\n".join(f"  {line}" for line in lines) + "\n]}\n")


def read_cases(path: Path) -> tuple[Case, ...]:
    """Returns the cases of a file in its order, each once.

    Raises ProfileError, with the number of the case, for anything that ``write_cases`` would not write.
    """
    try:
        plain = json.loads(read_file_text(path, MOST_MEASURED_BYTES))
    except UnreadableFileError as error:
        raise ProfileError(f"{path}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"{path}: not JSON ({error}); write it with --write_cases") from error
    if not isinstance(plain, dict) or plain.get("format") != FORMAT or not isinstance(plain.get("cases"), list):
        raise ProfileError(f'{path}: not a file of cases ("format": "{FORMAT}"); write it with --write_cases')
    if not plain["cases"]:
        raise ProfileError(f"{path}: has no cases")
    return tuple(dict.fromkeys(_case(path, number, one) for number, one in enumerate(plain["cases"], start=1)))


DTYPE_FIELD = "dtype"
"""Part of the name of every field that is a number format."""


def _case(path: Path, number: int, plain: Any) -> Case:
    """Returns one entry as a case whose numbers and labels are valid for its family."""
    try:
        case = case_from_plain(plain["family"], plain["case"])
        strange = sorted(set(plain["case"]) - {item.name for item in fields(case)})
        if strange:
            raise ValueError(f"no field {strange[0]!r}")
        _check_values(case)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise ProfileError(f"{path}, case {number}: {reason[:200]}") from error
    return case


def _check_values(case: Case) -> None:
    """Raises ValueError for a number or a label that no sample can have."""
    limits = number_limits(FAMILY_OF[type(case)])
    for item in fields(case):
        value = getattr(case, item.name)
        if item.name not in limits:
            if not isinstance(value, str):
                raise ValueError(f"{item.name} = {str(value)[:40]!r}: a word")
            if DTYPE_FIELD in item.name and value not in DTYPE_BYTES:
                raise ValueError(f"{item.name} = {value[:40]!r}: one of {', '.join(DTYPE_BYTES)}")
            continue
        least, most = limits[item.name]
        # ``type(...) is``: True is an int in Python, but no size.
        kind = bool if item.type is bool else int
        if type(value) is not kind or not least <= value <= most:
            allowed = "true or false" if kind is bool else f"a whole number from {least} to {most}"
            raise ValueError(f"{item.name} = {str(value)[:40]}: {allowed}")
