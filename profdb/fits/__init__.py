"""One file per family: how its times depend on its sizes."""

from collections.abc import Callable
from dataclasses import dataclass

from profdb.cases import Family
from profdb.fits import attention, collective, gemm, grouped_gemm, host, memory_bound, optimizer
from profdb.fits.prediction import Arrays, Prediction
from spec.arrays import FloatArray, IntArray

Columns = dict[str, IntArray]
Labels = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitter:
    """How one family is fitted and read. ``labels`` and ``flags`` name the case fields that split the
    samples into curves; a change of method raises ``version``, and stored fits are made anew."""

    version: int
    labels: tuple[str, ...]
    flags: tuple[str, ...]
    fit: Callable[[Columns, Labels, FloatArray, float], Arrays]
    predict: Callable[[Arrays, Columns, Labels], Prediction]


FITTERS: dict[Family, Fitter] = {
    family: Fitter(
        version=module.VERSION,
        labels=module.CURVE_LABELS,
        flags=module.CURVE_FLAGS,
        fit=module.fit,
        predict=module.predict,
    )
    for family, module in {
        Family.GEMM: gemm,
        Family.GROUPED_GEMM: grouped_gemm,
        Family.ATTENTION: attention,
        Family.MEMORY_BOUND: memory_bound,
        Family.OPTIMIZER: optimizer,
        Family.COLLECTIVE: collective,
        Family.HOST: host,
    }.items()
}
