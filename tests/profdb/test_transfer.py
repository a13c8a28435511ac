"""Times restated for another GPU: by the bound of each, with latency kept and the origin told."""

import pytest

from profdb.cases import AttentionCase, GemmCase, HostCase, MemoryBoundCase
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from profdb.transfer import by_model, transferred_profile
from spec.arrays import floats
from spec.cluster.reader import read_cluster
from spec.errors import ConfigError
from spec.origin import Origin
from tests.solver.questions import ROOT

A100, H100, H200 = (read_cluster(name, root=ROOT) for name in ("a100-sxm-80g", "h100-sxm", "h200"))


def test_by_model_keeps_what_the_model_misses() -> None:
    """A product measured 20 % slower than modelled stays 20 % slower; the host is not the GPU's."""
    cases = [GemmCase(m=4096, k=4096, n=4096), HostCase(kind="launch")]
    once = by_model(cases, floats([1.0, 1.0]), A100, H100)
    again = by_model(cases, floats([1.2, 1.2]), A100, H100)
    assert again[0] == pytest.approx(1.2 * once[0])
    assert again[1] == 1.2
    # sustained bf16 of the two sheets, TFLOP/s
    assert once[0] == pytest.approx(271.2 / 794.5, rel=0.1)


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
        case=AttentionCase(batch=1, q_len=1 << 20, kv_len=1 << 20, heads=8, kv_heads=8, qk_dim=128, v_dim=128),
        trials_s=(),
        status="oom",
    )
    fp8 = Sample(case=GemmCase(m=64, k=64, n=64, dtype_in="fp8"), trials_s=(1.0,))
    host = Sample(case=HostCase(kind="launch"), trials_s=(1e-6,))
    profile = ProfileDatabase(machine=MachineFacts(gpu=H100.gpu.name), samples=[kept, modelled, failed, fp8, host])
    predicted = transferred_profile(profile, H100, A100)
    assert predicted.machine.gpu == A100.gpu.name
    assert predicted.machine.cluster == "a100-sxm-80g"
    assert [type(sample.case) for sample in predicted.samples] == [GemmCase, MemoryBoundCase]
    assert [sample.origin for sample in predicted.samples] == [Origin.TRANSFERRED, Origin.MODELLED]
    slow, fast = predicted.samples[0].trials_s
    assert slow == pytest.approx(3.0 * fast)
    assert fast > 2.0
    assert predicted.samples[0].launched["transferred_from"] == H100.gpu.name
