"""The catalogue of zh.po: English phrases, and what a Chinese engineer would say. Only what prints in Chinese imports this.

Answers are translated where they are printed, not where they are composed: what has no entry stays English.
"""

import re
from ast import literal_eval
from importlib import resources
from unicodedata import east_asian_width

from spec.program.columns import FILLER

ENTRY = re.compile(r'^msgid ((?:".*"\n)+)msgstr ((?:".*"\n)+)', re.MULTILINE)
PLACEHOLDER = re.compile(r"\{([a-z]+)(\d*)\}")
KINDS = {"n": r"[+-]?\d(?:[\d,.]*\d)?", "rest": r".+?", "name": r"(?!= )(?:(?![,;:] ).)+?", "names": r"(?:(?!; ).)+?"}
"""What a placeholder matches by its name: a number, anything, and what is not translated; other names as ``name``, and
plurals as ``names``."""
SEPARATORS = {"; ": "；", ": ": "：", ", ": "，"}
"""Between the phrases of a line, the loosest first."""
BETWEEN = re.compile("(?<=[⺀-￯]) (?=[⺀-￯])")
"""A space between two Chinese characters, where a placeholder holds Chinese."""
PRIVATE = 0xE000
"""The first character that Unicode leaves to private use."""


def pattern_of(msgid: str) -> re.Pattern[str]:
    """Returns what a phrase looks like with words in its placeholders; ``{s}`` is a plural's ending, or none."""
    parts = PLACEHOLDER.split(msgid)
    for at in range(0, len(parts), 3):
        parts[at] = re.escape(parts[at])
    for at in range(1, len(parts), 3):
        name, place = parts[at], parts[at + 1]
        kind = KINDS.get(name, KINDS["names" if name.endswith("s") else "name"])
        parts[at : at + 2] = ["(?:e?s)?" if name == "s" else f"(?P<{name}{place}>{kind})", ""]
    return re.compile("".join(parts), re.DOTALL)


class Catalogue:
    """Calling it returns a line in Chinese: the entry of the whole line, else that of the longest phrase with placeholders
    that matches it, else its parts. FILLER follows every character that takes two columns."""

    def __init__(self, po: str) -> None:
        told = (["".join(map(literal_eval, text.splitlines())) for text in entry] for entry in ENTRY.findall(po))
        self.entries = {msgid: text for msgid, text in told if msgid}
        phrases = sorted(self.entries, key=lambda msgid: -len(PLACEHOLDER.sub("", msgid)))
        self.patterns = [(pattern_of(one), self.entries[one]) for one in phrases if PLACEHOLDER.search(one)]
        # A list may hold them: a character of its own stands for each, as their commas separate nothing.
        whole = [one for one in phrases if "{" not in one and any(mark in one for mark in SEPARATORS)]
        self.marks = {one: chr(PRIVATE + at) for at, one in enumerate(whole)}
        self.entries |= {mark: self.entries[one] for one, mark in self.marks.items()}
        self.unmarked = str.maketrans({mark: one for one, mark in self.marks.items()})

    def __call__(self, line: str) -> str:
        """Returns the line in Chinese, as a terminal's columns are counted."""
        told = BETWEEN.sub("", self.translated(line))
        return "".join(one + FILLER * (east_asian_width(one) in "WF") for one in told)

    def translated(self, line: str) -> str:
        """Returns the line in Chinese, or as it is."""
        if line in self.entries:
            return self.entries[line]
        for pattern, text in self.patterns:
            if match := pattern.fullmatch(line):
                found = match.groupdict().items()
                kept = {name: words for name, words in found if name.rstrip("0123456789") in ("n", "name", "names")}
                return text.format(**{name: kept.get(name) or self.translated(words) for name, words in found})
        marked = line
        for phrase, mark in self.marks.items():
            marked = marked.replace(phrase, mark)
        if marked != line:
            return self.translated(marked)
        for separator, ours in SEPARATORS.items():
            parts = line.split(separator)
            told = [self.translated(part) for part in parts] if len(parts) > 1 else parts
            prose = separator == ", " and any(
                new == old and old.count(" ") > 2 for new, old in zip(told, parts, strict=True)
            )
            if told != parts and not prose:
                return ours.join(told)
        return line.translate(self.unmarked)


def chinese() -> Catalogue:
    """Returns the catalogue beside this file."""
    return Catalogue(resources.files(__package__).joinpath("zh.po").read_text(encoding="utf-8"))
