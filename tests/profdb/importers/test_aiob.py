"""AIOB sections become the operations of the model and degrees that the caller names."""

from dataclasses import replace

import pytest

from profdb.cases import AttentionCase, GemmCase, MemoryBoundCase
from profdb.importers.aiob import AiobRun, ModuleTime, module_samples
from spec.errors import ConfigError
from spec.readers.read_config import read_config
from tests.solver.questions import ROOT

MODEL = read_config(ROOT / "configs" / "13B_gpt.toml").model
RUN = AiobRun(model=MODEL, tp=8, micro_batch=1, seq_len=2048)
TIME = ModuleTime(avg_us=1500.0, min_us=1400.0, max_us=1700.0)


def test_sections_become_operations() -> None:
    names = ("atten_qkv", "atten_flash", "mlp_linear_1", "mlp_gelu", "layernorm", "param_time")
    samples, left = module_samples(dict.fromkeys(names, TIME), RUN)
    assert left == ("param_time",)
    assert [s.case for s in samples] == [
        GemmCase(m=2048, k=5120, n=3 * 640),
        AttentionCase(batch=1, q_len=2048, kv_len=2048, heads=5, kv_heads=5, qk_dim=128, v_dim=128),
        GemmCase(m=2048, k=5120, n=2560),
        MemoryBoundCase(kernel="gelu", direction="forward", rows=2048, width=2560),
        MemoryBoundCase(kernel="layernorm", direction="forward", rows=2048, width=5120),
    ]
    assert samples[0].trials_s == pytest.approx((1.5e-3,))
    assert samples[0].launched["module"] == "atten_qkv"


@pytest.mark.parametrize("change", [{"tp": 3}, {"tp": 0}, {"micro_batch": 0}, {"seq_len": -1}])
def test_degrees_that_do_not_fit_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        module_samples({"Emb": TIME}, replace(RUN, **change))
