"""Flat arrays among the samples and look-ups of memory-bound kernels."""

import pytest

from profdb.fits.families import kernel_shapes
from spec.arrays import ints


@pytest.mark.parametrize(
    ("kernel", "rows", "width", "expected"),
    [
        ("cast", 3 * 2**20, 1, [768, 4096]),
        ("cast", 3 * 2**10, 1, [3, 1024]),
        ("cast", 7, 1, [7, 1]),
        ("cast", 4096, 2, [4096, 2]),
        ("fill", 3 * 2**20, 1, [3 * 2**20, 1]),
    ],
)
def test_a_flat_array_counts_as_rows_that_divide_it(kernel: str, rows: int, width: int, expected: list[int]) -> None:
    """By hand: the largest power of two up to 4,096. Kernels over all parameters of a rank stay flat."""
    labels = {"kernel": kernel, "direction": "forward", "dtype": "bf16"}
    shapes = kernel_shapes({"rows": ints(rows), "width": ints(width)}, labels)
    assert [float(size[0]) for size in shapes.sizes] == expected
