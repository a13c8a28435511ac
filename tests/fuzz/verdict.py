"""How a program ended, and what is wrong with that: a traceback, a warning, no number, more than one line, a hang."""

import io
import os
import re
import resource
import signal
import traceback
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from unittest.mock import patch

from spec.errors import ConfigError
from tests.fuzz.command import Command

LIMIT_S = 30
"""CPU seconds; four times as many by the wall, for a file that nobody writes."""
MEMORY_BYTES = 12 * 2**30

ROOT = Path(__file__).resolve().parents[2]
ANSWERED, FINDINGS, REFUSED, NOT_FEASIBLE = range(4)
# As Python and JSON print them; what names a file or a GPU, or repeats a command line, is no number.
NO_NUMBER = re.compile(r"(?<![\w'\"./-])(?<!wrote )-?(?:nan|inf|NaN|Infinity)(?![\w'\"./:-])")
NO_NAMES = re.compile(r"samples of \S+|profile of \S+|--[a-z_]+ \S+")
PACE = re.compile(r".*plans/s.*\n|.*\"(?:seconds|search_s|plans_per_s)\".*\n")
LONGEST_LINE = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Exit status, what was said and written; ``broke`` is a traceback, a hang or a warning ("": none)."""

    status: int
    out: str
    err: str
    written: dict[str, str]
    broke: str

    def answer(self) -> tuple[str, dict[str, str]]:
        """All but how fast it was found."""
        return PACE.sub("", self.out), {name: PACE.sub("", text) for name, text in self.written.items()}


class _TooSlowError(BaseException):
    """Not an Exception, so that nothing on the way takes it for a bad file."""


class _WayOut:
    """Takes whatever leaves a program other than by its status."""

    def __init__(self) -> None:
        self.traceback = ""

    def __enter__(self) -> "_WayOut":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if kind is None or issubclass(kind, KeyboardInterrupt):
            return False
        self.traceback = "".join(traceback.format_exception(kind, error, trace, limit=-12))
        return True


def run_command(command: Command, folder: Path) -> Ending:
    """Run a program inside this process in a folder of its own below ``folder``; once more, with four times the limits,
    if it takes too long: the machine may be busy."""
    ending = run_within(LIMIT_S, command, folder)
    return run_within(4 * LIMIT_S, command, folder / "again") if "_TooSlowError" in ending.broke else ending


def run_within(limit_s: float, command: Command, folder: Path) -> Ending:
    """Run a program with a limit of CPU seconds, and four times as many by the wall."""
    folder = folder / "command"  # a model in config.json takes its folder's name
    _lay_out(command, folder)
    before = set(folder.rglob("*"))
    out, err, way_out, status = io.StringIO(), io.StringIO(), _WayOut(), REFUSED
    with ExitStack() as stack:
        for context in (chdir(folder), redirect_stdout(out), redirect_stderr(err), _nothing_measured()):
            stack.enter_context(context)
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", ResourceWarning)
        stack.enter_context(way_out)
        with _limits(limit_s):
            status = command.main()(list(command.words))
    said = "; ".join(f"{each.filename}:{each.lineno}: {each.message}" for each in caught)
    new = sorted(path for path in set(folder.rglob("*")) - before if path.is_file())
    texts = {str(path.relative_to(folder)): path.read_text(errors="replace") for path in new if path.suffix != ".pt"}
    pictures = (".png", ".jpg")
    written = {name: text for name, text in texts.items() if not name.endswith(pictures)}
    return Ending(
        status=status, out=out.getvalue(), err=err.getvalue(), written=written, broke=way_out.traceback or said
    )


def complaint(result: Ending, undamaged: Ending | None = None) -> str:
    """What is wrong with an ending ("": nothing). With ``undamaged``: an answer that is another one, too."""
    if result.broke:
        return result.broke
    if result.status == REFUSED:
        return _of_a_refusal(result.err.splitlines())
    if result.status not in (ANSWERED, FINDINGS, NOT_FEASIBLE):
        return f"exit status {result.status}"
    if not result.out.strip():
        return "no answer"
    if result.status == FINDINGS:  # check and topology --check quote what they find
        return ""
    for name, text in {"stdout": result.out, **result.written}.items():
        if spot := NO_NUMBER.search(text := NO_NAMES.sub("", text)):
            return f"{name}: {text[max(0, spot.start() - 80) : spot.end() + 20]!r}"
    return "" if undamaged is None else _of_another_answer(repr(undamaged.answer()), repr(result.answer()))


def _of_a_refusal(lines: list[str]) -> str:
    """Notes may go before; the last line is the error."""
    if lines and lines[-1].startswith("error: ") and len(lines[-1]) < LONGEST_LINE:
        return ""
    return f"no error in one line: {lines[-3:]!r}"[:LONGEST_LINE]


def _of_another_answer(before: str, after: str) -> str:
    """Where two answers part."""
    if before == after:
        return ""
    at = next((place for place, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), 0)
    part = slice(max(0, at - 100), at + 100)
    return f"another answer: {before[part]} becomes {after[part]}"


def _lay_out(command: Command, folder: Path) -> None:
    """The files, and the shipped profile and configs where programs look for them."""
    folder.mkdir(parents=True)
    (folder / "prof_data").mkdir()
    (folder / "prof_data" / "data.pt").symlink_to(ROOT / "prof_data" / "data.pt")
    (folder / "configs").symlink_to(ROOT / "configs")
    for name, content in command.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    if command.special:
        name, kind = command.special
        (folder / name).unlink()
        if kind == "folder":
            (folder / name).mkdir()
        elif kind == "fifo":
            os.mkfifo(folder / name)
        elif kind == "loop":
            (folder / name).symlink_to(name)


@contextmanager
def _nothing_measured() -> Iterator[None]:
    """gen_profiler_data reads its options and then measures nothing."""
    refused = ConfigError(where="fuzz", key="measure", value=None, allowed="nothing is measured here")
    with (
        patch("profiler.profiling_run.run_profiling", side_effect=lambda *_: print("measured")),
        patch("profiler.on_demand.measuring_device", side_effect=refused),
    ):
        yield


@contextmanager
def _limits(limit_s: float) -> Iterator[None]:
    """Time and memory."""

    def ring(_: int, __: FrameType | None) -> None:
        raise _TooSlowError

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    handlers = {number: signal.signal(number, ring) for number in (signal.SIGPROF, signal.SIGALRM)}
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, hard))
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    signal.setitimer(signal.ITIMER_REAL, 4 * limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        for number, handler in handlers.items():
            signal.signal(number, handler)
