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


def pattern_of(msgid: str) -> re.Pattern[str]:
    """Returns what a phrase looks like with words in its placeholders; ``{s}`` is a plural's ending, or none."""

    def words(found: re.Match[str]) -> str:
        kind = KINDS.get(found[1], KINDS["names" if found[1].endswith("s") else "name"])
        return "(?:e?s)?" if found[1] == "s" else f"(?P<{found[1]}{found[2]}>{kind})"

    return re.compile(PLACEHOLDER.sub(words, re.escape(msgid).replace(r"\{", "{").replace(r"\}", "}")), re.DOTALL)


class Catalogue:
    """Calling it returns a line in Chinese: the entry of the whole line, else that of the longest phrase with placeholders
    that matches it, else its parts. FILLER follows every character that takes two columns."""

    def __init__(self, po: str) -> None:
        entries = (["".join(map(literal_eval, text.splitlines())) for text in entry] for entry in ENTRY.findall(po))
        self.entries = {msgid: text for msgid, text in entries if msgid}
        phrases = sorted(self.entries, key=lambda msgid: -len(PLACEHOLDER.sub("", msgid)))
        self.patterns = [(pattern_of(one), self.entries[one]) for one in phrases if PLACEHOLDER.search(one)]
        # In a list a character of Unicode's private use stands for each, as their commas separate nothing.
        whole = [one for one in phrases if "{" not in one and any(mark in one for mark in SEPARATORS)]
        self.lists = re.compile("|".join(map(re.escape, whole)) or "(?!)")
        self.marks = {one: chr(0xE000 + at) for at, one in enumerate(whole)}
        self.entries |= {mark: self.entries[one] for one, mark in self.marks.items()}
        self.unmarked = str.maketrans({mark: one for one, mark in self.marks.items()})

    def __call__(self, line: str) -> str:
        """Returns the line in Chinese, as a terminal's columns are counted."""
        translated = BETWEEN.sub("", self.translated(line))
        return "".join(one + FILLER * (east_asian_width(one) in "WF") for one in translated)

    def translated(self, line: str) -> str:
        """Returns the line in Chinese, or as it is."""
        if line in self.entries:
            return self.entries[line]
        for pattern, text in self.patterns:
            if match := pattern.fullmatch(line):
                found = match.groupdict().items()
                kept = {name: words for name, words in found if name.rstrip("0123456789") in ("n", "name", "names")}
                return text.format(**{name: kept.get(name) or self.translated(words) for name, words in found})
        if (marked := self.lists.sub(lambda found: self.marks[found[0]], line)) != line:
            return self.translated(marked)
        for separator, ours in SEPARATORS.items():
            parts = line.split(separator)
            translated = [self.translated(part) for part in parts] if len(parts) > 1 else parts
            prose = separator == ", " and any(one in parts and one.count(" ") > 2 for one in translated)
            if translated != parts and not prose:
                return ours.join(translated)
        return line.translate(self.unmarked)


def chinese() -> Catalogue:
    """Returns the catalogue beside this file."""
    return Catalogue(resources.files(__package__).joinpath("zh.po").read_text(encoding="utf-8"))
