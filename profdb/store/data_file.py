"""Profiles as files: ``data.pt``, a torch.save of plain dicts, strings and tensors.

docs/data_format.md describes every key. Files are read as plain data alone (profdb.store.plain_tensors) and
written to a temporary name first: a killed run leaves the old file or the new one.
"""

import io
import json
import pickle
import stat
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from profdb.cases import Family
from profdb.sample import SCHEMA_VERSION, MachineFacts, ProfileDatabase, Samples
from profdb.store.checks import check_fit, check_table
from profdb.store.columns import LabelColumn, SampleTable, label_names, number_names
from profdb.store.plain_tensors import plain_document
from spec.arrays import IntArray
from spec.errors import ExportError, ProfileError
from spec.files import atomic_path
from spec.program.command import without_interrupts

FORMAT = "training-profile"
REMEDY = "make one with: torchrun --nproc-per-node=8 gen_profiler_data.py"

MOST_BYTES = 2**30
"""A hundred times the profile of a large sweep."""

MOST_OF_A_FACT = 2**63
"""Bytes, Hz, FLOP/s: more than any machine has."""


def save_profile(path: str | Path, profile: ProfileDatabase) -> None:
    """Writes the profile to ``path``, replacing it in one step.

    Raises ProfileError when it cannot be written, or load_profile would not read it: nothing is written then.
    """
    with without_interrupts():
        import torch

    target = Path(path)
    document = {
        "format": FORMAT,
        "schema_version": profile.schema_version,
        "machine": asdict(profile.machine),
        "families": {family.value: _table_to_plain(table) for family, table in profile.tables.items()},
        "fits": {
            family: {name: _to_plain(value) for name, value in packed.items()}
            for family, packed in profile.fits.items()
        },
    }
    # Written to memory first, so that the checks below see the file's bytes.
    buffer = io.BytesIO()
    try:
        torch.save(document, buffer)
        content = buffer.getvalue()
        # Read back before the old file is replaced: only a readable profile is ever written.
        profile_in(content, f"{target}: not written")
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(target) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise ProfileError(f"{target}: cannot be written ({error.strerror or error})") from error
    except ExportError as error:
        raise ProfileError(str(error)) from error


def load_profile(path: str | Path) -> ProfileDatabase:
    """Returns the profile in a file. Raises ProfileError, one line with the file and a remedy, for anything that is
    not a whole profile of this schema: missing, empty, truncated, damaged, a pickle, another torch file, impossible
    times."""
    source = Path(path)
    return profile_in(_content_of(source), str(source))


def _content_of(source: Path) -> bytes:
    """Returns the bytes of a profile file.

    Raises ProfileError, one line, when there is no such file or it is a folder, a device, empty or too large.
    """
    try:
        result = source.stat()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ProfileError(f"{source}: no such profile ({reason}); {REMEDY}") from error
    if stat.S_ISDIR(result.st_mode):
        raise ProfileError(f"{source}: a folder, not a profile file; name the data.pt in it")
    if not stat.S_ISREG(result.st_mode):
        raise ProfileError(f"{source}: a pipe or a device, not a profile file")
    if result.st_size == 0:
        raise ProfileError(f"{source}: empty file, not a profile; {REMEDY}")
    if result.st_size > MOST_BYTES:
        raise ProfileError(f"{source}: {result.st_size:,} bytes; a profile has at most {MOST_BYTES:,}")
    try:
        return source.read_bytes()
    except OSError as error:
        raise ProfileError(f"{source}: cannot be read ({error.strerror or error})") from error


def profile_in(content: bytes, where: str) -> ProfileDatabase:
    """Returns the profile in the bytes of a file; raises ProfileError, beginning with ``where``, when there is none."""
    document = _document_in(content, where)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ProfileError(f"{where}: a torch file, but no profile (no format {FORMAT!r}); {REMEDY}")
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ProfileError(
            f"{where}: schema version {version!r}, this program reads {SCHEMA_VERSION}; "
            "measure again or use the program version that wrote it"
        )
    try:
        machine = _machine_from_plain(document["machine"])
        # Families are stored by name: an unknown one is a ValueError here and a damaged file below.
        tables = {Family(name): _table_from_plain(Family(name), plain) for name, plain in document["families"].items()}
        fits = {Family(family).value: dict(packed) for family, packed in document.get("fits", {}).items()}
    except (*UNREADABLE, RecursionError) as error:
        reason = str(error).split("\n", maxsplit=1)[0][:120]
        raise ProfileError(f"{where}: damaged profile ({type(error).__name__}: {reason}); {REMEDY}") from error
    for table in tables.values():
        check_table(table, where)
    for name, packed in fits.items():
        if Family(name) not in tables:
            raise ProfileError(f"{where}: fits of {name}, of which it has no samples; {REMEDY}")
        check_fit(packed, tables[Family(name)], where)
    return ProfileDatabase(machine=machine, samples=Samples(tables), fits=fits)


