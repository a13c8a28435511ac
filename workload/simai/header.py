"""Line 1 of a SimAI workload file, read as the simulator reads it.

Source: SimAI 1.6/1.7, ``Workload::initialize_workload``: the line is split at white space, every word
is compared with each key including its colon, the next word is read with ``stoi``; order is free, the
last of two wins, unknown words are passed over.
"""

import re
from dataclasses import dataclass, field

from workload.findings import Finding, Severity
from workload.simai.format import TRANSFORMER, TRANSFORMER_RECOMPUTE, SimaiHeader

POLICIES = (
    "DATA",
    "MODEL",
    TRANSFORMER,
    TRANSFORMER_RECOMPUTE,
    "HYBRID_DLRM",
    "HYBRID_DLRM_ENHANCED",
    "HYBRID_DATA_MODEL",
    "HYBRID_MODEL_DATA",
    "HYBRID_CUSTOMIZED",
    "MICRO",
    "DISTRIBUTED_INFERENCE",
)
DEGREES = ("model_parallel_NPU_group", "ep", "pp", "vpp", "ga", "all_gpus")
LISTS = ("checkpoints", "checkpoint_initiates")
PP_COMM = "pp_comm"
# Written by AICB's inference files, passed over by the parser on purpose.
HARMLESS = {"mode:"}
_MISSING = {
    "model_parallel_NPU_group": "SimAI dies of a division by zero",
    "pp": "SimAI dies of a division by zero",
    "ep": "SimAI divides by zero where a row has a DP_EP word",
    "vpp": "SimAI's pipeline bubble becomes NaN",
    "ga": "SimAI's pipeline bubble becomes NaN",
    "all_gpus": "the ns-3 front end needs it",
}
_STOI = re.compile(rb"([+-]?)0*([0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class RawHeader:
    """What line 1 says; a degree that is not there is not in ``values``, a key whose value SimAI cannot read
    is in ``unreadable`` alone."""

    policy: str
    values: dict[str, int]
    lists: dict[str, tuple[int, ...]]
    unreadable: frozenset[str] = frozenset()

    @property
    def fields_per_row(self) -> int:
        """Words of one row: HYBRID_CUSTOMIZED has one more."""
        return 13 if self.policy == "HYBRID_CUSTOMIZED" else 12

    def complete(self) -> SimaiHeader | None:
        """The header with all its degrees; None when one is missing or below 1.

        Without a pipeline vpp and ga enter nothing and may be missing.
        """
        values = {"vpp": 1, "ga": 1, **self.values} if self.values.get("pp") == 1 else self.values
        if any(values.get(key, 0) < 1 for key in DEGREES):
            return None
        return SimaiHeader(
            policy=self.policy,
            tp=values["model_parallel_NPU_group"],
            ep=values["ep"],
            pp=values["pp"],
            vpp=values["vpp"],
            ga=values["ga"],
            all_gpus=values["all_gpus"],
            pp_comm_bytes=values.get(PP_COMM, 0),
            checkpoints=self.lists.get("checkpoints", ()),
            checkpoint_initiates=self.lists.get("checkpoint_initiates", ()),
        )


def stoi(word: bytes) -> int | None:
    """The leading whole number of a word as C++ reads it; None when there is none or it leaves 32 bits."""
    match = _STOI.match(word)
    if match is None or len(match[2]) > 10:
        return None
    value = int(match[2]) * (-1 if match[1] == b"-" else 1)
    return value if -(2**31) <= value < 2**31 else None


def text(word: bytes) -> str:
    """A word as printable text: other bytes as escapes, at most 60 characters."""
    shown = word.decode("utf-8", errors="backslashreplace")
    if not shown.isprintable():
        shown = ascii(shown)[1:-1]
    return shown if len(shown) <= 60 else shown[:57] + "..."


def parse_header(line: bytes) -> tuple[RawHeader, list[Finding]]:
    """Line 1 (without line feed) and what is wrong with it."""
    words = line.split()
    if not words:
        return RawHeader(policy="", values={}, lists={}), [
            _finding(Severity.BROKEN, "no-policy", "line 1 is empty; it starts with a policy")
        ]
    found: list[Finding] = []
    policy = text(words[0])
    if policy not in POLICIES:
        found.append(_finding(Severity.BROKEN, "policy", f"unknown policy {policy!r}; SimAI exits"))
    elif policy not in (TRANSFORMER, TRANSFORMER_RECOMPUTE):
        found.append(
            _finding(
                Severity.STOPS, "policy", f"policy {policy}: SimAI-Analytical never learns tp and pp and dies"
            )
        )
    keys = _Keys()
    _read_keys(words, policy, keys, found)
    unread = _unread(words, keys.places)
    if policy in (TRANSFORMER, TRANSFORMER_RECOMPUTE):
        _check_degrees(keys, unread, found)
    found += [_unread_finding(word, key) for word, key in unread.items()]
    header = RawHeader(
        policy=policy, values=keys.values, lists=keys.lists, unreadable=frozenset(keys.unreadable)
    )
    return header, found


@dataclass(slots=True)
class _Keys:
    """What the keys of line 1 hold, and the places of the words that were read."""

    values: dict[str, int] = field(default_factory=dict)
    lists: dict[str, tuple[int, ...]] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)
    places: set[int] = field(default_factory=set)


