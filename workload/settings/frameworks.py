"""Which exporter writes plans of which framework; asked before anything is loaded, so nothing is imported here."""

from collections.abc import Iterable

from spec.errors import ExportError

FRAMEWORKS: dict[str, tuple[str, ...]] = {
    "megatron": ("megatron", "zero-bubble"),
    "deepspeed": ("deepspeed",),
    "internevo": ("internevo",),
    "trace": (),
}
"""By the name of an option --export_NAME: the presets whose plans it writes, none where it writes everyone's."""


def check_framework(names: Iterable[str], preset: str) -> None:
    """Raise ExportError for an exporter that writes no plan of the framework ``preset``."""
    for name in names:
        if FRAMEWORKS[name] and preset not in FRAMEWORKS[name]:
            wanted = " or ".join(FRAMEWORKS[name])
            raise ExportError(
                f"--export_{name}: the plans are of {preset}; price them with --framework {wanted}"
            )
