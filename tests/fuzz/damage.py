"""Ways to spoil a command, each by a random generator alone, so that a number names an input."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from tests.fuzz.command import Command

NUMBER = re.compile(rb"(?<![\w.])-?\d[\d_]*(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.])")
WORD = re.compile(rb"[\w.+-]+")

MEANINGLESS = (*b"nan inf -inf NaN Infinity -7 -1.5 1e300 1e999".split(), b"9" * 30, b"9" * 5000)
"""No field of any file or option means one of these, unless it is not read at all (or is free text)."""

BOUNDARIES = (
    *b"0 1 2 3 0.5 1e-9 65536 2147483648 1_000 1,000 0x10 007 9223372036854775807".split(),
    "\u0663".encode(),
    *b'1e3 +4 true [] "4"'.split(),
)

JUNK = (b"", b"--", b"-", b"=", b"\x00", b"\xff\xfe", "\ufeff".encode(), "\u2028".encode(), b"'", b'"', b"\\")
JUNK += (b"null", b"None", b"{}", b"[" * 5000, b"(" * 3000, b'{"a":' * 2000, b"a" * 100_000, b"%s", b"../../x", b"#")
JUNK += (b"lambda: 0", b"__import__('os')", b"2 ** 9999999", b"[0] * 10 ** 10", b"\r\n", b"\n" * 50, b"\t", b",,,,")

SPECIAL = ("absent", "folder", "fifo", "loop")
"""What a file may be instead; of several files some may be absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedCommand:
    """A spoilt command, what was done to it, and whether its answer, if any, has to be the undamaged one."""

    command: Command
    how: str
    same_or_refused: bool


def damage(seed: Command, rng: Random, flags: Sequence[str]) -> DamagedCommand:
    """``seed`` with one to three things wrong with it."""
    files = sorted(seed.files)
    if not files or (rng.random() < 0.3 and seed.program != "readers"):
        return _other_words(seed, rng, flags)
    name = rng.choice(files)
    if rng.random() < 0.05:
        kind = rng.choice(SPECIAL if len(files) == 1 else SPECIAL[1:])
        return DamagedCommand(command=replace(seed, special=(name, kind)), how=f"{name}: {kind}", same_or_refused=True)
    content = seed.files[name]
    if name.endswith(".pt"):
        spoilt, how = _other_bytes(content, rng)
        return _with_file(seed, name, spoilt, how, same_or_refused=True)
    if rng.random() < 0.4 and (result := list(NUMBER.finditer(content))):
        spot, number = rng.choice(result), rng.choice(MEANINGLESS)
        spoilt = content[: spot.start()] + number + content[spot.end() :]
        how = f"{spot[0]!r} at {spot.start()} becomes {number[:20]!r}"
        return _with_file(seed, name, spoilt, how, same_or_refused=True)
    how = ""
    for _ in range(rng.choice((1, 1, 2, 3))):
        way = rng.choice(WAYS)
        content, how = way(content, rng), f"{how} {way.__name__.strip('_')}"
    return _with_file(seed, name, content, how, same_or_refused=False)


def _with_file(seed: Command, name: str, content: bytes, how: str, *, same_or_refused: bool) -> DamagedCommand:
    command = replace(seed, files={**seed.files, name: content})
    return DamagedCommand(command=command, how=f"{name}: {how}", same_or_refused=same_or_refused)


def _other_bytes(content: bytes, rng: Random) -> tuple[bytes, str]:
    """A binary file with 4 KiB zeroed, a byte changed, an end cut off or a part moved."""
    at = rng.randrange(len(content))
    kind = rng.randrange(4)
    if kind == 0:
        zeros = bytes(min(4096, len(content) - at))
        return content[:at] + zeros + content[at + 4096 :], f"4 KiB zeroed at {at}"
    if kind == 1:
        other = bytes([content[at] ^ (1 << rng.randrange(8))])
        return content[:at] + other + content[at + 1 :], f"bit at {at}"
    if kind == 2:
        return content[:at], f"cut at {at}"
    return content[at:] + content[:at], f"turned by {at}"


def _other_words(seed: Command, rng: Random, flags: Sequence[str]) -> DamagedCommand:
    """A command line with a word more, less or changed."""
    words = list(seed.words)
    at = rng.randrange(len(words))
    kind = rng.randrange(6)
    hostile = rng.choice((*MEANINGLESS, *BOUNDARIES, *(each for each in JUNK if b"\x00" not in each)))
    text = hostile.decode(errors="surrogateescape")
    if kind == 0:
        del words[at]
    elif kind == 1:
        words.insert(at, rng.choice(words))
    elif kind == 2 and flags:
        words += [rng.choice(flags), text]
    elif kind == 3:
        words += [rng.choice(flags or words)]
    elif kind == 4 and (result := list(NUMBER.finditer(" ".join(words).encode()))):
        line, spot = "\0".join(words).encode(), rng.choice(result)
        number = rng.choice(MEANINGLESS)
        words = (line[: spot.start()] + number + line[spot.end() :]).decode().split("\0")
        how = f"{spot[0]!r} becomes {number[:20]!r}"
        return DamagedCommand(command=replace(seed, words=tuple(words)), how=how, same_or_refused=True)
    else:
        words[at] = text
    return DamagedCommand(command=replace(seed, words=tuple(words)), how="other words", same_or_refused=False)


def _cut(content: bytes, rng: Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _changed_byte(content: bytes, rng: Random) -> bytes:
    if not content:
        return b"\x80"
    at = rng.randrange(len(content))
    return content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :]


def _junk_inside(content: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(content) + 1)
    return content[:at] + rng.choice(JUNK) + content[at:]


def _junk_for_a_word(content: bytes, rng: Random) -> bytes:
    return _one_replaced(content, WORD, rng.choice(JUNK), rng)


def _a_word_for_another(content: bytes, rng: Random) -> bytes:
    result = WORD.findall(content)
    return _one_replaced(content, WORD, rng.choice(result), rng) if result else b"7"


def _other_number(content: bytes, rng: Random) -> bytes:
    return _one_replaced(content, NUMBER, rng.choice(BOUNDARIES), rng)


def _one_replaced(content: bytes, pattern: re.Pattern[bytes], new: bytes, rng: Random) -> bytes:
    result = list(pattern.finditer(content))
    if not result:
        return content + new
    spot = rng.choice(result)
    return content[: spot.start()] + new + content[spot.end() :]


def _lines_moved(content: bytes, rng: Random) -> bytes:
    lines = content.splitlines(keepends=True)
    if len(lines) > 1:
        lines.insert(rng.randrange(len(lines)), lines.pop(rng.randrange(len(lines))))
    return b"".join(lines)


def _a_line_again(content: bytes, rng: Random) -> bytes:
    lines = content.splitlines(keepends=True) or [b""]
    at = rng.randrange(len(lines))
    return b"".join([*lines[:at], *[lines[at]] * rng.choice((2, 50)), *lines[at + 1 :]])


def _a_line_less(content: bytes, rng: Random) -> bytes:
    lines = content.splitlines(keepends=True) or [b""]
    del lines[rng.randrange(len(lines))]
    return b"".join(lines)


WAYS: tuple[Callable[[bytes, Random], bytes], ...] = (
    _cut,
    _changed_byte,
    _junk_inside,
    _junk_for_a_word,
    _a_word_for_another,
    _other_number,
    _other_number,
    _lines_moved,
    _a_line_again,
    _a_line_less,
)
