"""The 80 % interval of a step, by what the prediction rests on.

``causes`` and WIDTHS say how far the steps of one source of runs (one team's machine, software and way to measure)
scatter; NEW_SOURCES adds how far a source lies off as a whole that the formulas were never checked against, as every
user's cluster is one. A profile of the cluster removes the machine's part of it, and a calibration
(solver.problem.calibration) replaces it by what measured steps leave.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from solver.times.step_parts import CARRIED
from spec.arrays import FloatArray, floats
from spec.job import JobSpec
from spec.origin import Origin

# Half of an 80 % interval of a normal distribution, and of Student's t with three degrees of freedom, in their scale.
EIGHTY_PERCENT = 1.2816
EIGHTY_PERCENT_T3 = 1.6377
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


CAUSES: dict[str, tuple[str, ...]] = {"network": NETWORK, "experts": EXPERTS, "host": ("host",), "waiting": ("bubble",)}
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
    squares = (value**2 for family, value in std_s.items() if family != CARRIED)
    seconds = {"curves": np.sqrt(np.sum([zero_s, *squares], axis=0)), "carried": std_s.get(CARRIED, zero_s)}
    for cause, names in acting.items():
        seconds[cause] = np.sum([zero_s, *(parts[name] for name in names)], axis=0)
    shares = {"formulas": np.ones_like(step_s)}
    for cause, cause_s in seconds.items():
        shares[cause] = np.divide(cause_s, step_s, out=np.zeros_like(step_s), where=step_s > 0)
    return shares


def standard_errors_s(
    job: JobSpec, parts: Mapping[str, FloatArray], std_s: Mapping[str, FloatArray]
) -> dict[str, FloatArray]:
    """Returns seconds of standard error that one source's steps scatter by, by what causes them: WIDTHS' causes, curves
    by family; "formulas" is each plan's own."""
    shares = causes(job, parts, std_s)
    step_s = np.sum(list(parts.values()), axis=0)
    errors_s = {}
    for cause, share in shares.items():
        if cause != "curves":
            errors_s[cause] = WIDTHS[cause] * share * step_s
    for family, value in std_s.items():
        if family != CARRIED:
            errors_s[f"curves of {family}"] = WIDTHS["curves"] * value
    return errors_s


def relative_std(shares: Mapping[str, FloatArray], widths: Mapping[str, float] = WIDTHS) -> FloatArray:
    """Returns the standard deviation of log(measured / predicted): ``widths`` times ``shares``, in quadrature."""
    variance = sum((widths[cause] * share) ** 2 for cause, share in shares.items())
    return np.sqrt(np.asarray(variance, dtype=np.float64))


class Evidence(StrEnum):
    """What the times of an answer rest on, from the widest interval to the narrowest."""

    SPEC = "hardware spec"
    PROFILE = "profile"
    CALIBRATION = "calibration"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpread:
    """How far a source of runs that no formula was checked against lies off: ``std`` of the mean log(measured / predicted) of
    ``sources`` such sources about UNPRICED, and ``machine``, the share of its variance that belongs to the machine and not to
    software and measurement.

    A normal spread of unknown variance, known from n sources, predicts the next by Student's t with n degrees of freedom and
    the root mean square as its scale (Gelman et al., Bayesian Data Analysis, 3rd ed., sec. 2.6 and 3.2); ``reach`` is half of
    that t's 80 % interval in its scale."""

    std: float
    sources: int
    reach: float
    machine: float = 0.0

    def interval_std(self, own: FloatArray, measured: FloatArray) -> FloatArray:
        """Returns the standard deviation of a normal with the 80 % interval of a new source's steps, whose ``own`` is by
        WIDTHS; ``measured`` is the share of each step that was measured on the machine itself."""
        left = (1.0 - self.machine) + self.machine * (1.0 - measured) ** 2
        between = self.std * np.sqrt(left) * self.reach / EIGHTY_PERCENT
        std: FloatArray = np.hypot(own, between)
        return std


# Fitted: to the six sources of benchmarks/source_spread.py, collected after the formulas and looked at by nobody before they were
# predicted. It prints the same without each of them, and how uncertain both are. Nothing else is chosen by the times of these runs.
NEW_SOURCES = SourceSpread(std=0.150, sources=6, reach=1.440, machine=0.48)


def measured_share(origins: Mapping[Origin, FloatArray]) -> FloatArray:
    """Returns the share that was measured of each step's seconds by origin. What is derived, such as waiting in a
    pipeline, is as well known as what it is derived from."""
    measured_s = np.sum([origins[one] for one in (Origin.MEASURED, Origin.EXTRAPOLATED) if one in origins], axis=0)
    others = (Origin.TRANSFERRED, Origin.MODELLED, Origin.ASSUMED)
    other_s = np.sum([origins[one] for one in others if one in origins], axis=0)
    total_s = floats(measured_s + other_s)
    return floats(np.divide(measured_s, total_s, out=np.zeros_like(total_s), where=total_s > 0))


def interval_of(step_s: FloatArray, std: FloatArray, unpriced: float = UNPRICED) -> tuple[FloatArray, FloatArray]:
    """Returns the seconds below and above which one step in ten lies each, arrays of the steps' length; ``std`` of
    log(measured / predicted), of which the middle is ``unpriced``. The step itself lies inside."""
    reach = EIGHTY_PERCENT * std
    return step_s * np.exp(np.minimum(unpriced - reach, 0.0)), step_s * np.exp(unpriced + reach)
