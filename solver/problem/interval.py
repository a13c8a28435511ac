"""The 80 % interval of a step: how wide its causes make it, from widths fitted to published runs."""

from collections.abc import Mapping

import numpy as np

from solver.times.step_parts import CARRIED
from spec.arrays import FloatArray
from spec.job import JobSpec

# Half of an 80 % interval of a normal distribution, in standard deviations.
EIGHTY_PERCENT = 1.2816
# Fitted: to the steps of published runs, all datasets alike (benchmarks/interval_widths.py, which also
# chooses them without each dataset and scores it). curves: of the standard error that the curves state;
# formulas: of every step. carried is not chosen: a constant's stated error (profdb.modelled.slow_kernels)
# is that of all that rests on it.
WIDTHS: dict[str, float] = {
    "curves": 0.5,
    "carried": 1.0,
    "formulas": 0.04,
    "network": 0.3,
    "experts": 0.1,
    "narrow": 0.03,
    "host": 0.55,
    "attention": 0.3,
    "long_attention": 0.5,
    "waiting": 0.3,
}
# Fitted: to the same, log(measured / predicted) of the median run of the median dataset: time that is not modelled.
UNPRICED = 0.045

# Tokens of the longest sequences of which flash kernels' rates were published
# (profdb.modelled.flash_generations) or, on a serving engine's GPUs, measured: longer ones are predicted by going
# on from there.
LONGEST_MEASURED = 16384

NETWORK = ("tp_comm", "cp_comm", "ep_comm", "wp_comm", "dp_comm", "pp_comm", "offload")
EXPERTS = ("grouped_gemm", "ep_comm")
PRODUCTS = ("gemm", "grouped_gemm")


CAUSES: dict[str, tuple[str, ...]] = {
    "network": NETWORK,
    "experts": EXPERTS,
    "host": ("host",),
    "waiting": ("bubble",),
}
"""Parts of a step by what may make them wrong together; products and attention by what they are of."""


def causes(job: JobSpec, parts: Mapping[str, FloatArray], std_s: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Returns the shares of a step by cause, keys of WIDTHS, from its ``parts`` in seconds and the standard errors
    ``std_s`` by family of curves: what waits for a network, experts and their exchange, products in low precision, the
    host, attention, waiting in a pipeline; "carried" is the relative error of constants from another GPU or shape,
    "curves" that of all other look-ups."""
    # Tokens that attend to each other: a sequence's, or a document's where several are packed into one.
    attended = min(job.seq_len, job.document_tokens or job.seq_len)
    longer = attended > LONGEST_MEASURED
    acting = CAUSES | {
        "narrow": PRODUCTS if job.precision.linear != job.precision.compute else (),
        "attention": () if longer else ("attention",),
        "long_attention": ("attention",) if longer else (),
    }
    step_s = np.sum(list(parts.values()), axis=0)
    zero_s = np.zeros_like(step_s)
    # Families err apart from each other, so their errors add in quadrature.
    squares = [value**2 for family, value in std_s.items() if family != CARRIED]
    seconds = {"curves": np.sqrt(np.sum([zero_s, *squares], axis=0)), "carried": std_s.get(CARRIED, zero_s)}
    for cause, names in acting.items():
        seconds[cause] = np.sum([zero_s, *(parts[name] for name in names)], axis=0)
    shares = {"formulas": np.ones_like(step_s)}
    for cause, cause_s in seconds.items():
        shares[cause] = np.divide(cause_s, step_s, out=np.zeros_like(step_s), where=step_s > 0)
    return shares


def relative_std(shares: Mapping[str, FloatArray], widths: Mapping[str, float] = WIDTHS) -> FloatArray:
    """Standard deviation of log(measured / predicted): ``widths`` times ``shares``, in quadrature."""
    variance = sum((widths[cause] * share) ** 2 for cause, share in shares.items())
    return np.sqrt(np.asarray(variance, dtype=np.float64))


def interval_of(step_s: FloatArray, std: FloatArray, unpriced: float = UNPRICED) -> tuple[FloatArray, FloatArray]:
    """Seconds below and above which one step in ten lies each, arrays of the steps' length; ``std`` of
    log(measured / predicted), of which the middle is ``unpriced``. The step itself lies inside."""
    reach = EIGHTY_PERCENT * std
    return step_s * np.exp(np.minimum(unpriced - reach, 0.0)), step_s * np.exp(unpriced + reach)


def calibrated_interval(step_s: FloatArray, residual_std: float) -> tuple[FloatArray, FloatArray]:
    """Returns the interval of a calibrated step: ``residual_std``, the spread of what the calibration left, holds
    all errors."""
    return interval_of(step_s, np.full_like(step_s, residual_std), unpriced=0.0)
