"""Errors beyond the end of a line are those that its own samples tell."""

import numpy as np
import pytest

from profdb.cases import Family
from profdb.fits.families import FITTERS
from profdb.fits.lines import FEWEST_LINES, Arrays, Blend, build_lines, end_slope, read_lines

WORDS = {"layout": "NT", "dtype_in": "bf16", "scale_recipe": "", "bias": "0"}
OCTAVES = np.arange(7.0)


def bundle(lines: int, per_octave: float) -> Arrays:
    """Lines whose value falls by a like part in every octave: of log(seconds / roofline)."""
    where = np.stack([np.tile(OCTAVES, lines), np.repeat(np.arange(float(lines)), len(OCTAVES))], axis=1)
    return build_lines(where, -per_octave * where[:, 0], axis=0)


def test_a_trend_along_lines_is_what_goes_on_beyond_their_ends() -> None:
    """Cut 1, 2, 3 octaves before the end a line misses it by e^(s j) - 1, an octave by the middle of the three."""
    found = end_slope(bundle(10, 0.02), 0.5)
    cuts = np.repeat([np.expm1(0.02 * j) / j for j in (1.0, 2.0, 3.0)], 10)
    assert found == pytest.approx(np.quantile(cuts, 0.683))
    assert end_slope(bundle(10, 0.0), 0.5) == 0.0


def test_few_lines_or_worse_ends_than_other_lines_say_nothing_of_their_own() -> None:
    assert end_slope(bundle(FEWEST_LINES - 1, 0.02), 0.5) == 0.5
    assert end_slope(bundle(10, 0.4), 0.1) == 0.1


def test_how_far_a_place_lies_beyond_the_nearest_line() -> None:
    """Three octaves beyond the end, one from the line; short of its start and between samples nothing is beyond."""
    places = np.asarray([[9.0, 0.0], [9.0, -1.0], [-2.0, 0.0], [2.5, 0.0]])
    reading = read_lines(bundle(10, 0.0), Blend(neighbours=1, plane=False), places)
    assert reading.beyond == pytest.approx([3.0, 3.0, 0.0, 0.0])
    assert reading.distance == pytest.approx([3.0, np.sqrt(10.0), 2.0, 0.5])


def test_products_of_more_tokens_err_less_than_products_of_other_matrices() -> None:
    """Efficiency that every matrix has for itself (10 %) and keeps, however many tokens it meets."""
    tokens = 2.0 ** np.arange(6, 13)
    sides = 2.0 ** np.arange(8, 14)
    m, k, n = (grid.ravel().astype(np.int64) for grid in np.meshgrid(tokens, sides, sides))
    own = np.random.default_rng(1).lognormal(0.0, 0.1, (14, 14))
    seconds = 2.0 * m * k * n / 1e15 * own[np.log2(k).astype(int), np.log2(n).astype(int)]
    columns = {"batch": np.ones_like(m), "m": m, "k": k, "n": n}
    fitted = FITTERS[Family.GEMM].fit(columns, WORDS, seconds, 0.01)

    def std(tokens: int, side: int) -> float:
        asked = (1, tokens, side, side)
        query = {name: np.asarray([value]) for name, value in zip(columns, asked, strict=True)}
        return float(FITTERS[Family.GEMM].predict(fitted, query, WORDS).relative_std[0])

    assert std(4096, 4096) == pytest.approx(0.01)
    assert std(32768, 4096) < 0.05 < std(4096, 32768)
    assert std(32768, 32768) > std(4096, 32768)
