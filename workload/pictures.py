"""Pictures as files."""

import os
from typing import TYPE_CHECKING

from spec.errors import ExportError
from spec.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_figure(figure: "Figure", path: str | os.PathLike[str]) -> None:
    """Writes a picture; ExportError for an ending that is no picture's, and when it cannot be written."""
    with atomic_path(path) as temporary:
        ending = temporary.suffix.lstrip(".").lower()
        if ending not in figure.canvas.get_supported_filetypes():
            raise ExportError(f"{os.fspath(path)}: a picture ends in .png, .jpg, .svg or .pdf")
        figure.savefig(temporary, dpi=150, format=ending)