def _document_in(content: bytes, where: str) -> object:
    """Returns the plain data in the archive."""
    try:
        return plain_document(content)
    except (pickle.UnpicklingError, zipfile.BadZipFile, struct.error, *UNREADABLE) as error:
        reason = str(error).split("\n", maxsplit=1)[0][:120]
        raise ProfileError(f"{where}: damaged, or not plain data ({reason}); {REMEDY}") from error


# Errors, besides those of pickle and zipfile themselves, of reading a stream that torch.save did not write.
UNREADABLE = (
    RuntimeError,
    EOFError,
    KeyError,
    IndexError,
    ValueError,
    TypeError,
    AttributeError,
    AssertionError,
    OverflowError,
    MemoryError,
)


def _to_plain(value: object) -> object:
    with without_interrupts():
        import torch

    # Arrays are stored as tensors, everything else as it is.
    return torch.from_numpy(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value


def _column(value: Any, dtype: type, what: str) -> Any:
    """Returns the value if it is a 1-D array of exactly this dtype; raises ValueError for another."""
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype != dtype:
        actual = f"{value.ndim}-D {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
        raise ValueError(f"{what} is {actual}, not 1-D {np.dtype(dtype)}")
    return value


def _labels_to_plain(column: LabelColumn) -> dict[str, object]:
    return {"codes": _to_plain(column.codes), "values": json.dumps(list(column.values))}


def _labels_from_plain(plain: Mapping[str, Any], size: int) -> LabelColumn:
    codes = _column(plain["codes"], np.int64, "a column of words")
    values = json.loads(plain["values"])
    if not isinstance(values, list) or not all(isinstance(word, str) for word in values):
        raise ValueError("the values of a column of words are no list of words")
    if codes.shape != (size,) or (size and not 0 <= int(codes.min()) <= int(codes.max()) < len(values)):
        raise ValueError("a column of words does not match its values")
    return LabelColumn(codes=codes, values=tuple(values))


def _table_to_plain(table: SampleTable) -> dict[str, object]:
    return {
        "numbers": {name: _to_plain(column) for name, column in table.numbers.items()},
        "words": {name: _labels_to_plain(column) for name, column in table.labels.items()},
        "trials_s": _to_plain(table.trials_s),
        "trial_offsets": _to_plain(table.trial_offsets),
        "status": _to_plain(table.status),
        "origin": _to_plain(table.origin),
        "nodes": _to_plain(table.nodes),
        "ranks": _to_plain(table.ranks),
        # The key of the file format since its first version.
        "taken": _labels_to_plain(table.date),
        "launched": _labels_to_plain(table.launched),
    }


def _table_from_plain(family: Family, plain: Mapping[str, Any]) -> SampleTable:
    size = int(plain["status"].shape[0])

    def column(name: str, values: Any) -> IntArray:
        array: IntArray = _column(values, np.int64, f"column {name} of {family.value}")
        if array.shape != (size,):
            raise ValueError(f"column {name} of {family.value} has {array.shape}, not {size} rows")
        return array

    offsets = _column(plain["trial_offsets"], np.int64, f"trial_offsets of {family.value}")
    trials = _column(plain["trials_s"], np.float64, f"trials_s of {family.value}")
    # N samples have N + 1 offsets: the first is 0, the last the number of all trials.
    if offsets.shape != (size + 1,) or int(offsets[0]) != 0 or int(offsets[-1]) != trials.shape[0]:
        raise ValueError(f"trial_offsets of {family.value} do not fit its trials")
    return SampleTable(
        family=family,
        numbers={name: column(name, plain["numbers"][name]) for name in number_names(family)},
        labels={name: _labels_from_plain(plain["words"][name], size) for name in label_names(family)},
        trials_s=trials,
        trial_offsets=offsets,
        status=column("status", plain["status"]),
        origin=column("origin", plain["origin"]),
        nodes=column("nodes", plain["nodes"]),
        ranks=column("ranks", plain["ranks"]),
        date=_labels_from_plain(plain["taken"], size),
        launched=_labels_from_plain(plain["launched"], size),
    )


def _machine_from_plain(plain: Mapping[str, Any]) -> MachineFacts:
    """Returns the facts, each of the type that MachineFacts has; raises ValueError for another."""
    values: dict[str, Any] = {}
    for field in fields(MachineFacts):
        # Facts that a file lacks keep their defaults: older files have fewer.
        if field.name not in plain:
            continue
        value: Any = plain[field.name]
        if field.type is float and type(value) is int:
            value = float(value)
        accepted = field.type if isinstance(field.type, type) else dict
        number = float(value) if accepted in (int, float) and type(value) is accepted else 0.0
        if type(value) is not accepted or not 0.0 <= number < MOST_OF_A_FACT:
            raise ValueError(f"machine.{field.name} is {str(value)[:40]!r}")
        values[field.name] = value
    if values.get("rest", "") not in ("", "modelled"):
        raise ValueError(f"machine.rest is {values['rest'][:40]!r}")
    for dtype, flops in values.get("best_flops", {}).items():
        if type(dtype) is not str or type(flops) is not float or not 0.0 <= flops < MOST_OF_A_FACT:
            raise ValueError(f"machine.best_flops.{dtype} is {str(flops)[:40]!r}")
    return MachineFacts(**values)
