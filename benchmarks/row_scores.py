"""The measurements of published rows, and the errors of their predictions: residuals by cause, coverage of intervals.

FLOP formulas as the sources used them: Narayanan et al. 2021 (arXiv 2104.04473 eq. 3) with recompute counted;
Megatron-Core without it (72 B s l h^2 (1 + s/6h + V/12lh)).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from benchmarks.published_rows import UNEVEN_BATCH, PublishedRow, RowPrediction
from solver.estimate import estimate_memory
from solver.memory.device import usable_bytes
from solver.plans.plan_table import PlanTable
from solver.problem.interval import SourceSpread, interval_of
from spec.arrays import floats
from spec.units import GIB, TERA

WITHOUT_RECOMPUTE = frozenset({"megatron_core_h100", "megascale"})
# What each dataset reports as memory: max_memory_allocated (SimuMax's README; the zero-bubble paper's table 4, in GB of
# 10^9 bytes as printed; nanotron's logs of 2024-07 and fms-acceleration's), max_memory_reserved (torchtitan's metrics;
# nanotron's table of 2024-12, helpers.py create_table_log: logging.py log_memory resets the peak of what is allocated
# after the last micro-batch, so only its "Mem Res" holds activations), what
# nvidia-smi shows (bigscience; assumed of InternEvo's table). Out-of-memory verdicts: what the device must have.
ALLOCATED = frozenset({"simumax_a100", "simumax_b200", "fms_accel_full", "fms_accel_peft"})
ALLOCATED_DECIMAL = frozenset({"zero_bubble"})
# of the first pipeline stage, which rank 0 is on
ALLOCATED_FIRST = frozenset({"nanotron_old_bench"})
RESERVED_FIRST = frozenset({"nanotron_bench"})
RESERVED = frozenset({"torchtitan"})
DEVICE_MEMORY = frozenset({"bigscience", "internevo_mem"})
DECIMAL_GB = 1e9


# Fitted: as solver.problem.interval.WIDTHS. Width that a feature adds which a run uses and the solver does not model; the
# solver itself refuses such a question.
GAP_STD = 0.04
INSIDE = 0.8
KNOWN, NEW, ALL_ROWS = "80 % interval", "80 % interval, new", "all rows"
NO_SPREADS: Mapping[str, SourceSpread] = MappingProxyType({})
SPLITS: tuple[tuple[str, Callable[[PublishedRow], str]], ...] = (
    ("dataset", lambda row: row.dataset),
    ("tp", lambda row: row.text("tp")),
    ("pp", lambda row: row.text("pp")),
    ("micro-batch", lambda row: row.text("micro_batch") or "not stated"),
    ("gpus", lambda row: row.text("num_gpus")),
    ("recompute", lambda row: row.text("recompute")),
    ("gpu", lambda row: row.text("gpu")),
    ("framework", lambda row: row.text("framework")),
    ("precision", lambda row: row.text("precision")),
)


def measured_step_s(row: PublishedRow) -> float | None:
    """Measured seconds of a step, from the figure that the source gives; None if it gives none. Read only after the
    prediction."""
    stated_s = row.number("measured_step_s")
    if stated_s:
        return stated_s
    gpus, batch, length = (row.number(name) for name in ("num_gpus", "global_batch_sequences", "seq_len"))
    tokens = row.number("measured_tokens_per_s_per_gpu")
    if tokens:
        return batch * length / (tokens * gpus)
    rate = row.number("measured_tflops_per_gpu")
    flops = _source_flops(row, batch, length)
    return flops / (rate * TERA * gpus) if rate and flops else None


def _source_flops(row: PublishedRow, batch: float, length: float) -> float | None:
    if not row.number("hidden"):
        return None
    hidden, layers, vocab = row.number("hidden"), row.number("layers"), row.number("vocab")
    attention = length / (6.0 * hidden)
    if row.dataset == "megatron_sc21":
        head = vocab / (16.0 * layers * hidden)
        return 96.0 * batch * length * layers * hidden**2 * (1.0 + attention + head)
    if row.dataset in WITHOUT_RECOMPUTE:
        head = vocab / (12.0 * layers * hidden)
        return 72.0 * batch * length * layers * hidden**2 * (1.0 + attention + head)
    if row.dataset == "moe_folding":
        return _expert_flops(row, batch, length)
    return None


def _expert_flops(row: PublishedRow, batch: float, length: float) -> float:
    """Six FLOPs per token for each parameter that it passes through, and full attention (Megatron-Core 2025)."""
    hidden, layers = row.number("hidden"), row.number("layers")
    heads, kv_heads, width = row.number("heads"), row.number("kv_heads"), row.number("head_dim")
    attention = 2 * hidden * width * (heads + kv_heads)
    matrices = 3 if row.text("gated_mlp") == "1" else 2
    passed = row.number("topk") + row.number("shared_experts")
    experts = passed * matrices * hidden * row.number("moe_ffn_hidden")
    dense = {"first3dense": 3, "first1dense": 1}.get(row.text("moe_layer_freq"), 0)
    parameters = layers * attention + (layers - dense) * experts
    parameters += dense * matrices * hidden * row.number("ffn_hidden")
    per_token = 6 * (parameters + row.number("vocab") * hidden) + 12 * layers * heads * width * length
    return batch * length * per_token


def memory_gib(one: RowPrediction) -> float | None:
    """Predicted GiB of the quantity that the dataset reports, by default of the worst stage; None without an answer."""
    problem, answer, dataset = one.problem, one.answer, one.row.dataset
    if problem is None or answer is None:
        return None
    if dataset in ALLOCATED:
        return answer.allocated_bytes / GIB
    if dataset in ALLOCATED_FIRST | RESERVED_FIRST:
        table = estimate_memory(problem.model, problem.job, PlanTable.of(answer.plan), problem.cluster)
        cost = table.bytes.cost
        memory_bytes = cost.allocated_bytes
        if dataset in RESERVED_FIRST:
            # If it does not fit, the allocator frees cached segments (solver.memory.device).
            retries = cost.device_bytes > usable_bytes(problem.cluster)
            memory_bytes = cost.reserved_bytes - np.where(retries, cost.segment_bytes, 0.0)
        return float(memory_bytes[table.stages.starts[0]]) / GIB
    if dataset in ALLOCATED_DECIMAL:
        return answer.allocated_bytes / DECIMAL_GB
    if dataset in RESERVED:
        return answer.reserved_bytes / GIB
    if dataset in DEVICE_MEMORY and answer.device_bytes <= usable_bytes(problem.cluster):
        return answer.device_bytes / GIB
    return answer.needed_bytes / GIB


def interval(one: RowPrediction, spread: SourceSpread | None = None) -> tuple[float, float] | None:
    """The 80 % interval of a row's step in seconds, of a source with ``spread`` or, without one, of a source that was looked
    at; widened for features that are not modelled. None without an answer."""
    if one.answer is None:
        return None
    missing = len(set(one.gaps) - {UNEVEN_BATCH})
    own = math.hypot(math.hypot(*one.answer.scatter_s.values()) / one.answer.step_s, GAP_STD * math.sqrt(missing))
    std = floats(own) if spread is None else spread.interval_std(floats(own), floats(0.0))
    low, high = interval_of(floats(one.step_s), std)
    return float(low[0]), float(high[0])


def coverage_lines(
    predictions: Sequence[RowPrediction], title: str = KNOWN, spreads: Mapping[str, SourceSpread] = NO_SPREADS
) -> list[str]:
    """A line for each dataset and one for all rows: share below, inside and above, median and mean half-width, and the mean
    interval score of log(measured / predicted) (Gneiting and Raftery 2007, eq. 43), all in %. ``spreads`` by dataset."""
    predicted: dict[str, list[tuple[float, ...]]] = {}
    for one in predictions:
        measured, bounds = measured_step_s(one.row), interval(one, spreads.get(one.row.dataset))
        if not measured or bounds is None:
            continue
        low, high = bounds
        missed = max(math.log(low / measured), math.log(measured / high), 0.0)
        score = math.log(high / low) + 2.0 / (1.0 - INSIDE) * missed
        half = (high - low) / 2.0 / one.step_s
        predicted.setdefault(one.row.dataset, []).append(
            (measured < low, low <= measured <= high, measured > high, half, score)
        )
    heads = f"{'below %':>8} {'inside %':>9} {'above %':>8} {'half-width %':>13} {'mean %':>7} {'score %':>8}"
    lines = [f"{title:24} {'rows':>5} {heads}"]
    for dataset, rows in sorted(predicted.items()):
        lines.append(_line(dataset, np.array(rows, dtype=np.float64)))
    if predicted:
        lines.append(_line(ALL_ROWS, np.concatenate([np.array(rows, np.float64) for rows in predicted.values()])))
    return lines


def _line(name: str, rows: np.ndarray) -> str:
    below, inside, above, mean, score = 100.0 * rows.mean(axis=0)
    half = 100.0 * float(np.median(rows[:, 3]))
    return f"{name:24} {len(rows):5d} {below:8.1f} {inside:9.1f} {above:8.1f} {half:13.1f} {mean:7.1f} {score:8.1f}"


def residual_lines(predictions: Iterable[RowPrediction]) -> list[str]:
    """A table of mean log(predicted / measured) and mean absolute error, split by possible causes."""
    pairs = [
        (one, math.log(one.step_s / measured))
        for one in predictions
        if one.answer and (measured := measured_step_s(one.row))
    ]
    lines = [f"{'residual by':12} {'value':46} {'rows':>5} {'mean log ratio':>15} {'MAPE %':>8}"]
    for split, value_of in SPLITS:
        by_value: dict[str, list[float]] = {}
        for one, ratio in pairs:
            by_value.setdefault(value_of(one.row), []).append(ratio)
        for value in sorted(by_value, key=lambda text: (0, float(text), "") if text.isdecimal() else (1, 0.0, text)):
            ratios = np.array(by_value[value])
            error = 100 * float(np.abs(np.expm1(ratios)).mean())
            lines.append(f"{split:12} {value:46} {len(ratios):5d} {ratios.mean():+15.3f} {error:8.1f}")
    return lines


def gap_lines(predictions: Iterable[RowPrediction]) -> list[str]:
    """Tables of the features that are not modelled, by rows and datasets, and of the reasons for missing predictions."""
    counts: dict[str, Counter[str]] = {}
    reasons: Counter[str] = Counter()
    for one in predictions:
        for gap in dict.fromkeys(one.gaps):
            counts.setdefault(gap, Counter())[one.row.dataset] += 1
        if one.reason:
            reasons[one.reason.split(": ", maxsplit=1)[-1]] += 1
    lines = [f"{'rows':>5}  missing physics"]
    for gap, of in sorted(counts.items(), key=lambda item: -item[1].total()):
        datasets = ", ".join(f"{dataset} {count}" for dataset, count in of.most_common())
        lines.append(f"{of.total():5d}  {gap}: {datasets}")
    return [*lines, f"{'rows':>5}  not priced, by reason", *(f"{n:5d}  {why}" for why, n in reasons.most_common())]
