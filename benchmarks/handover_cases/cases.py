"""What the parsers of Python configurations share: every export of standard input, tried on the framework's
own code.
"""

import json
import sys
import warnings
from collections.abc import Callable

REFUSED = (
    AssertionError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    ImportError,
    NotImplementedError,
    SystemExit,
)
"""What frameworks raise against a configuration."""


def answer(check: Callable[[str, int], None]) -> None:
    """Print a list of {name, refused}: the first line of what ``check`` raises of an export's text and world,
    or None.
    """
    warnings.simplefilter("ignore")
    cases = json.load(sys.stdin)
    print(
        json.dumps(
            [{"name": one["name"], "refused": _refusal(check, one["text"], one["world"])} for one in cases]
        )
    )


def _refusal(check: Callable[[str, int], None], text: str, world: int) -> str | None:
    try:
        check(text, world)
    except REFUSED as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return None
