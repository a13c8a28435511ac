"""Outcome of an action on every rank: the same on all ranks, whatever one of them raised.

Any error of a case is its result: kernels of a new release refuse by RuntimeError, ValueError, TypeError or
errors of their own (Triton), and a sweep that stops at one of them loses the rest of its hour. Two things
end a run: a rank that is gone, and a device that no call can recover.
"""

from collections.abc import Callable
from dataclasses import dataclass

from profdb.sample import Sample
from profiler.benchmarks.launched import OUT_OF_MEMORY, ErrorCapture, UnsupportedCaseError
from profiler.cases.sweep_plan import describe
from profiler.distributed.world import World

OK, OOM, FAILED, LOST = "ok", "oom", "failed", "lost"

MEMORY_FULL = ("out of memory", "ALLOC_FAILED", "not enough memory", "can't allocate memory")
"""Messages for full memory of libraries that raise a plain RuntimeError (cuBLAS, NCCL, the driver, torch on a CPU)."""

MOST_LETTERS = 300


class DeviceLostError(Exception):
    """An error that stays with the process (an illegal access, an assertion on the device): every later call fails
    with it, and the process has to start again. ``sample`` is that of the case that caused it."""

    def __init__(self, sample: Sample) -> None:
        super().__init__(f"{describe(sample.case)}: {sample.launched.get('reason', '')}")
        self.sample = sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Status of an action (ok, oom or failed), its reason, and whether the device of a rank is lost."""

    status: str
    reason: str = ""
    device_lost: bool = False

    @property
    def ok(self) -> bool:
        """Returns whether every rank succeeded."""
        return self.status == OK


def run_on_all_ranks(world: World, action: Callable[[], object]) -> Outcome:
    """Returns the worst outcome of ``action`` on every rank, the same on all.

    Raises RankFailedError when another rank does not answer.
    """
    with ErrorCapture() as capture:
        action()
    word = OK
    if capture.problem is not None:
        # An error that the device does not recover from fails every later call too.
        alive = world.device.answers()
        word = f"{error_status(capture.problem) if alive else LOST} {error_message(capture.problem)}"
        capture.problem = None  # its trace holds the tensors of the case
    # words travel only where some rank has one to say
    if not any(world.slowest([float(word != OK)])):
        return Outcome(status=OK)
    return worst(world.gather(word))


def error_status(problem: Exception) -> str:
    """Returns oom or failed."""
    full = isinstance(problem, (*OUT_OF_MEMORY, MemoryError))
    return OOM if full or any(text in str(problem) for text in MEMORY_FULL) else FAILED


def error_message(problem: Exception) -> str:
    """Returns the first line of an error, with its type unless the line is meant for the user."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    message = lines[0] if lines else "no word"
    if not isinstance(problem, (*OUT_OF_MEMORY, UnsupportedCaseError)):
        message = f"{type(problem).__name__}: {message}"
    return message[:MOST_LETTERS]


def worst(words: list[str]) -> Outcome:
    """Returns the worst of the ranks' outcomes: a lost device before a full memory before a failure."""
    for status in (LOST, OOM, FAILED):
        for word in words:
            if word.startswith(f"{status} "):
                is_lost = status == LOST
                reason = word.removeprefix(f"{status} ")
                return Outcome(status=FAILED if is_lost else status, reason=reason, device_lost=is_lost)
    return Outcome(status=OK)
