"""The launcher of real runs: each case goes to the benchmark of its kind."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
    ModuleCase,
    OptimizerCase,
    OverlapCase,
    SustainedCase,
    WarmKernelCase,
)
from profiler.benchmarks.attention import launch_attention
from profiler.benchmarks.collectives import launch_collective
from profiler.benchmarks.expert_exchange import launch_expert_exchange
from profiler.benchmarks.flash_kernels import restore_torch_kernel
from profiler.benchmarks.grouped_gemm import launch_grouped_gemm
from profiler.benchmarks.host import launch_host, launch_host_copy
from profiler.benchmarks.launched import Launched
from profiler.benchmarks.layer import launch_layer
from profiler.benchmarks.linear import launch_gemm, launch_sustained
from profiler.benchmarks.memory_bound import launch_memory_bound, launch_warm
from profiler.benchmarks.optimizer import launch_optimizer
from profiler.benchmarks.overlap import launch_overlap
from profiler.benchmarks.transformer_engine import launch_module
from profiler.distributed.world import World

ON_DEVICE: dict[type, Callable[..., Launched]] = {
    GemmCase: launch_gemm,
    GroupedGemmCase: launch_grouped_gemm,
    AttentionCase: launch_attention,
    OptimizerCase: launch_optimizer,
    HostCase: launch_host,
    SustainedCase: launch_sustained,
    LayerCase: launch_layer,
    ModuleCase: launch_module,
}
COMPILED: dict[type, Callable[..., Launched]] = {MemoryBoundCase: launch_memory_bound, WarmKernelCase: launch_warm}
IN_GROUPS: dict[type, Callable[..., Launched]] = {
    CollectiveCase: launch_collective,
    OverlapCase: launch_overlap,
    HostCopyCase: launch_host_copy,
    ExpertExchangeCase: launch_expert_exchange,
}
"""Benchmarks by their arguments besides the case: the device, also ``compiled``, or the world."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchLauncher:
    """Launches on the device and the groups of ``world``; with ``compiled`` torch.compile fuses memory-bound kernels."""

    world: World
    compiled: bool = False

    def launch(self, case: Case) -> Launched:
        """Returns the case ready to be timed (profiler.benchmarks.launched.Launcher)."""
        # An attention case before this one may have replaced torch's flash kernel.
        restore_torch_kernel()
        # The case's class selects the benchmark; its arguments depend on which table has it.
        kind: type[Any] = type(case)
        if kind in IN_GROUPS:
            return IN_GROUPS[kind](case, self.world)
        if kind in COMPILED:
            return COMPILED[kind](case, self.world.device, compiled=self.compiled)
        return ON_DEVICE[kind](case, self.world.device)
