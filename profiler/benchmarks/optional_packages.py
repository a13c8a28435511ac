"""Optional packages that are faster than torch's own kernels; never required."""

import importlib
import importlib.util
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from profiler.benchmarks.launched import ErrorCapture

KERNEL_PACKAGES = (
    "flash_attn",
    "flash_attn_interface",
    "transformer_engine.pytorch",
    "apex.optimizers",
    "deep_gemm",
    "deep_ep",
)
"""Packages whose kernels a run launches where they are installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """A package, or the error that its import raised: neither where it is not installed."""

    package: ModuleType | None = None
    error: str = ""


@cache
def import_package(name: str) -> ImportResult:
    """Returns the package. A package that was built for another torch may fail by any error: AttributeError for a
    function that is gone, RuntimeError for a symbol."""
    if importlib.util.find_spec(name.split(".", maxsplit=1)[0]) is None:
        return ImportResult()
    with ErrorCapture() as capture:
        return ImportResult(package=importlib.import_module(name))
    lines = str(capture.problem).splitlines()
    return ImportResult(error=f"{type(capture.problem).__name__}: {lines[0] if lines else ''}")


def optional_package(name: str) -> ModuleType | None:
    """Returns the package, or None when it is not installed or does not fit this torch."""
    return import_package(name).package


def import_notes() -> list[str]:
    """Returns a line for each package that is installed and whose kernels are not measured, as its import fails."""
    results = {name: import_package(name) for name in KERNEL_PACKAGES}
    return [
        f"{name} is installed but fails to import, so other kernels ran in its place ({result.error})"
        for name, result in results.items()
        if result.error
    ]
