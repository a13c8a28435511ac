"""Calibration: named factors that turn priced steps into those of one user's cluster, and their JSON file.

Fitted: the factors come from measured steps (solver.calibrate.fit), never from published rows, and are used
only on request.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np

from ops.layout import group_of
from ops.op import Axis
from solver.estimate import Estimate, StepTime, estimate_memory, step_time
from solver.plans.plan_table import PlanTable
from solver.problem.interval import EIGHTY_PERCENT, EIGHTY_PERCENT_T3
from solver.times.op_times import OpTimer
from spec.arrays import BoolArray, FloatArray
from spec.cluster.cluster import ClusterSpec
from spec.errors import ConfigError
from spec.files import MAX_FILE_BYTES, UnreadableFileError, atomic_file, read_file_text
from spec.job import JobSpec
from spec.model import ModelSpec
from spec.origin import Origin

SCHEMA = 3

LONGEST_S = 1e6
"""Seconds that a factor may add to a micro-batch or a step."""
WIDEST_STD = 3.0
"""Largest standard deviation of the logarithm of a step: eight in ten within a factor of 47."""
WIDEST_SCATTER = 100.0
# Assumption: measured steps repeat to 3 %: no interval is narrower.
REPEAT_STD = 0.03

# Parts of a step by what may make them slow together.
COMPUTE = ("gemm", "attention")
EXPERTS = ("grouped_gemm",)
MEMORY_BOUND = ("memory_bound", "optimizer")
HOST = ("host",)
# The group whose placement says which network a part's traffic uses.
COMM_AXES: dict[str, Axis] = {
    "tp_comm": Axis.TP,
    "cp_comm": Axis.CP,
    "ep_comm": Axis.EP,
    "wp_comm": Axis.WP,
    "dp_comm": Axis.DP_CP,
    "pp_comm": Axis.PP,
}
# The factors that are fitted, and the parts that each divides; communication is divided by where it runs.
CAUSES: dict[str, tuple[str, ...]] = {
    "compute_efficiency": COMPUTE,
    "expert_efficiency": EXPERTS,
    "memory_bound_efficiency": MEMORY_BOUND,
    "host_efficiency": HOST,
    "intra_comm_efficiency": (),
    "inter_comm_efficiency": (),
}
# Assumption: a part takes between half and four times its priced seconds.
LOWEST_EFFICIENCY, HIGHEST_EFFICIENCY = 0.25, 2.0
# What every micro-batch takes on a stage: the bubble waits for other stages' share of it.
PER_MICRO_BATCH = (*COMPUTE, *EXPERTS, "memory_bound", "tp_comm", "cp_comm", "ep_comm", "wp_comm", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Efficiencies (fitted: CAUSES) divide the priced seconds of their parts (1: as priced, 0.8: a quarter longer);
    ``overlap`` is the share that is hidden of the communication priced as hidden; the fixed seconds are
    added for every micro-batch of a stage and once a step. ``factors_std`` is the standard deviation of a step's log
    that they leave, and ``scatter`` how many times as far as WIDTHS of solver.problem.interval have it steps scatter about it."""

    compute_efficiency: float = 1.0
    expert_efficiency: float = 1.0
    memory_bound_efficiency: float = 1.0
    host_efficiency: float = 1.0
    intra_comm_efficiency: float = 1.0
    inter_comm_efficiency: float = 1.0
    overlap: float = 1.0
    fixed_per_micro_batch_s: float = 0.0
    fixed_per_step_s: float = 0.0
    factors_std: float = 0.0
    scatter: float = 1.0

    def interval_std(self, own: FloatArray) -> FloatArray:
        """Returns the standard deviation of a normal with the 80 % interval of calibrated steps, whose ``own`` is by
        WIDTHS; steps scatter by Student's t with three degrees of freedom (solver.calibrate.fit)."""
        scatter = self.scatter * EIGHTY_PERCENT_T3 / EIGHTY_PERCENT * own
        std: FloatArray = np.maximum(np.hypot(self.factors_std, scatter), REPEAT_STD)
        return std


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Factors; the signed log(predicted / measured) of every step without factors, and by a fit to the others, which one
    step alone does not have."""

    factors: Calibration
    priced: FloatArray
    left_out: FloatArray

    @property
    def priced_error(self) -> float:
        """Mean absolute error without factors, a fraction."""
        return float(np.abs(np.expm1(self.priced)).mean())

    @property
    def leave_one_out_error(self) -> float | None:
        """Mean absolute leave-one-out error, a fraction; None for a single step."""
        return float(np.abs(np.expm1(self.left_out)).mean()) if len(self.left_out) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationTerms:
    """What factors act on, for N plans: priced seconds by part, which communication parts cross
    scale-up domains, seconds by part that overlap hides, and micro-batches that pass a stage."""

    parts: Mapping[str, FloatArray]
    crosses: Mapping[str, BoolArray]
    hidden: Mapping[str, FloatArray]
    passes: FloatArray

    def scaled(self, factor: float) -> "CalibrationTerms":
        """Returns the terms with all seconds times a factor."""
        return replace(
            self,
            parts={name: value * factor for name, value in self.parts.items()},
            hidden={name: value * factor for name, value in self.hidden.items()},
        )


def terms_of(
    model: ModelSpec, job: JobSpec, table: Estimate, op_timer: OpTimer, cost: StepTime, *, with_hidden: bool
) -> CalibrationTerms:
    """Returns the terms of priced plans; hidden communication is what a step without overlap waits for in addition."""
    plans = table.plans
    hidden: dict[str, FloatArray] = {}
    if with_hidden:
        no_overlap = without_overlap(job)
        exposed = step_time(model, no_overlap, estimate_memory(model, no_overlap, plans), op_timer)
        hidden = {name: np.maximum(exposed.parts[name] - cost.parts[name], 0.0) for name in COMM_AXES}
    return CalibrationTerms(
        parts=cost.parts, crosses=crossing(plans, op_timer.domain_ranks), hidden=hidden, passes=passes_of(plans)
    )


def crossing(plans: PlanTable, domain_ranks: int) -> dict[str, BoolArray]:
    """Returns for each communication part whether its group spans several scale-up domains."""
    axes = COMM_AXES | {"dp_comm": plans.sharding.traits.copies.dense}
    return {
        part: np.asarray(group_of(axis, plans.layout, domain_ranks).inter > 1, dtype=np.bool_)
        for part, axis in axes.items()
    }


def passes_of(plans: PlanTable) -> FloatArray:
    """Micro-batches that pass a stage, and the bubble's: (m + (p - 1) / v), arXiv 2104.04473 sec. 2.2."""
    return np.asarray(plans.num_micro + (plans.layout.pp - 1) / plans.vpp, dtype=np.float64)


