"""The launches of a rank, from a trace or a log, and the reader of traces."""

import gzip
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from spec.errors import ConfigError
from spec.files import MOST_MEASURED_BYTES, UnreadableFileError, read_bytes
from spec.units import US


class Part(StrEnum):
    """The parts of a step by which a comparison adds up seconds."""

    PRODUCT = "products"
    ATTENTION = "attention"
    KERNEL = "memory-bound"
    OPTIMIZER = "optimizer"
    COLLECTIVE = "communication"


FORWARD, BACKWARD = "forward", "backward"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Identity of an operation of a run; a field is None if its source does not report it.

    ``what``: the name of a collective (profdb's; p2p for a message in either direction), else the part. ``direction``:
    forward or backward. ``shape``: of a product (batch, smaller of m and n, k, larger of m and n), because a weight
    gradient may be computed as its transpose; of an attention the elements of its queries. ``size_bytes`` and ``ranks``
    are a collective's.
    """

    part: Part
    what: str
    direction: str | None = None
    shape: tuple[int, ...] | None = None
    size_bytes: int | None = None
    ranks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLaunch:
    """A launch: its start and seconds on the device, and its name in the source. ``pairs`` of queries and keys over all
    heads, of an attention; None if unknown."""

    key: Key
    name: str
    start_s: float
    seconds: float
    pairs: float | None = None


Issued = tuple[float, MeasuredLaunch]
"""When the host issued a launch, and the launch."""


def product_key(batch: int, m: int, k: int, n: int, direction: str | None) -> Key:
    """The key of C = A B with A of m x k."""
    shape = (batch, min(m, n), k, max(m, n))
    return Key(part=Part.PRODUCT, what="product", direction=direction, shape=shape)


def collective_key(what: str, size_bytes: int | None, ranks: int | None) -> Key:
    """The key of a collective; ``size_bytes`` of the whole array on one rank."""
    return Key(part=Part.COLLECTIVE, what=what, size_bytes=size_bytes, ranks=ranks)


# A Chrome trace of torch.profiler (Kineto, libkineto/src/output_json.cpp), plain or gzipped.

GZIP = b"\x1f\x8b"
HEAD_BYTES = 2**16
EXTERNAL = "External id"
"""The number that a kernel shares with the operation of the host that launched it."""
STEP = re.compile(r"ProfilerStep#(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A complete event. ``thread`` is a thread of a process or a stream of a device, ``args`` are the profiler's."""

    name: str
    category: str
    thread: tuple[str, str]
    start_s: float
    seconds: float
    args: Mapping[str, Any]

    @property
    def end_s(self) -> float:
        """End of the event."""
        return self.start_s + self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Events sorted by start; ``steps`` are those of profiler.step(). ``rank`` and ``world_size`` are None if the file does
    not have them."""

    path: Path
    events: Sequence[Event]
    steps: Sequence[Event]
    rank: int | None
    world_size: int | None


def is_trace(path: Path) -> bool:
    """True if a regular file begins like the profiler's traces; False for one that cannot be read."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as handle:
            start = handle.read(HEAD_BYTES)
    except OSError:
        return False
    return start.startswith(GZIP) or b'"traceEvents"' in start or b'"schemaVersion"' in start


def read_trace(path: Path) -> Trace:
    """The trace of a file. Raises ConfigError for another file, and for a trace without a step."""
    try:
        plain = json.loads(_plain(path))
    except (UnreadableFileError, ValueError, RecursionError, OSError, EOFError, zlib.error) as error:
        raise _no_trace(path, str(error)) from error
    rows = plain.get("traceEvents") if isinstance(plain, dict) else None
    if not isinstance(rows, list):
        raise _no_trace(path, "no traceEvents")
    events = sorted((one for row in rows if (one := _event(path, row))), key=lambda one: one.start_s)
    steps = [one for one in events if one.category == "user_annotation" and STEP.fullmatch(one.name)]
    if not steps:
        raise ConfigError(
            where=str(path), key="steps", value=0, allowed="a trace of whole steps: profiler.step() after each"
        )
    distributed = plain.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    return Trace(
        path=path,
        events=events,
        steps=steps,
        rank=_whole(distributed.get("rank")),
        world_size=_whole(distributed.get("world_size")),
    )


def _plain(path: Path) -> bytes:
    """The file's content, unpacked; at most MOST_MEASURED_BYTES."""
    result = read_bytes(path, MOST_MEASURED_BYTES)
    if not result.startswith(GZIP):
        return result
    with gzip.open(path, "rb") as handle:
        text = handle.read(MOST_MEASURED_BYTES + 1)
    if len(text) > MOST_MEASURED_BYTES:
        raise UnreadableFileError(f"is larger than {MOST_MEASURED_BYTES} bytes unpacked")
    return text


def _event(path: Path, row: object) -> Event | None:
    """A complete event; None for events of other kinds. Raises ConfigError for one without its times."""
    if not isinstance(row, dict) or row.get("ph") != "X":
        return None
    start_us, took_us, args = _number(row.get("ts")), _number(row.get("dur")), row.get("args", {})
    if start_us is None or took_us is None or took_us < 0 or not isinstance(args, dict):
        raise _no_trace(path, f"an event without start and duration: {str(row.get('name'))[:40]!r}")
    return Event(
        name=str(row.get("name", "")),
        category=str(row.get("cat", "")),
        thread=(str(row.get("pid")), str(row.get("tid"))),
        start_s=start_us * US,
        seconds=took_us * US,
        args=args,
    )


def _number(value: object) -> float | None:
    """A number of microseconds that can be added up; None for anything else."""
    return float(value) if isinstance(value, int | float) and abs(value) < 1e18 else None


def _whole(value: object) -> int | None:
    """A whole number, which older profilers wrote in quotes; None for anything else."""
    text = str(value)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


def _no_trace(path: Path, why: str) -> ConfigError:
    return ConfigError(
        where=str(path), key="result", value=path.name, allowed=f"a Chrome trace of torch.profiler ({why})"
    )
