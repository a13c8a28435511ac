"""Small profiles whose times follow a formula, so that every expected number is known."""

from pathlib import Path

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
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from profdb.store.data_file import save_profile
from spec.collectives import Collective
from spec.origin import Origin

FLOPS_PER_S = 4e14
BYTES_PER_S = 2e12
LAUNCH_S = 5e-6
LINK_BYTES_PER_S = 2e11
STEP_S = 4e-6
"""Made-up rates of a made-up machine; what matters is that the tests know them."""

MACHINE = MachineFacts(
    gpu="Testchip",
    memory_bytes=80 * 2**30,
    gpus_per_node=8,
    date="2026-01-02",
    best_flops={"bf16": FLOPS_PER_S},
    cluster="testchip",
)


def profile_of_nothing(folder: Path) -> Path:
    """A file with a profile of no GPU: with it every cluster is answered by its hardware spec."""
    save_profile(folder / "nothing.pt", ProfileDatabase(machine=MachineFacts(gpu="none")))
    return folder / "nothing.pt"


def product_s(m: int, k: int, n: int) -> float:
    """Compute-bound product plus a launch."""
    return 2.0 * m * k * n / FLOPS_PER_S + LAUNCH_S


def collective_s(size_bytes: int, ranks: int) -> float:
    """Steps of a tree plus bytes over a link, as an all-gather moves them."""
    steps = ranks.bit_length() - 1
    return STEP_S * steps + size_bytes * (ranks - 1) / ranks / LINK_BYTES_PER_S


def sample(case: Case, seconds: float, origin: Origin = Origin.MEASURED) -> Sample:
    """A sample with three trials whose median is ``seconds``."""
    return Sample(
        case=case,
        trials_s=(0.99 * seconds, seconds, 1.02 * seconds),
        launched={"kernel": "test", "size": 1},
        origin=origin,
        date="2026-01-02",
    )


def gemm_samples(layout: str = "NT", origin: Origin = Origin.MEASURED) -> list[Sample]:
    """Products over a grid of powers of two."""
    sizes = (512, 1024, 2048, 4096)
    return [
        sample(GemmCase(m=m, k=k, n=n, layout=layout), product_s(m, k, n), origin)
        for m in (256, *sizes, 8192)
        for k in sizes
        for n in sizes
    ]


def collective_samples(kind: Collective = Collective.ALL_GATHER, ranks: tuple[int, ...] = (2, 4, 8)) -> list[Sample]:
    """1 KiB .. 256 MiB inside one domain."""
    return [
        sample(
            CollectiveCase(collective=kind, size_bytes=1 << bits, intra=n, inter=1, siblings=8 // n),
            collective_s(1 << bits, n),
        )
        for n in ranks
        for bits in range(10, 29)
    ]


GATHER = {"collective": Collective.ALL_GATHER, "size_bytes": 1 << 20, "intra": 8, "inter": 1}
STEP_PARTS: tuple[Case, ...] = (
    SustainedCase(seconds=30, m=64, k=32, n=16),
    WarmKernelCase(kernel="gelu", direction="forward", rows=64, width=256),
    ModuleCase(module="grouped_linear", rows=64, in_features=32, out_features=16, groups=4),
    LayerCase(batch=1, seq_len=64, hidden=256, ffn_hidden=512, heads=4, kv_heads=2, head_dim=64, mode="graph"),
    HostCopyCase(direction="to_host", size_bytes=1 << 20, devices=8),
    OverlapCase(**GATHER, m=64, k=32, n=16, products=8, collectives=1),
    ExpertExchangeCase(direction="dispatch", tokens=64, hidden=256, experts=8, topk=2, intra=8, inter=1),
)
"""One of each kind that only a step shows."""


def one_of_each() -> list[Sample]:
    """A few samples of every family, some with words that need care."""
    return [
        sample(GemmCase(m=16, k=32, n=64, bias=True), 1e-5),
        sample(GroupedGemmCase(groups=4, m=64, k=32, n=16), 2e-5),
        sample(AttentionCase(batch=1, q_len=64, kv_len=64, heads=4, kv_heads=2, qk_dim=32, v_dim=32), 3e-5),
        sample(MemoryBoundCase(kernel="rmsnorm", direction="forward", rows=128, width=256), 4e-6),
        sample(OptimizerCase(elements=1 << 20), 5e-5),
        sample(CollectiveCase(collective=Collective.ALL_TO_ALL, size_bytes=4096, intra=2, inter=1), 6e-6),
        sample(HostCase(kind="launch"), 7e-6),
        Sample(case=GemmCase(m=1 << 20, k=1 << 15, n=1 << 15), trials_s=(), status="oom"),
    ]


def profile(samples: list[Sample]) -> ProfileDatabase:
    """A profile of the test machine."""
    return ProfileDatabase(machine=MACHINE, samples=samples)
