"""CPU seconds of a program's phases, taken by wrapping the functions that make them."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from typing import Any

# phase -> the (module, name) under which the functions are called that make it. The innermost phase has the time.
WRAPPED: dict[str, tuple[tuple[str, str], ...]] = {
    "profile": (("solver.analysis.sweep", "find_profile"),),
    "rules": (("solver.search", "enumerate_block"),),
    "memory": (("solver.search", "estimate_memory"),),
    "layer times": (("solver.estimate", "timed_pieces"),),
    "step end": (("solver.estimate", "step_times"),),
    "pipeline": (("solver.estimate", "spans_of"), ("solver.candidates.candidates", "spans_of")),
    "ranking": (("solver.search", "_answers"),),
}


class Phases:
    """A clock for each phase, of which one runs at a time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._running = ["other"]
        self._since = time.process_time()

    def _lap(self) -> None:
        now = time.process_time()
        phase = self._running[-1]
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._since
        self._since = now

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What runs inside counts as ``name``."""
        self._lap()
        self._running.append(name)
        try:
            yield
        finally:
            self._lap()
            self._running.pop()

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, its time counted as ``name``."""

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.phase(name):
                return function(*args, **kwargs)

        return timed

    def finished(self) -> dict[str, float]:
        """Seconds by phase up to now."""
        self._lap()
        return dict(self.seconds)


def wrap_all(phases: Phases) -> None:
    """Put the clock around every function of ``WRAPPED``, for the rest of this process."""
    for name, places in WRAPPED.items():
        for module_name, function in places:
            module = import_module(module_name)
            setattr(module, function, phases.around(name, getattr(module, function)))