def without_overlap(job: JobSpec) -> JobSpec:
    """Returns the job with every collective exposed."""
    preset = job.preset.changed(
        {
            "data_parallel.overlap_grad_reduce": False,
            "data_parallel.overlap_param_gather": False,
            "data_parallel.overlap_weights": False,
            "tensor_parallel.overlap": False,
            "tensor_parallel.overlap_backward": False,
        }
    )
    return replace(job, preset=preset)


def calibrated_parts(terms: CalibrationTerms, factors: Calibration) -> dict[str, FloatArray]:
    """Seconds by part under the factors; they sum to the calibrated step."""
    parts = dict(terms.parts)
    for factor, names in CAUSES.items():
        for name in names:
            parts[name] = parts[name] / getattr(factors, factor)
    for name, crosses in terms.crosses.items():
        seconds = parts[name]
        if name in terms.hidden:
            # What does not overlap after all is exposed in addition.
            seconds = seconds + (1.0 - factors.overlap) * terms.hidden[name]
        efficiency = np.where(crosses, factors.inter_comm_efficiency, factors.intra_comm_efficiency)
        parts[name] = np.asarray(seconds / efficiency)
    # The bubble waits for the micro-batches of other stages, so it scales with what a micro-batch takes on a stage.
    before = _total(terms.parts, PER_MICRO_BATCH)
    after = _total(parts, PER_MICRO_BATCH)
    longer = np.divide(after, before, out=np.ones_like(after), where=before > 0)
    parts["bubble"] = parts["bubble"] * longer
    fixed = factors.fixed_per_micro_batch_s * terms.passes + factors.fixed_per_step_s
    parts["host"] = parts["host"] + fixed
    return parts


def cause_shares(terms: CalibrationTerms) -> FloatArray:
    """(R, C) share of a step that each factor of CAUSES acts on; what is waited for in the bubble goes with
    its causes.
    """
    crossing = {name: np.where(crosses, terms.parts[name], 0.0) for name, crosses in terms.crosses.items()}
    inside = {name: terms.parts[name] - value for name, value in crossing.items()}
    acted = {factor: {name: terms.parts[name] for name in names} for factor, names in CAUSES.items()}
    acted |= {"intra_comm_efficiency": inside, "inter_comm_efficiency": crossing}
    # By factor: seconds in the whole step, and those in every micro-batch, for which the bubble waits as well.
    sums = [
        (_total(of, tuple(of)), _total(of, tuple(name for name in of if name in PER_MICRO_BATCH)))
        for of in acted.values()
    ]
    busy = _total(terms.parts, PER_MICRO_BATCH)
    waits = np.divide(terms.parts["bubble"], busy, out=np.zeros_like(busy), where=busy > 0)
    step_s = _total(terms.parts, tuple(terms.parts))
    return np.stack([(whole + waits * repeated) / step_s for whole, repeated in sums], axis=1)


