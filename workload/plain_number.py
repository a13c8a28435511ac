"""Decimal numbers of the text formats: ASCII digits alone.

``float`` also takes 1_0, digits of other scripts, nan and inf, which no other reader of these files does.
"""

import math
import re

_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?")


def plain_number(word: str) -> float:
    """The number that ``word`` is; nan for anything that is no finite decimal number."""
    if _NUMBER.fullmatch(word) is None:
        return math.nan
    value = float(word)
    return value if math.isfinite(value) else math.nan
