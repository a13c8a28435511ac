"""Text in the columns of a terminal, where a Chinese character takes two."""

import re
from textwrap import TextWrapper

FILLER = "\0"
"""Follows a character of two columns until it is printed, so that ``len`` counts columns."""


class Wrapper(TextWrapper):
    """Wraps at spaces, and beside Chinese characters too; closing marks end a line, opening ones begin it."""

    wordsep_simple_re = re.compile(
        rf"([\t\n\v\f\r ]+|(?:[（“]{FILLER})*(?:[^{FILLER}]{FILLER}|[^{FILLER}\t\n\v\f\r ]+?"
        rf"(?=[\t\n\v\f\r ]|$|[^{FILLER}]{FILLER}))(?:[，。；：、）”]{FILLER})*)"
    )


def wrap(text: str, width: int, indent: str = "", further: str = "") -> list[str]:
    """Returns the lines of a text at most ``width`` columns wide, the first after ``indent``, the others after ``further``."""
    return Wrapper(width, indent, further, break_on_hyphens=False).wrap(text)
