"""One action on every rank, and what becomes of its failure: the same word on all ranks.

Whatever a case raises is its result: kernels of a new release refuse by RuntimeError, ValueError, TypeError or
errors of their own (Triton), and a sweep that stops at one of them loses the rest of its hour. Two things
end a run: a rank that is gone, and a device that no call brings back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from profdb.cases import Case
from profdb.sample import Sample
from profiler.benchmarks.launched import OUT_OF_MEMORY, UnsupportedCaseError
from profiler.cases.sweep_plan import describe
from profiler.ranks.world import World

OK, OOM, FAILED, LOST = "ok", "oom", "failed", "lost"

NO_ROOM = ("out of memory", "ALLOC_FAILED", "not enough memory", "can't allocate memory")
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
        """Whether every rank went through."""
        return self.status == OK


class Caught:
    """For a block of one case: holds any error in it, so that only what stops a program goes on."""

    def __init__(self) -> None:
        self.problem: Exception | None = None

    def __enter__(self) -> "Caught":
        """The block's ``problem`` is known after it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Keep an error; Ctrl-C and the end of the program pass."""
        if isinstance(problem, Exception):
            self.problem = problem
            return True
        return False


def attempt(world: World, case: Case, action: Callable[[], object]) -> Outcome:
    """Run ``action`` on every rank; the worst outcome, the same on all.

    Raises RankFailedError when another rank does not answer.
    """
    with Caught() as caught:
        action()
    word = OK
    if caught.problem is not None:
        alive = world.device.answers()
        word = f"{word_for(caught.problem) if alive else LOST} {words_of(caught.problem)}"
        caught.problem = None  # its trace holds the tensors of the case
    return worst(world.gather(word))


def word_for(problem: Exception) -> str:
    """oom or failed."""
    full = isinstance(problem, (*OUT_OF_MEMORY, MemoryError))
    return OOM if full or any(text in str(problem) for text in NO_ROOM) else FAILED


def words_of(problem: Exception) -> str:
    """The first line of what was raised, with its type where the words alone are torch's or our own bug's."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    said = lines[0] if lines else "no word"
    named = isinstance(problem, (*OUT_OF_MEMORY, UnsupportedCaseError))
    return (said if named else f"{type(problem).__name__}: {said}")[:MOST_LETTERS]


def worst(labels: list[str]) -> Outcome:
    """Of the ranks' words: a lost device before a full one before a refusal."""
    for status in (LOST, OOM, FAILED):
        for word in labels:
            found, _, reason = word.partition(" ")
            if found == status:
                lost = status == LOST
                return Outcome(status=FAILED if lost else status, reason=reason, device_lost=lost)
    return Outcome(status=OK)
