"""Outcome of an action that every rank takes: the same on all ranks, whatever one of them raised.

Whatever a case raises is its result: kernels of a new release refuse by RuntimeError, ValueError, TypeError or
errors of their own (Triton), and a sweep that stops at one of them loses the rest of its hour. Two things
end a run: a rank that is gone, and a device that no call brings back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from profdb.sample import Sample
from profiler.benchmarks.launched import OUT_OF_MEMORY, UnsupportedCaseError
from profiler.cases.sweep_plan import describe
from profiler.distributed.world import World

OK, OOM, FAILED, LOST = "ok", "oom", "failed", "lost"

MEMORY_FULL = ("out of memory", "ALLOC_FAILED", "not enough memory", "can't allocate memory")
"""How libraries that raise a plain RuntimeError say that memory is full (cuBLAS, NCCL, the driver, torch on a CPU)."""

MOST_LETTERS = 300


class DeviceLostError(Exception):
    """An error that stays with the process (an illegal access, an assertion on the device): every later call
    fails with it, and the process has to start again. ``sample`` is that of the case which did it."""

    def __init__(self, sample: Sample) -> None:
        super().__init__(f"{describe(sample.case)}: {sample.launched.get('reason', '')}")
        self.sample = sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """``status`` ok, oom or failed, why, and whether the device of a rank is lost."""

    status: str
    reason: str = ""
    device_lost: bool = False

    @property
    def ok(self) -> bool:
        """True if every rank went through."""
        return self.status == OK


class ErrorCapture:
    """Context of one case that keeps any error raised in it as ``problem``; Ctrl-C and the end of the program pass."""

    def __init__(self) -> None:
        self.problem: Exception | None = None

    def __enter__(self) -> "ErrorCapture":
        """The context, whose ``problem`` is set after it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Keep an error and suppress it."""
        self.problem = problem if isinstance(problem, Exception) else None
        return self.problem is not None


def run_on_all_ranks(world: World, action: Callable[[], object]) -> Outcome:
    """Run ``action`` on every rank; the worst outcome, the same on all.

    Raises RankFailedError when another rank does not answer.
    """
    with ErrorCapture() as capture:
        action()
    word = OK
    if capture.problem is not None:
        alive = world.device.answers()
        word = f"{error_status(capture.problem) if alive else LOST} {error_message(capture.problem)}"
        capture.problem = None  # its trace holds the tensors of the case
    # words travel only where some rank has one to say
    if not any(world.slowest([float(word != OK)])):
        return Outcome(status=OK)
    return worst(world.gather(word))


def error_status(problem: Exception) -> str:
    """oom or failed."""
    full = isinstance(problem, (*OUT_OF_MEMORY, MemoryError))
    return OOM if full or any(text in str(problem) for text in MEMORY_FULL) else FAILED


def error_message(problem: Exception) -> str:
    """The first line of an error, with its type where the line alone is torch's or our own bug's."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    message = lines[0] if lines else "no word"
    if not isinstance(problem, (*OUT_OF_MEMORY, UnsupportedCaseError)):
        message = f"{type(problem).__name__}: {message}"
    return message[:MOST_LETTERS]


def worst(words: list[str]) -> Outcome:
    """The worst of the ranks' words: a lost device before a full one before a refusal."""
    for status in (LOST, OOM, FAILED):
        for word in words:
            if word.startswith(f"{status} "):
                is_lost = status == LOST
                reason = word.removeprefix(f"{status} ")
                return Outcome(status=FAILED if is_lost else status, reason=reason, device_lost=is_lost)
    return Outcome(status=OK)
