"""Cases of a sweep, in order: its own, or those of a file (--cases) that this machine can measure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields

from profdb.cases import (
    FAMILY_OF,
    AttentionCase,
    Case,
    CollectiveCase,
    ExpertExchangeCase,
    GemmCase,
    GroupedCase,
    GroupedGemmCase,
    HostCopyCase,
    LayerCase,
    MemoryBoundCase,
    ModuleCase,
    OptimizerCase,
    OverlapCase,
    SustainedCase,
    WarmKernelCase,
)
from profiler.benchmarks.memory_bound import moved_bytes
from profiler.benchmarks.transformer_engine import RECIPES
from profiler.cases import attention_cases, collective_cases, kernel_cases, linear_cases, module_cases, step_cases
from profiler.cases.group_tilings import why_untiled
from profiler.cases.tiers import PlannedCase, in_order
from spec.collectives import TRAINING_COLLECTIVES
from spec.dtypes import dtype_bytes
from spec.errors import ConfigError

CPU_LARGEST_COLLECTIVE_BYTES = 1 << 20
"""Largest collective of a processor "cluster" without --max_size: it is a rehearsal, and its curves are straight
beyond."""

BENCHMARKS: tuple[str, ...] = (
    "linear",
    "attention",
    "grouped_gemm",
    "memory_bound",
    "optimizer",
    "host",
    "overlap",
    "layer",
    "host_copy",
    "expert_exchange",
    "sustained",
    "warm",
    "module",
    *(kind.value for kind in TRAINING_COLLECTIVES),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """Selection of a sweep: ``only`` these benchmarks (empty: all), arrays up to ``max_bytes`` (0: the device's
    usual), on ``domains`` scale-up domains of ``domain_ranks`` ranks, ``node_ranks`` of a node; memory-bound kernels
    without ``excluded_kernels``, fp8 products by the device's ``fp8_scales`` (None: any), and warm operands that fit its
    ``cache_bytes`` (0: any); kernels of Transformer Engine where it is installed."""

    device_kind: str
    domain_ranks: int = 1
    domains: int = 1
    node_ranks: int = 1
    only: tuple[str, ...] = ()
    max_bytes: int = 0
    excluded_kernels: frozenset[str] = frozenset()
    fp8_scales: tuple[str, ...] | None = None
    cache_bytes: int = 0
    transformer_engine: bool = False

    def runs(self, case: Case) -> bool:
        """Returns whether the device has the kernel, and for warm operands the cache."""
        if isinstance(case, GemmCase | SustainedCase) and case.dtype_in == "fp8":
            return self.fp8_scales is None or case.scale_recipe in self.fp8_scales
        if module_cases.of_transformer_engine(case):
            return self.transformer_engine
        return not isinstance(case, WarmKernelCase) or not self.cache_bytes or moved_bytes(case) <= self.cache_bytes

    def takes(self, case: Case) -> bool:
        """Returns whether the case is among the selected benchmarks and small enough."""
        if (self.only and benchmark_of(case) not in self.only) or not self.runs(case):
            return False
        if isinstance(case, MemoryBoundCase | WarmKernelCase) and case.kernel in self.excluded_kernels:
            return False
        size = largest_array_bytes(case)
        if self.max_bytes:
            return size <= self.max_bytes
        # A limit for processors alone, and only for what is sent between them.
        rehearsal = self.device_kind == "cpu" and isinstance(case, CollectiveCase | OverlapCase)
        return not rehearsal or size <= CPU_LARGEST_COLLECTIVE_BYTES


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """Returns the benchmarks of ``--only``; ``comm`` stands for all collectives. Raises ConfigError for others."""
    chosen: list[str] = []
    for name in names:
        if name not in BENCHMARKS and name != "comm":
            raise ConfigError(
                where="command line",
                key="--only",
                value=name,
                allowed=f"some of {', '.join(BENCHMARKS)}, or comm for all collectives",
            )
        chosen += [kind.value for kind in TRAINING_COLLECTIVES] if name == "comm" else [name]
    return tuple(dict.fromkeys(chosen))


def plan_cases(plan: SweepPlan, model_cases: Sequence[PlannedCase] = ()) -> list[Case]:
    """Returns the cases of ``plan_tiers``."""
    return [item.case for item in plan_tiers(plan, model_cases)]


def plan_tiers(plan: SweepPlan, model_cases: Sequence[PlannedCase] = ()) -> list[PlannedCase]:
    """Returns the cases of a sweep, most informative first, the same on every rank; ``model_cases`` are measured as well
    (profiler.cases.model_cases)."""
    small = plan.device_kind == "cpu"
    dtype = "bf16"
    # Collectives of a single rank are none; the compute cases are the same on every world.
    cases = collective_cases.collective_cases(plan.domain_ranks, plan.domains, dtype)
    cases += cpu_compute(dtype) if small else gpu_compute()
    cases += cpu_step_parts(plan, dtype) if small else gpu_step_parts(plan)
    cases += model_cases
    return in_order([item for item in cases if plan.takes(item.case)])


def gpu_compute() -> list[PlannedCase]:
    """Returns the compute cases of a GPU."""
    return [
        *kernel_cases.host_cases(),
        *linear_cases.gpu_linear_cases(),
        *attention_cases.gpu_attention_cases(),
        *linear_cases.gpu_grouped_cases(),
        *linear_cases.sustained_cases(),
        *kernel_cases.warm_cases(),
        *kernel_cases.gpu_kernel_cases(),
        *kernel_cases.gpu_optimizer_cases(),
    ]


def gpu_step_parts(plan: SweepPlan) -> list[PlannedCase]:
    """Returns the cases of several operations, on GPUs."""
    return [
        *step_cases.gpu_layer_cases(),
        *step_cases.overlap_cases(step_cases.ON_GPU, plan.domain_ranks, plan.domains, "bf16"),
        *step_cases.host_copy_cases(plan.node_ranks),
        *step_cases.exchange_cases(plan.domain_ranks, plan.domains),
        *module_cases.gpu_module_cases([one for one in plan.fp8_scales or () if one in RECIPES]),
    ]


def cpu_step_parts(plan: SweepPlan, dtype: str) -> list[PlannedCase]:
    """Returns the cases of several operations that processors can run."""
    return [
        *step_cases.cpu_layer_cases(dtype),
        *step_cases.overlap_cases(step_cases.ON_CPU, plan.domain_ranks, plan.domains, dtype),
        *step_cases.cpu_exchange_cases(plan.domain_ranks, plan.domains, dtype),
    ]


def cpu_compute(dtype: str) -> list[PlannedCase]:
    """Returns the compute cases of a processor: the shapes of a tiny model."""
    return [
        *kernel_cases.host_cases(),
        *linear_cases.cpu_linear_cases(dtype),
        *attention_cases.cpu_attention_cases(dtype),
        *linear_cases.cpu_grouped_cases(dtype),
        *kernel_cases.cpu_kernel_cases(dtype),
        *kernel_cases.cpu_optimizer_cases(),
    ]


def benchmark_of(case: Case) -> str:
    """Returns the name in ``--only`` that covers a case."""
    if isinstance(case, CollectiveCase):
        return case.collective.value
    return "linear" if isinstance(case, GemmCase) else FAMILY_OF[type(case)].value


def largest_array_bytes(case: Case) -> float:
    """Returns the bytes of the largest array of a case."""
    match case:
        case CollectiveCase():
            return case.size_bytes
        case SustainedCase():
            return max(case.m * case.k, case.k * case.n, case.m * case.n) * dtype_bytes(case.dtype_in)
        case GemmCase():
            largest = max(case.m * case.k, case.k * case.n, case.m * case.n)
            return case.batch * largest * dtype_bytes(case.dtype_in)
        case GroupedGemmCase():
            largest = max(case.m * case.k, case.groups * case.k * case.n, case.m * case.n)
            return largest * dtype_bytes(case.dtype_in)
        case AttentionCase():
            tokens = case.batch * max(case.q_len * case.heads, case.kv_len * case.kv_heads)
            return tokens * case.qk_dim * dtype_bytes(case.dtype)
        case MemoryBoundCase() | WarmKernelCase():
            return case.rows * case.width * dtype_bytes(case.dtype)
        case OptimizerCase():
            return case.elements * dtype_bytes(case.parameter_dtype)
    return largest_of_step_part(case)


def largest_of_step_part(case: Case) -> float:
    """Returns the bytes of the largest array of a case of several operations; 0 for the host's costs."""
    match case:
        case OverlapCase():
            product = max(case.m * case.k, case.k * case.n, case.m * case.n) * dtype_bytes(case.dtype)
            return max(product, case.size_bytes)
        case LayerCase():
            # Activations of the fused gate and up projection, or of queries, keys and values; weights of the same
            # widths.
            widest = max(2 * case.ffn_hidden, (case.heads + 2 * case.kv_heads) * case.head_dim)
            return max(case.batch * case.seq_len, case.hidden) * widest * dtype_bytes(case.dtype)
        case ModuleCase():
            weights = case.groups * case.in_features * case.out_features
            return max(weights, case.rows * max(case.in_features, case.out_features)) * dtype_bytes(case.dtype)
        case HostCopyCase():
            return case.size_bytes
        case ExpertExchangeCase():
            return case.tokens * case.topk * case.hidden * dtype_bytes(case.dtype)
    return 0


