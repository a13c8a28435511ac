"""Profiles as files: ``data.pt``, a torch.save of plain dicts, strings and tensors.

docs/data_format.md describes every key. Files are read with ``weights_only=True`` and written to a
temporary name first: a killed run leaves the old file or the new one.
"""

import contextlib
import io
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from profdb.cases import Family
from profdb.sample import SCHEMA_VERSION, MachineFacts, ProfileDatabase, Samples
from profdb.store.columns import STATUSES, SampleTable, WordColumn, number_names, word_names
from spec.arrays import IntArray
from spec.errors import ProfileError
from spec.origin import Origin

FORMAT = "training-profile"

REMEDY = "make one with: torchrun --nproc-per-node=8 gen_profiler_data.py"


def save_profile(path: str | Path, profile: ProfileDatabase) -> None:
    """Write the profile to ``path``, replacing it in one step; ProfileError when it can't be written."""
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
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        buffer = io.BytesIO()
        torch.save(document, buffer)
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as handle:
            handle.write(buffer.getbuffer())
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(target)
    except OSError as error:
        raise ProfileError(f"{target}: cannot be written ({error.strerror or error})") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def load_profile(path: str | Path) -> ProfileDatabase:
    """Read a profile. ProfileError, one line with the file and a remedy, for anything that is not a
    whole profile of this schema: missing, empty, truncated, a pickle, another torch file, bad times."""
    source = Path(path)
    document = _read_document(source)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ProfileError(f"{source}: a torch file, but no profile (no format {FORMAT!r}); {REMEDY}")
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ProfileError(
            f"{source}: schema version {version!r}, this program reads {SCHEMA_VERSION}; "
            "measure again or use the program version that wrote it"
        )
    try:
        machine = _machine_from_plain(document["machine"])
        tables = {
            Family(name): _table_from_plain(Family(name), plain)
            for name, plain in document["families"].items()
        }
        fits = {
            str(family): {name: _from_plain(value) for name, value in packed.items()}
            for family, packed in document.get("fits", {}).items()
        }
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ProfileError(
            f"{source}: damaged profile ({type(error).__name__}: {error}); {REMEDY}"
        ) from error
    for table in tables.values():
        _check(table, source)
    return ProfileDatabase(machine=machine, samples=Samples(tables), fits=fits)


def _read_document(source: Path) -> object:
    import pickle

    import torch

    if source.is_dir():
        raise ProfileError(f"{source}: a folder, not a profile file; name the data.pt in it")
    try:
        size = source.stat().st_size
    except OSError as error:
        raise ProfileError(f"{source}: no such profile ({error.strerror}); {REMEDY}") from error
    if size == 0:
        raise ProfileError(f"{source}: empty file, not a profile; {REMEDY}")
    if not zipfile.is_zipfile(source):
        raise ProfileError(f"{source}: not a profile, or a truncated one (no torch archive); {REMEDY}")
    try:
        return torch.load(source, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ProfileError(f"{source}: cannot be read ({error.strerror or error})") from error
    except (
        pickle.UnpicklingError,
        RuntimeError,
        EOFError,
        KeyError,
        ValueError,
        zipfile.BadZipFile,
    ) as error:
        reason = str(error).split("\n", maxsplit=1)[0][:120]
        raise ProfileError(f"{source}: damaged, or not plain data ({reason}); {REMEDY}") from error


def _to_plain(value: object) -> object:
    import torch

    return torch.from_numpy(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value


def _from_plain(value: Any) -> object:
    return value.numpy() if hasattr(value, "numpy") else value


def _words_to_plain(column: WordColumn) -> dict[str, object]:
    return {"codes": _to_plain(column.codes), "values": json.dumps(list(column.values))}


def _words_from_plain(plain: Mapping[str, Any], size: int) -> WordColumn:
    codes = plain["codes"].numpy()
    values = tuple(str(word) for word in json.loads(plain["values"]))
    if codes.shape != (size,) or (size and not 0 <= int(codes.min()) <= int(codes.max()) < len(values)):
        raise ValueError("a column of words does not match its values")
    return WordColumn(codes=codes, values=values)


def _table_to_plain(table: SampleTable) -> dict[str, object]:
    return {
        "numbers": {name: _to_plain(column) for name, column in table.numbers.items()},
        "words": {name: _words_to_plain(column) for name, column in table.words.items()},
        "trials_s": _to_plain(table.trials_s),
        "trial_offsets": _to_plain(table.trial_offsets),
        "status": _to_plain(table.status),
        "origin": _to_plain(table.origin),
        "nodes": _to_plain(table.nodes),
        "ranks": _to_plain(table.ranks),
        "taken": _words_to_plain(table.taken),
        "launched": _words_to_plain(table.launched),
    }


def _table_from_plain(family: Family, plain: Mapping[str, Any]) -> SampleTable:
    size = int(plain["status"].shape[0])

    def column(name: str, values: Any) -> IntArray:
        array: IntArray = values.numpy().astype(np.int64, copy=False)
        if array.shape != (size,):
            raise ValueError(f"column {name} of {family.value} has {array.shape}, not {size} rows")
        return array

    offsets = plain["trial_offsets"].numpy().astype(np.int64, copy=False)
    trials = plain["trials_s"].numpy().astype(np.float64, copy=False)
    if offsets.shape != (size + 1,) or int(offsets[0]) != 0 or int(offsets[-1]) != trials.shape[0]:
        raise ValueError(f"trial_offsets of {family.value} do not fit its trials")
    return SampleTable(
        family=family,
        numbers={name: column(name, plain["numbers"][name]) for name in number_names(family)},
        words={name: _words_from_plain(plain["words"][name], size) for name in word_names(family)},
        trials_s=trials,
        trial_offsets=offsets,
        status=column("status", plain["status"]),
        origin=column("origin", plain["origin"]),
        nodes=column("nodes", plain["nodes"]),
        ranks=column("ranks", plain["ranks"]),
        taken=_words_from_plain(plain["taken"], size),
        launched=_words_from_plain(plain["launched"], size),
    )


def _machine_from_plain(plain: Mapping[str, Any]) -> MachineFacts:
    known = {field.name for field in fields(MachineFacts)}
    return MachineFacts(**{name: value for name, value in plain.items() if name in known})


def _check(table: SampleTable, source: Path) -> None:
    where = f"{source}: {table.family.value}"
    if not np.all(np.isfinite(table.trials_s)) or np.any(table.trials_s <= 0.0):
        raise ProfileError(f"{where}: a trial is NaN, infinite, zero or negative; measure this family again")
    if np.any(np.diff(table.trial_offsets) < 0):
        raise ProfileError(f"{where}: trial offsets run backwards; the file is damaged")
    for name, column, allowed in (
        ("status", table.status, len(STATUSES)),
        ("origin", table.origin, len(Origin)),
    ):
        if table.size and not 0 <= int(column.min()) <= int(column.max()) < allowed:
            raise ProfileError(
                f"{where}: unknown {name} code; the file is damaged or newer than this program"
            )
    for name, numbers in table.numbers.items():
        if table.size and int(numbers.min()) < 0:
            raise ProfileError(f"{where}: negative {name}; the file is damaged")
