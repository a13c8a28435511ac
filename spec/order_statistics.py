"""The largest of several draws from a normal distribution."""

from statistics import NormalDist


def expected_largest(draws: int) -> float:
    """Expected largest of ``draws`` (at least 1) independent standard normal numbers; 0 for one.

    Blom's approximation (Statistical Estimates and Transformed Beta-Variables, 1958): the quantile at
    (n - 3/8) / (n + 1/4).
    """
    return max(NormalDist().inv_cdf((draws - 0.375) / (draws + 0.25)), 0.0)
