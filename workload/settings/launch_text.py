"""What an exporter hands over: the text of a file, and what that text cannot say."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchText:
    """``text`` is the whole file; ``notes`` say what was priced or belongs to the model and is not in it ("left
    out: ...") and what else a launch needs ("set ..."), one clause each, which the text repeats."""

    text: str
    notes: tuple[str, ...] = ()


def comments(lines: Iterable[str]) -> list[str]:
    """The lines as comments of a shell or Python file."""
    return [f"# {line}" for line in lines]
