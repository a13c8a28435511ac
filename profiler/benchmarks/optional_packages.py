"""Optional packages that are faster than torch's own kernels; never required."""

import importlib
import importlib.util
from types import ModuleType


def optional_package(name: str) -> ModuleType | None:
    """Returns the package, or None when it is not installed or does not fit this torch."""
    if importlib.util.find_spec(name.split(".", maxsplit=1)[0]) is None:
        return None
    try:
        return importlib.import_module(name)
    except (ImportError, OSError, RuntimeError):
        return None
