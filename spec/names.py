"""Names as people type them: the one that a name can only mean, and those nearest to it."""

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches

MOST_NAMED = 8
"""Names that an error lists."""
NO_ALIASES: Mapping[str, str] = {}


def known_name(name: str, known: Collection[str], aliases: Mapping[str, str] = NO_ALIASES) -> str | None:
    """Returns the only one of ``known`` that ``name`` can mean: its alias, that of the same words in another order or
    case (llama3-70b is 70B_llama3), or the only one with all of its words (deepseek-v3 is 671B_deepseek_v3); None
    where it is none, or several."""
    alias = aliases.get(name.lower().replace("_", "-"))
    if alias is not None:
        return alias
    words = words_of(name)
    same = [one for one in known if words_of(one) == words]
    more = [one for one in known if words and words < words_of(one)]
    result = same or more
    return result[0] if len(result) == 1 else None


def nearest(name: str, known: Collection[str], most: int = MOST_NAMED) -> list[str]:
    """Returns those of ``known`` that share most words with ``name``, then those spelt most like it."""
    words = words_of(name)
    shared = [one for one in sorted(known) if words & words_of(one)]
    shared.sort(key=lambda one: (-len(words & words_of(one)), len(words_of(one))))
    return list(dict.fromkeys((*shared, *get_close_matches(name, known, n=most, cutoff=0.0))))[:most]


def words_of(name: str) -> frozenset[str]:
    """Returns the runs of letters and of digits in a name, lower case."""
    return frozenset(re.findall(r"[a-z]+|\d+", name.lower()))
