"""Numbers that people type and files hold: ASCII digits alone, and never beyond what the field can mean.

``int`` and ``float`` also take digits of other scripts, nan, inf and numbers of any length; a comma would make
``64,128`` one number here and two elsewhere.
"""

import math
import re

MOST_DIGITS = 30
_WHOLE = re.compile(r"[0-9]+(?:_[0-9]+)*")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?")


def whole_number(text: str, *, minimum: int, maximum: int) -> int:
    """``4096`` or ``4_096``; ValueError, worded for the user, for anything else or outside the bounds."""
    digits = text.replace("_", "")
    if _WHOLE.fullmatch(text) is None or len(digits) > MOST_DIGITS:
        hint = " (no commas)" if "," in text else ""
        raise ValueError(f"{shortened(text)} is not a whole number{hint} from {minimum:,} to {maximum:,}")
    value = int(digits)
    if not minimum <= value <= maximum:
        raise ValueError(f"{shortened(text)} is not a whole number from {minimum:,} to {maximum:,}")
    return value


def decimal_number(text: str, *, minimum: float, maximum: float) -> float:
    """``0.5`` or ``1e-3``; ValueError, worded for the user, for anything else or outside the bounds."""
    value = plain_number(text)
    if not minimum <= value <= maximum:
        raise ValueError(f"{shortened(text)} is not a number from {minimum:g} to {maximum:g}")
    return value


def plain_number(word: str) -> float:
    """The number that ``word`` is; nan for anything that is no finite decimal number."""
    if _DECIMAL.fullmatch(word) is None:
        return math.nan
    value = float(word)
    return value if math.isfinite(value) else math.nan


def shortened(text: str) -> str:
    """The text in quotes as an error shows it: 5,000 digits help nobody."""
    return repr(text if len(text) <= 40 else text[:37] + "...")
