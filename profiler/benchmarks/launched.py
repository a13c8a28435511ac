"""Result of a launcher: one case as calls that can be timed."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, TypeVar

import torch

from profdb.cases import Case

Call = Callable[[], object]
Result = TypeVar("Result")

OUT_OF_MEMORY: tuple[type[Exception], ...] = (getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError),)
"""Errors of a device without memory for the operands; torch 2.5 gave it its shorter name."""


class Stopwatch(Protocol):
    """Reads the clock around a burst of launches."""

    def burst(self, calls: Sequence[Call], count: int, align: Call | None) -> float:
        """Returns the seconds of one launch, averaged over ``count``; ``align`` runs before the clock starts."""
        ...


class UnsupportedCaseError(Exception):
    """This device, backend or torch release cannot run the case. It is recorded with the reason, never replaced by
    another operation."""


class ErrorCapture:
    """Context that stores any error raised in it as ``problem``; Ctrl-C and the end of the program pass."""

    def __init__(self) -> None:
        self.problem: Exception | None = None

    def __enter__(self) -> "ErrorCapture":
        """Returns the context, whose ``problem`` is set after it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Stores an error and suppresses it."""
        self.problem = problem if isinstance(problem, Exception) else None
        return self.problem is not None


def call_or_refuse(call: Callable[[], Result]) -> Result:
    """Returns the result of the first call. torch reports by an error (and warnings that repeat it) that a kernel
    does not accept these shapes, FlashAttention-4 by an assertion (flash_attn/cute/interface.py,
    _validate_head_dims); a package of another release lacks what its first call imports."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return call()
    except OUT_OF_MEMORY:
        raise
    except (RuntimeError, TypeError, ValueError, AssertionError, AttributeError, ImportError) as refused:
        raise UnsupportedCaseError((str(refused).splitlines() or ["no word"])[0]) from refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """One case ready to be timed.

    ``case`` is what the calls really run; the sample is stored under it. ``calls`` run the same operation on
    different operands: timed in turn, they do not find in the caches what a training step would have to fetch.
    ``implementation`` names the library and kernel. ``collective`` calls have to run on every rank of the world
    together; ``on_host`` calls are timed by the host's time to issue them. Each call runs the operation
    ``operations`` times. ``sustained_s`` > 0: trials of a second each for so many seconds. ``clock``: the stopwatch
    to read instead of the device's.
    """

    case: Case
    calls: tuple[Call, ...]
    implementation: str
    collective: bool = False
    on_host: bool = False
    operations: int = 1
    sustained_s: int = 0
    clock: Stopwatch | None = None


class Launcher(Protocol):
    """Builds the tensors of a case and the calls on them."""

    def launch(self, case: Case) -> Launched:
        """Returns the case ready to be timed.

        Raises UnsupportedCaseError, or one of OUT_OF_MEMORY when the operands do not fit.
        """
        ...
