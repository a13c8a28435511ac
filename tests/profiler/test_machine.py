"""Facts about the machine."""

import pytest

from profdb.cases import GemmCase, GroupedGemmCase, HostCase
from profdb.sample import MachineFacts, Sample
from profiler.machine import find_hardware_spec, machine_facts, with_best_flops
from tests.profiler.fakes import single_world
from tests.solver.questions import ROOT


@pytest.mark.parametrize(
    ("device_name", "stem"),
    [
        # as torch.cuda.get_device_name reports them
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80g"),
    ],
)
def test_the_sheet_is_found_by_the_drivers_name(device_name: str, stem: str) -> None:
    sheet = find_hardware_spec(device_name, "cuda", ROOT)
    assert sheet is not None
    assert sheet.stem == stem


def test_an_unknown_gpu_has_no_sheet() -> None:
    assert find_hardware_spec("Voodoo 2", "cuda", ROOT) is None


def test_facts_of_this_machine_are_filled() -> None:
    facts = machine_facts(single_world(), None, "2026-01-01")
    assert facts.gpu
    assert facts.memory_bytes > 1 << 28
    assert type(facts.torch) is str  # a subclass would not load as plain data
    assert (facts.nodes, facts.gpus_per_node, facts.driver, facts.cluster) == (1, 1, "", "")


def test_the_best_rate_is_taken_by_dtype() -> None:
    def gemm(seconds: float, dtype: str) -> Sample:
        return Sample(case=GemmCase(m=100, k=100, n=50, dtype_in=dtype), trials_s=(seconds,))

    # 2 x 100 x 100 x 50 = 1e6 FLOP
    samples = [
        gemm(1e-3, "bf16"),
        gemm(1e-4, "bf16"),
        gemm(1e-5, "fp8"),
        Sample(case=GroupedGemmCase(groups=2, m=100, k=100, n=50), trials_s=(1e-2,)),
        Sample(case=HostCase(kind="launch"), trials_s=(1e-9,)),
        Sample(case=GemmCase(m=10**6, k=10**6, n=10**6), trials_s=(), status="oom"),
    ]
    best = with_best_flops(MachineFacts(gpu="x", best_flops={"fp16": 1.0}), samples).best_flops
    assert best == pytest.approx({"bf16": 1e10, "fp8": 1e11, "fp16": 1.0})
