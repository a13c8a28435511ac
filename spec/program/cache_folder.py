"""Where programs keep what they can make again: the XDG Base Directory Specification's cache folder."""

import os
from pathlib import Path

NAME = "parallel-strategy-solver"


def cache_folder() -> Path | None:
    """``$XDG_CACHE_HOME`` or ``~/.cache``, and our folder in it; None for a user without a home. Not made here."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if Path(given).is_absolute():
        return Path(given) / NAME
    try:
        return Path.home() / ".cache" / NAME
    except RuntimeError:
        return None
