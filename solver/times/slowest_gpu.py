"""Everybody waits for the slowest GPU: how much slower than a typical one it computes.

GPUs of one model differ in the clock they hold at their power limit, and a training step ends when the slowest
rank has computed. Across five large clusters the times of one GPU vary by 8 % of the median on
average, outliers aside (arXiv 2208.11035, abstract).

``Assumption:`` that range is the one between the whiskers of a box plot, which span 5.4 standard deviations of a
normal distribution; times of different GPUs are normal and independent.
"""

from spec.order_statistics import expected_largest

VARIATION = 0.08
# From Q1 - 1.5 (Q3 - Q1) to Q3 + 1.5 (Q3 - Q1), the quartiles of a normal distribution at 0.6745.
WHISKERS_STD = 8 * 0.6745
SPREAD = VARIATION / WHISKERS_STD


def slowest_of(ranks: int) -> float:
    """Compute time of the slowest of ``ranks`` GPUs (at least 1) over that of a typical one; 1 for one GPU."""
    return 1.0 + SPREAD * expected_largest(ranks)
