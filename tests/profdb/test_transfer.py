"""Times restated for another GPU: by the bound of each, with latency kept and the origin told."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profdb.cases import AttentionCase, GemmCase, HostCase, MemoryBoundCase
from profdb.modelled.gemm import LAUNCH_S
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from profdb.transfer import BoundWork, by_bound, by_model, transferred_profile
from spec.arrays import floats
from spec.cluster.reader import read_cluster
from spec.errors import ConfigError
from spec.origin import Origin

ROOT = Path(__file__).resolve().parents[2]
A100, H100, H200 = (read_cluster(name, root=ROOT) for name in ("a100-sxm-80g", "h100-sxm", "h200"))


def work(seconds: float, flops: float, moved_bytes: float) -> BoundWork:
    return BoundWork(seconds=floats(seconds), flops=floats(flops), moved_bytes=floats(moved_bytes))


def test_compute_scales_by_flops_and_memory_by_the_hbm_rate() -> None:
    flops_ratio = A100.gpu.sustained_flops["bf16"] / H100.gpu.sustained_flops["bf16"]
    compute = by_bound(work(1.0, 1e15, 1.0), A100.gpu, H100.gpu).seconds[0]
    assert compute == pytest.approx(flops_ratio, rel=1e-4)
    memory = by_bound(work(1.0, 1.0, 1e12), A100.gpu, H100.gpu).seconds[0]
    assert memory == pytest.approx(2.039 / 3.35, rel=1e-4)


def test_latency_is_kept() -> None:
    assert by_bound(work(LAUNCH_S, 1.0, 1.0), A100.gpu, H100.gpu).seconds[0] == pytest.approx(LAUNCH_S)
    assert by_bound(work(1e-3, 0.0, 0.0), A100.gpu, H100.gpu).seconds[0] == pytest.approx(1e-3)


def test_the_bound_may_change_on_the_way() -> None:
    """200 FLOP per byte: memory-bound on neither or both; the slower of the two rules on each."""
    predicted = by_bound(work(1.0, 2e14, 1e12), A100.gpu, H200.gpu).seconds[0]
    here = max(2e14 / 271.2e12, 1e12 / (2.039e12 * 0.84))
    there = max(2e14 / 794.5e12, 1e12 / (4.8e12 * 0.84))
    assert predicted == pytest.approx(there / here, rel=1e-4)


SECONDS = st.floats(1e-6, 10.0)
AMOUNTS = st.floats(0.0, 1e16)


@settings(max_examples=60, deadline=None)
@given(seconds=SECONDS, flops=AMOUNTS, moved=AMOUNTS)
def test_there_and_back_is_the_same(seconds: float, flops: float, moved: float) -> None:
    there = by_bound(work(seconds, flops, moved), A100.gpu, H200.gpu)
    back = by_bound(work(float(there.seconds[0]), flops, moved), H200.gpu, A100.gpu)
    if there.seconds[0] > 2.0 * LAUNCH_S:
        assert back.seconds[0] == pytest.approx(seconds, rel=1e-6)


def test_by_model_keeps_what_the_model_misses() -> None:
    """A product measured 20 % slower than modelled stays 20 % slower; the host is not the GPU's."""
    cases = [GemmCase(m=4096, k=4096, n=4096), HostCase(kind="launch")]
    once = by_model(cases, floats([1.0, 1.0]), A100, H100)
    again = by_model(cases, floats([1.2, 1.2]), A100, H100)
    assert again.seconds[0] == pytest.approx(1.2 * once.seconds[0])
    assert again.seconds[1] == 1.2
    # sustained bf16 of the two sheets, TFLOP/s
    assert once.seconds[0] == pytest.approx(271.2 / 794.5, rel=0.1)


def test_a_format_one_gpu_lacks_is_refused() -> None:
    v100 = read_cluster("dgx1-v100", root=ROOT)
    with pytest.raises(ConfigError, match="bf16"):
        by_model([GemmCase(m=64, k=64, n=64)], floats(1.0), A100, v100)


def test_a_profile_changes_gpu_and_origin_and_loses_what_the_target_cannot_run() -> None:
    kept = Sample(case=GemmCase(m=4096, k=4096, n=4096), trials_s=(3.0, 1.0))
    modelled = Sample(
        case=MemoryBoundCase(kernel="add", direction="forward", rows=4096, width=4096),
        trials_s=(1.0,),
        origin=Origin.MODELLED,
    )
    failed = Sample(
        case=AttentionCase(
            batch=1, q_len=1 << 20, kv_len=1 << 20, heads=8, kv_heads=8, qk_dim=128, v_dim=128
        ),
        trials_s=(),
        status="oom",
    )
    fp8 = Sample(case=GemmCase(m=64, k=64, n=64, dtype_in="fp8"), trials_s=(1.0,))
    host = Sample(case=HostCase(kind="launch"), trials_s=(1e-6,))
    profile = ProfileDatabase(
        machine=MachineFacts(gpu=H100.gpu.name), samples=[kept, modelled, failed, fp8, host]
    )
    predicted = transferred_profile(profile, H100, A100)
    assert predicted.machine.gpu == A100.gpu.name
    assert predicted.machine.cluster == "a100-sxm-80g"
    assert [type(sample.case) for sample in predicted.samples] == [GemmCase, MemoryBoundCase]
    assert [sample.origin for sample in predicted.samples] == [Origin.TRANSFERRED, Origin.MODELLED]
    slow, fast = predicted.samples[0].trials_s
    assert slow == pytest.approx(3.0 * fast)
    assert fast > 2.0
    assert predicted.samples[0].launched["transferred_from"] == H100.gpu.name
