"""A traffic matrix as a picture."""

import os

import numpy as np

from spec.arrays import FloatArray
from spec.errors import ExportError
from spec.replaced_file import replaced_path
from spec.units import GIB, KIB, MIB

PICTURE_CELLS = 1024


def draw_heatmap(matrix: FloatArray, path: str | os.PathLike[str], title: str) -> None:
    """Draw bytes sent (rows: sender, columns: receiver) to ``path`` (.png, .jpg, .svg, .pdf).

    The colour scale is logarithmic where values span more than a decade, else it starts at 0; cells
    without traffic stay white. More than 1024 cells a side are
    drawn as the maximum over blocks, so that thin lines stay visible. Raises ExportError when the
    picture cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.figure import Figure

    unit, name = _unit(float(matrix.max(initial=0.0)))
    shown = _block_maximum(matrix, PICTURE_CELLS) / unit
    figure = Figure(figsize=(7.0, 6.0), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, wrap=True)
    axes.set_xlabel("receiving rank")
    axes.set_ylabel("sending rank")
    size = matrix.shape[0]
    extent = (-0.5, size - 0.5, size - 0.5, -0.5)
    positive = shown[shown > 0]
    if positive.size:
        low, high = float(positive.min()), float(positive.max())
        # Values within a decade read best from 0 up.
        norm = LogNorm(low, high) if high > 10.0 * low else Normalize(0.0, high)
        image = axes.imshow(
            np.ma.masked_equal(shown, 0.0),
            cmap="viridis_r",
            norm=norm,
            extent=extent,
            interpolation="nearest",
        )
        figure.colorbar(image, label=f"{name} sent")
    else:
        axes.imshow(np.ones((1, 1, 3)), extent=extent)
        axes.text((size - 1) / 2, (size - 1) / 2, "no traffic", ha="center", va="center")
    with replaced_path(path) as temporary:
        ending = temporary.suffix.lstrip(".").lower()
        if ending not in canvas.get_supported_filetypes():
            raise ExportError(f"{os.fspath(path)}: a picture ends in .png, .jpg, .svg or .pdf")
        figure.savefig(temporary, dpi=150, format=ending)


def _unit(largest_bytes: float) -> tuple[float, str]:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if largest_bytes >= unit:
            return float(unit), name
    return 1.0, "bytes"


def _block_maximum(matrix: FloatArray, cells: int) -> FloatArray:
    block = -(-matrix.shape[0] // cells)
    if block <= 1:
        return matrix
    starts = np.arange(0, matrix.shape[0], block)
    rows = np.maximum.reduceat(matrix, starts, axis=0)
    return np.asarray(np.maximum.reduceat(rows, starts, axis=1), dtype=np.float64)