def _read_keys(words: list[bytes], policy: str, keys: _Keys, found: list[Finding]) -> None:
    transformer = policy in (TRANSFORMER, TRANSFORMER_RECOMPUTE)
    degrees = {f"{key}:".encode(): key for key in DEGREES} if transformer else {}
    hops = {PP_COMM.encode(): PP_COMM, f"{PP_COMM}:".encode(): PP_COMM}
    segments = {f"{key}:".encode(): key for key in LISTS} if policy == TRANSFORMER_RECOMPUTE else {}
    for place, word in enumerate(words):
        key = degrees.get(word) or hops.get(word) or segments.get(word)
        if key is None:
            continue
        value = _value(words, place + 1, key, found)
        keys.places |= {place, place + 1, *([place + 2] if key in LISTS and value else [])}
        entries = (
            _read_list(words, place + 2, key, value, found) if key in LISTS and value is not None else ()
        )
        if value is None or entries is None:
            keys.unreadable.add(key)
            continue
        if key in keys.values or key in keys.lists:
            found.append(_finding(Severity.WRONG, "twice", f"{key} is given twice; the last one wins"))
        if key in LISTS:
            keys.lists[key] = entries
        else:
            keys.values[key] = value


def _value(words: list[bytes], place: int, key: str, found: list[Finding]) -> int | None:
    """The number at ``place``; None, with a finding, when SimAI would abort there."""
    if place >= len(words):
        found.append(
            _finding(Severity.BROKEN, "no-value", f"{key} has no value; SimAI reads past the line and dies")
        )
        return None
    word = words[place]
    value = stoi(word)
    if value is None:
        reason = "is 2^31 or more" if _STOI.match(word) else "is no number"
        found.append(_finding(Severity.BROKEN, "value", f"{key} = {text(word)} {reason}; SimAI aborts"))
    elif not word.lstrip(b"+-").isdigit():
        found.append(_finding(Severity.NOTE, "not-whole", f"{key} = {text(word)} is taken as {value}"))
    return value


def _read_list(
    words: list[bytes], place: int, key: str, length: int, found: list[Finding]
) -> tuple[int, ...] | None:
    """The one entry that SimAI takes of a list; None, with a finding, when it would abort there."""
    if length <= 0:
        if length < 0:
            found.append(_finding(Severity.WRONG, "list", f"{key} = {length}: a length is not negative"))
        return ()
    if length > 1:
        message = f"{key} lists {length} rows; SimAI takes the first entry {length} times"
        found.append(_finding(Severity.WRONG, "list", message))
    first = _value(words, place, key, found)
    return None if first is None else (first,)


def _unread(words: list[bytes], read: set[int]) -> dict[str, str | None]:
    """Words that SimAI passes over and that look as if they meant something, with the key that they miss."""
    known = {f"{key}:".encode() for key in (*DEGREES, *LISTS, PP_COMM, "DLRM_LAST_BOTTOM_LAYER")}
    folded = {key.lower().rstrip(b":"): key.decode() for key in known}
    passed: dict[str, str | None] = {}
    for place, word in enumerate(words[1:], start=1):
        if place in read or word in known or word.decode("latin-1") in HARMLESS:
            continue
        near = folded.get(word.rstrip(b":").lower())
        if near or word.endswith(b":") or not _STOI.match(word):
            passed[text(word)] = near
    return passed


def _unread_finding(word: str, near: str | None) -> Finding:
    if near:
        return _finding(Severity.WRONG, "unread", f"{word} is not read; the key is {near!r}")
    return _finding(Severity.NOTE, "unread", f"{word} is not read")


def _check_degrees(keys: _Keys, unread: dict[str, str | None], found: list[Finding]) -> None:
    """Degrees that are missing, which takes the words that miss their key out of ``unread``, and that do not fit."""
    values = keys.values
    missing = [key for key in DEGREES if key not in values and key not in keys.unreadable]
    if missing == [key for key in DEGREES if key != "model_parallel_NPU_group"]:
        message = f"short header of 2024: no {', '.join(missing)}; SimAI dies of a division by zero"
        found.append(_finding(Severity.BROKEN, "short-header", message))
        return
    for key in missing:
        without_effect = key in ("vpp", "ga") and values.get("pp") == 1
        severity = Severity.STOPS if without_effect else Severity.BROKEN
        meant = [word for word, near in unread.items() if near == f"{key}:"]
        hint = f" ({meant[0]} is not read; the key is '{key}:')" if meant else ""
        for word in meant:
            del unread[word]
        found.append(_finding(severity, "missing", f"no {key}{hint}: {_MISSING[key]}"))
    for key, value in values.items():
        if key != PP_COMM and value < 1:
            found.append(_finding(Severity.BROKEN, "not-positive", f"{key} = {value}: must be at least 1"))
    if not keys.unreadable:
        _check_fit(values, found)


def _check_fit(values: dict[str, int], found: list[Finding]) -> None:
    hop = values.get(PP_COMM, 0)
    if hop < 0:
        found.append(_finding(Severity.BROKEN, "pp-comm", f"{PP_COMM} = {hop}: must not be negative"))
    if "pp" in values and (values["pp"] > 1) != (hop > 0):
        message = f"{PP_COMM} = {hop} with pp = {values['pp']}; SimAI warns of a format mismatch"
        found.append(_finding(Severity.NOTE, "pp-comm", message))
    if any(values.get(key, 0) < 1 for key in DEGREES):
        return
    stage = values["model_parallel_NPU_group"] * values["pp"]
    if values["all_gpus"] % stage:
        message = f"all_gpus = {values['all_gpus']} is no multiple of tp x pp = {stage}; the rest is dropped"
        found.append(_finding(Severity.WRONG, "degrees", message))
    elif (values["all_gpus"] // stage) % values["ep"]:
        message = (
            f"ep = {values['ep']} does not divide dp = {values['all_gpus'] // stage}; the rest is dropped"
        )
        found.append(_finding(Severity.WRONG, "degrees", message))


def _finding(severity: Severity, code: str, message: str) -> Finding:
    return Finding(line=1, severity=severity, code=code, message=message)
