"""The launcher that really launches: each case goes to the benchmark of its kind."""

from dataclasses import dataclass

from profdb.cases import (
    AttentionCase,
    Case,
    CollectiveCase,
    ExpertExchangeCase,
    GemmCase,
    GroupedGemmCase,
    HostCase,
    HostCopyCase,
    LayerCase,
    MemoryBoundCase,
    OptimizerCase,
    OverlapCase,
    SustainedCase,
    WarmKernelCase,
)
from profiler.benchmarks.attention import launch_attention
from profiler.benchmarks.collectives import launch_collective
from profiler.benchmarks.flash_kernels import restored
from profiler.benchmarks.grouped_gemm import launch_grouped_gemm
from profiler.benchmarks.host import launch_host
from profiler.benchmarks.launched import Launched
from profiler.benchmarks.linear import launch_gemm, launch_sustained
from profiler.benchmarks.memory_bound import launch_memory_bound, launch_warm
from profiler.benchmarks.optimizer import launch_optimizer
from profiler.ranks.world import World
from profiler.step_parts.expert_exchange import launch_expert_exchange
from profiler.step_parts.host_copies import launch_host_copy
from profiler.step_parts.layer import launch_layer
from profiler.step_parts.overlap import launch_overlap

StepPart = SustainedCase | WarmKernelCase | LayerCase | HostCopyCase | OverlapCase | ExpertExchangeCase
"""Cases of what only a step shows: profiler.step_parts, products on settled clocks, kernels on warm operands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchLauncher:
    """Launches on the device and the groups of ``world``; ``compiled`` lets memory-bound kernels be
    fused by torch.compile."""

    world: World
    compiled: bool = False

    def launch(self, case: Case) -> Launched:
        """The case ready to be timed (profiler.benchmarks.launched.Launcher)."""
        device = self.world.device
        restored()
        match case:
            case GemmCase():
                return launch_gemm(case, device)
            case GroupedGemmCase():
                return launch_grouped_gemm(case, device)
            case AttentionCase():
                return launch_attention(case, device)
            case MemoryBoundCase():
                return launch_memory_bound(case, device, compiled=self.compiled)
            case OptimizerCase():
                return launch_optimizer(case, device)
            case CollectiveCase():
                return launch_collective(case, self.world)
            case HostCase():
                return launch_host(case, device)
        return self._launch_step_part(case)

    def _launch_step_part(self, case: StepPart) -> Launched:
        match case:
            case SustainedCase():
                return launch_sustained(case, self.world.device)
            case WarmKernelCase():
                return launch_warm(case, self.world.device, compiled=self.compiled)
            case LayerCase():
                return launch_layer(case, self.world.device)
            case OverlapCase():
                return launch_overlap(case, self.world)
            case HostCopyCase():
                return launch_host_copy(case, self.world)
            case ExpertExchangeCase():
                return launch_expert_exchange(case, self.world)
