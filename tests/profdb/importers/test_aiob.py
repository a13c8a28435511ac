"""AIOB sections become the operations of the model and degrees that the caller names."""

from dataclasses import replace

import pytest

from profdb.cases import AttentionCase, GemmCase, MemoryBoundCase
from profdb.importers.aiob import AiobRun, ModuleTime, module_samples
from spec.errors import ConfigError
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec, NormKind, PositionKind

ATTENTION = AttentionSpec(kind=AttentionKind.MHA, num_heads=40, num_kv_heads=40, qk_dim=128, v_dim=128)
BLOCK = BlockSpec(mixer=ATTENTION, mlp=MlpSpec(ffn_hidden=20480, gated=False), norm=NormKind.LAYER)
MODEL = ModelSpec(
    name="13B",
    hidden=5120,
    vocab=50257,
    vocab_pad_multiple=1,
    tied_embeddings=True,
    position=PositionKind.LEARNED,
    max_positions=2048,
    blocks=(BlockRun(block=BLOCK, count=40),),
    source="test",
)
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
