"""A processor's speed while steps run: kernels of the step itself, launched between steps as a profile launches them.

Clocks, and caches that others use, change by the minute and lengthen CPU seconds too. A profile taken before
knows nothing of that; what its own kernels take now says by how much.
"""

from benchmarks.gpu_steps.case import StepCase
from profdb.cases import AttentionCase, Case, GemmCase, MemoryBoundCase
from profiler.device import Device
from profiler.distributed.rank_layout import RankLayout
from profiler.distributed.world import World
from profiler.timing import stopwatch_for
from profiler.torch_launcher import TorchLauncher

LAUNCHES = 5
"""Of each kernel before each step: some ten milliseconds."""


def reference_cases(case: StepCase) -> tuple[Case, ...]:
    """One product, one attention call and one kernel that moves bytes, all of the forward; a profile that was
    measured by the step's look-ups holds them."""
    shape, rows = case.shape, case.micro_batch * case.shape.seq_len
    width = shape.hidden // shape.heads
    return (
        GemmCase(m=rows, k=shape.hidden, n=2 * shape.ffn),
        AttentionCase(
            batch=case.micro_batch,
            q_len=shape.seq_len,
            kv_len=shape.seq_len,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            qk_dim=width,
            v_dim=width,
            mask="causal",
            direction="forward",
            kernel="flash",
            dtype="bf16",
        ),
        MemoryBoundCase(kernel="swiglu_halves_unfused", rows=rows, width=shape.ffn, direction="forward"),
    )


class Reference:
    """The kernels of a case, ready on a device."""

    def __init__(self, case: StepCase, device: Device) -> None:
        launcher = TorchLauncher(world=World(layout=RankLayout(), device=device))
        self.launched = [launcher.launch(one) for one in reference_cases(case)]
        self.clock = stopwatch_for(device)

    def seconds(self) -> list[list[float]]:
        """Of LAUNCHES launches of each now, one by one."""
        return [[self.clock.burst(one.calls, 1, None) for _ in range(LAUNCHES)] for one in self.launched]