def _total(parts: Mapping[str, FloatArray], names: tuple[str, ...]) -> FloatArray:
    return np.asarray(np.sum([parts[name] for name in names], axis=0), dtype=np.float64)


def calibrated_cost(
    model: ModelSpec, job: JobSpec, table: Estimate, op_timer: OpTimer, cost: StepTime, factors: Calibration
) -> StepTime:
    """Returns the calibrated cost. The seconds of changed parts are of origin CALIBRATED; the origins of all others keep
    their shares."""
    terms = terms_of(model, job, table, op_timer, cost, with_hidden=factors.overlap < 1.0)
    parts = calibrated_parts(terms, factors)
    step_s = _total(parts, tuple(parts))
    # Origins are known of the step, not of its parts: seconds of changed parts are taken from all origins alike.
    changed = np.zeros_like(step_s)
    for name, value in parts.items():
        changed = changed + np.where(value == cost.parts[name], 0.0, value)
    unchanged_share = (step_s - changed) / cost.step_s
    origins: dict[Origin, FloatArray] = {origin: value * unchanged_share for origin, value in cost.origins.items()}
    origins[Origin.CALIBRATED] = origins.get(Origin.CALIBRATED, np.zeros_like(step_s)) + changed
    longer = step_s / cost.step_s
    # What all GPUs do on average grows as on the slowest stage; the rest of the step they wait.
    mean_parts, idle = dict(cost.mean_parts), step_s
    for name in (one for one in mean_parts if one != "bubble"):
        ratio = np.divide(parts[name], cost.parts[name], out=np.ones_like(step_s), where=cost.parts[name] > 0)
        mean_parts[name] = mean_parts[name] * ratio
        idle = idle - mean_parts[name]
    mean_parts["bubble"] = idle
    return StepTime(
        mean_parts=mean_parts,
        stage=cost.stage,
        step_s=step_s,
        parts=parts,
        origins=origins,
        std_s={family: value * longer for family, value in cost.std_s.items()},
    )


def calibration_path(profile: Path) -> Path:
    """Returns the path of the factors of a profile: data.calibration.json for data.pt."""
    return profile.with_suffix(".calibration.json")


def write_calibration(path: Path, fit: Fit, cluster: ClusterSpec, framework: str) -> None:
    """Writes the factors and the cluster that they are valid for, atomically."""
    record = {
        "schema": SCHEMA,
        "cluster": cluster.name,
        "gpu": cluster.gpu.name,
        "framework": framework,
        "steps": len(fit.priced),
        "leave_one_out_error": fit.leave_one_out_error,
        "factors": asdict(fit.factors),
    }
    with atomic_file(path) as handle:
        json.dump(record, handle, indent=2)
        handle.write("\n")


def read_calibration(path: Path, cluster: ClusterSpec, framework: str) -> Calibration:
    """Returns the factors of a file, for the cluster and the framework preset they were fitted on.

    Raises ConfigError for a file that cannot be read, is no calibration or is another cluster's or framework's.
    """
    where = str(path)
    try:
        record = json.loads(read_file_text(path, MAX_FILE_BYTES))
    except (UnreadableFileError, ValueError, RecursionError) as error:
        raise ConfigError(
            "--calibration", "calibration", where, f"a file that python -m solver.calibrate wrote: {error}"
        ) from error
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        schema = record.get("schema") if isinstance(record, dict) else None
        raise ConfigError(where, "schema", schema, f"a calibration of schema {SCHEMA}")
    for key, own in (("cluster", cluster.name), ("gpu", cluster.gpu.name), ("framework", framework)):
        if record.get(key) != own:
            raise ConfigError(where, key, record.get(key), f"factors of {own}: its own calibration")
    return _factors(where, record.get("factors"))


def _factors(where: str, values: object) -> Calibration:
    """Returns the factors; raises ConfigError unless all are there and within their bounds."""
    names = [field.name for field in fields(Calibration)]
    if not isinstance(values, dict) or set(values) != set(names):
        raise ConfigError(where, "factors", values, f"exactly {', '.join(names)}")
    checked: dict[str, float] = {}
    for name in names:
        low, high = bounds(name)
        value = values[name]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not low <= value <= high:
            raise ConfigError(where, name, value, f"a number from {low:g} to {high:g}")
        checked[name] = float(value)
    return Calibration(**checked)


def bounds(name: str) -> tuple[float, float]:
    """Returns the lowest and highest value of a factor, with a tolerance for rounding of fitted ones."""
    if name.endswith("_efficiency"):
        return LOWEST_EFFICIENCY * (1 - 1e-9), HIGHEST_EFFICIENCY * (1 + 1e-9)
    highest = {"overlap": 1.0, "factors_std": WIDEST_STD, "scatter": WIDEST_SCATTER}
    return 0.0, highest.get(name, LONGEST_S)
