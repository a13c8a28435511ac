"""Surfaces of kernels: counts of FLOPs and bytes, lines and their ends, trees, what is left out."""

import numpy as np
import pytest

from profdb.cases import Family
from profdb.fits import surface
from profdb.fits.families import FITTERS, attended_pairs, attention_shapes
from profdb.fits.lines import FEWEST_LINES, Arrays, Blend, build_lines, end_slope, fit_error, read_lines
from profdb.fits.surface import DEPTH, LEARNING_RATE, TREES, fit_trees, read_trees
from spec.arrays import ints

WORDS = {"layout": "NT", "dtype_in": "bf16", "scale_recipe": "", "bias": "0"}


def waves(m: np.ndarray, k: np.ndarray, n: np.ndarray) -> np.ndarray:
    """128 x 128 tiles on 108 SMs, one wave after another: steps in m and n, straight in k."""
    tiles = np.ceil(m / 128) * np.ceil(n / 128)
    return np.ceil(tiles / 108) * k * 2e-9 + 5e-6


@pytest.fixture
def _few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take most of a fit, and the test is about lines."""
    monkeypatch.setattr(surface, "TREES", 4)


@pytest.mark.usefixtures("_few_trees")
def test_the_metric_learns_that_equal_n_matters_and_k_does_not() -> None:
    sizes = np.asarray([256, 512, 768, 1024, 1536, 2048, 2560, 3072, 4096, 5120])
    m, k, n = (grid.ravel() for grid in np.meshgrid(np.asarray([512, 2048, 4096]), sizes, sizes))
    rng = np.random.default_rng(0)
    hidden = rng.random(m.shape) < 0.15
    columns = {"batch": np.ones_like(m), "m": m, "k": k, "n": n}
    fitted = FITTERS[Family.GEMM].fit(
        {name: column[~hidden] for name, column in columns.items()}, WORDS, waves(m, k, n)[~hidden], 0.0
    )
    predicted = FITTERS[Family.GEMM].predict(fitted, {name: column[hidden] for name, column in columns.items()}, WORDS)
    errors = np.abs(predicted.seconds / waves(m, k, n)[hidden] - 1.0)
    assert np.median(errors) < 0.03
    metric = fitted["metric"]
    assert metric[2] < metric[3] or int(fitted["axis"][0]) == 2


def test_error_grows_with_distance_and_is_learned_from_left_out_lines() -> None:
    sizes = np.asarray([512, 1024, 2048, 4096])
    m, k, n = (grid.ravel() for grid in np.meshgrid(sizes, sizes, sizes))
    rng = np.random.default_rng(3)
    seconds = waves(m, k, n) * rng.lognormal(0.0, 0.1, m.shape)
    columns = {"batch": np.ones_like(m), "m": m, "k": k, "n": n}
    fitted = FITTERS[Family.GEMM].fit(columns, WORDS, seconds, 0.02)
    one = {name: np.asarray([value]) for name, value in zip(columns, (1, 1024, 1024, 1024), strict=True)}
    far = {name: np.asarray([value]) for name, value in zip(columns, (1, 1024, 60000, 60000), strict=True)}
    near_std = FITTERS[Family.GEMM].predict(fitted, one, WORDS).relative_std[0]
    far_std = FITTERS[Family.GEMM].predict(fitted, far, WORDS).relative_std[0]
    assert near_std == pytest.approx(0.02)
    assert far_std > 3 * near_std
    assert 0.02 < fit_error(fitted)["median"] < 1.0


def test_lines_are_read_exactly_at_samples_and_straight_between() -> None:
    points = np.asarray([[0.0, 0.0], [2.0, 0.0], [4.0, 0.0], [0.0, 5.0], [4.0, 5.0]])
    arrays = build_lines(points, np.asarray([1.0, 3.0, 2.0, 10.0, 30.0]), axis=0)
    reading = read_lines(
        arrays, Blend(neighbours=1, plane=False), np.asarray([[2.0, 0.0], [3.0, 0.0], [1.0, 5.0], [9.0, 5.0]])
    )
    assert reading.value == pytest.approx([3.0, 2.5, 15.0, 30.0])
    assert reading.inside.tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    ("mask", "window", "q_len", "kv_len"),
    [("full", 0, 5, 9), ("causal", 0, 7, 7), ("causal", 0, 3, 8), ("window", 4, 7, 7), ("window", 3, 4, 9)],
)
def test_attended_pairs_are_those_of_the_mask(mask: str, window: int, q_len: int, kv_len: int) -> None:
    query = np.arange(q_len)[:, None] + kv_len - q_len
    key = np.arange(kv_len)[None, :]
    seen = np.ones((q_len, kv_len), dtype=bool) if mask == "full" else key <= query
    if mask == "window":
        seen &= key > query - window
    columns = {"q_len": np.asarray([q_len]), "kv_len": np.asarray([kv_len]), "window": np.asarray([window])}
    assert attended_pairs(columns, mask)[0] == seen.sum()


def test_arrays_tell_what_the_library_tells() -> None:
    from sklearn.ensemble import GradientBoostingRegressor

    rng = np.random.default_rng(0)
    points, asked = rng.uniform(0, 15, (200, 3)), rng.uniform(-2, 17, (300, 3))
    target = np.sin(points[:, 0]) + points[:, 1] / 5.0
    model = GradientBoostingRegressor(
        loss="absolute_error",
        n_estimators=TREES,
        max_depth=DEPTH,
        learning_rate=LEARNING_RATE,
        min_samples_leaf=3,
        subsample=0.7,
        random_state=0,
    ).fit(points, target)
    predicted = read_trees(fit_trees(points, target), asked)
    assert predicted == pytest.approx(model.predict(asked), abs=1e-9)


def test_trees_help_scattered_samples_with_a_step_and_leave_samples_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surface, "TREES", 30)
    rng = np.random.default_rng(1)
    m, k, n = ((2.0 ** rng.uniform(8, 14, 800)).astype(np.int64) for _ in range(3))
    # kernels chosen by steps in all three sizes, which planes and means smear
    slow = 1.0 + (n > 2000) + 2.0 * (m > 1500) + 0.5 * (k > 3000)
    seconds = 2.0 * m * k * n / 4e14 * slow + 5e-6
    columns = {"batch": np.ones_like(m), "m": m, "k": k, "n": n}
    seen, hidden = np.arange(500), np.arange(500, 800)

    def part(rows: np.ndarray) -> dict[str, np.ndarray]:
        return {name: column[rows] for name, column in columns.items()}

    fitted = FITTERS[Family.GEMM].fit(part(seen), WORDS, seconds[seen], 0.0)
    assert fitted["tree_share"][0] > 0.0
    mixed = np.abs(FITTERS[Family.GEMM].predict(fitted, part(hidden), WORDS).seconds / seconds[hidden] - 1.0)
    lines = np.abs(
        FITTERS[Family.GEMM].predict(fitted | {"tree_share": np.zeros(1)}, part(hidden), WORDS).seconds
        / seconds[hidden]
        - 1.0
    )
    assert np.mean(mixed) < 0.9 * np.mean(lines)
    own = FITTERS[Family.GEMM].predict(fitted, part(seen), WORDS).seconds
    assert own == pytest.approx(seconds[seen], rel=1e-3)


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


@pytest.mark.usefixtures("_few_trees")
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


SIZES = {"batch": 2, "q_len": 128, "kv_len": 256, "heads": 8, "kv_heads": 2, "qk_dim": 64, "v_dim": 32, "window": 0}
COLUMNS = {name: ints(size) for name, size in SIZES.items()}


def test_a_backward_has_five_products_for_the_forwards_two() -> None:
    """2 (qk_dim + v_dim) FLOPs a pair and head forward (FlashAttention-2, 2307.08691)."""
    ways = {
        way: attention_shapes(COLUMNS, {"dtype": "bf16", "mask": "full", "direction": way})
        for way in ("forward", "backward")
    }
    forward = 2 * 2 * 8 * 128 * 256 * (64 + 32)
    assert ways["forward"].flops[0] == pytest.approx(forward)
    assert ways["backward"].flops[0] == pytest.approx(forward * 5 / 2)
    moved = 2 * 2 * (128 * 8 * 64 + 256 * 2 * (64 + 32) + 128 * 8 * 32)
    assert ways["forward"].size_bytes[0] == pytest.approx(moved)
    assert ways["backward"].size_bytes[0] == pytest.approx(2 * moved)