def describe(case: Case) -> str:
    """Returns one short line: the benchmark and its numbers and labels."""
    values = (f"{field.name}={getattr(case, field.name)}" for field in fields(case))
    return f"{benchmark_of(case)}({', '.join(values)})"


def skip_reason(case: Case, plan: SweepPlan) -> str:
    """Returns why a case is not measured here; "" if it is."""
    if isinstance(case, MemoryBoundCase) and case.kernel in plan.excluded_kernels:
        return "fused only by a compiler (--compile)"
    if not plan.runs(case):
        return "not of this machine: a recipe of fp8 that it lacks, more than its cache holds, or no Transformer Engine"
    if not plan.takes(case):
        return "left out by --only or --max_size"
    if isinstance(case, GroupedCase):
        return why_untiled(case, plan.domain_ranks, plan.domains)
    return ""


def cases_here(cases: Sequence[Case], plan: SweepPlan) -> list[Case]:
    """Returns the cases that this machine can measure, in their order."""
    return [case for case in cases if not skip_reason(case, plan)]


def idle_notes(only: Sequence[str], cases: Sequence[Case]) -> list[str]:
    """Returns a line that names the selected benchmarks of which there is no case on this device."""
    found = {benchmark_of(case) for case in cases}
    idle = [name for name in only if name not in found]
    return [f"--only {','.join(idle)}: no case of it runs here"] if idle else []


def skip_notes(cases: Sequence[Case] | None, plan: SweepPlan) -> list[str]:
    """Returns a line for each reason to leave out cases, with their number. Nothing is stored of those, so that a
    larger machine measures them."""
    reasons = Counter(skip_reason(case, plan) for case in cases or ())
    return [f"{count} of the given cases left: {why}" for why, count in reasons.items() if why]
