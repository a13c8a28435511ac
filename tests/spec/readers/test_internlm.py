"""InternLM-style configs: a full training config loads, no setting is ignored silently, and the plan that it is written
with."""

import re
from pathlib import Path

import pytest

from spec.errors import ConfigError
from spec.frameworks import framework_preset
from spec.mixers.attention import AttentionKind
from spec.readers.config_file import ConfigFile
from spec.readers.internlm import rounded_ffn
from spec.readers.read_config import read_config

# Laid out as InternEvo's own training configs are: constants, docstrings between statements and every section its launcher
# asks for.
TRAINING_CONFIG = Path(__file__).with_name("training_config.txt").read_text(encoding="utf-8")


def load(tmp_path: Path, text: str) -> ConfigFile:
    path = tmp_path / "train.py"
    path.write_text(text, encoding="utf-8")
    return read_config(path)


def changed(old: str, new: str) -> str:
    assert TRAINING_CONFIG.count(old) == 1, old
    return TRAINING_CONFIG.replace(old, new)


def test_a_training_config_loads_unmodified(tmp_path: Path) -> None:
    config = load(tmp_path, TRAINING_CONFIG)
    assert config.format == "internlm"
    assert config.seq_len == 2048
    plan = config.plan
    assert (plan.strategy, plan.tp, plan.pp, plan.wp) == ("isp", 2, 1, 4)
    assert (plan.zero_stage, plan.zero_size) == (1, 0)
    assert (plan.micro_batch, plan.num_micro) == (2, 4)
    assert (plan.recompute, config.framework) == ("none", "internevo")
    assert config.job == {"flash_attention": True, "precision.recipe": "bf16"}
    assert config.framework_job == {
        "data_parallel.overlap_grad_reduce": True,
        "data_parallel.overlap_param_gather": False,
        "data_parallel.overlap_weights": True,
        "data_parallel.bucket_elements": 2**29,
    }
    assert plan.preset == "internevo"
    block = config.model.blocks[0].block
    assert config.model.num_layers == 32
    assert block.mlp.ffn_hidden == 11008  # 43 x 256, as in Llama-2-7B


def test_kv_heads_named_but_not_given_to_the_model_are_the_heads(tmp_path: Path) -> None:
    attention = load(tmp_path, TRAINING_CONFIG).model.blocks[0].block.mixer
    assert (attention.kind, attention.num_kv_heads) == (AttentionKind.MHA, 32)
    given = changed("    no_bias=True,", "    no_bias=True, num_kv_attention_heads=NUM_KV_ATTENTION_HEAD,")
    attention = load(tmp_path, given).model.blocks[0].block.mixer
    assert (attention.kind, attention.num_kv_heads) == (AttentionKind.GQA, 8)


def test_bare_integers_stand_for_sizes(tmp_path: Path) -> None:
    text = TRAINING_CONFIG.split("parallel = dict(", maxsplit=1)[0] + "parallel = dict(zero1=8, tensor=4, pipeline=2)\n"
    plan = load(tmp_path, text).plan
    assert (plan.strategy, plan.tp, plan.pp, plan.wp) == ("mtp", 4, 2, 1)
    assert (plan.zero_stage, plan.zero_size) == (1, 8)


def test_without_parallel_there_is_no_plan(tmp_path: Path) -> None:
    assert load(tmp_path, TRAINING_CONFIG.split("parallel = dict(", maxsplit=1)[0]).plan is None


@pytest.mark.parametrize(("written", "stage", "size"), [("-1", 1, 0), ("0", 1, 0), ("1", 0, 1), ("8", 1, 8)])
def test_zero1_sizes(tmp_path: Path, written: str, stage: int, size: int) -> None:
    plan = load(tmp_path, changed("zero1=dict(size=-1, fsdp=False)", f"zero1=dict(size={written})")).plan
    assert (plan.zero_stage, plan.zero_size) == (stage, size)


def test_mlp_widths_round_up() -> None:
    assert rounded_ffn(4096, 8 / 3, multiple_of=256) == 11008
    assert rounded_ffn(5120, 8 / 3, multiple_of=256) == 13824  # Llama-2-13B
    assert rounded_ffn(4096, 4 / 3, multiple_of=256) == 5632
    assert rounded_ffn(8192, 29568 / 8192, multiple_of=128) == 29568  # Qwen2-72B
    assert rounded_ffn(4096, 3.5, multiple_of=256) == 14336


UNPRICED = {
    "model.checkpoint": ("checkpoint=False", "checkpoint=1.5"),
    "parallel.pipeline.mode": ("interleaved_overlap=True", 'interleaved_overlap=True, mode="zbv"'),
    "parallel.pipeline.use_zeropp": ("interleaved_overlap=True", "use_zeropp=True"),
    "parallel.sequence_2D.enable": ("enable=False, head", "enable=True, head"),
    "parallel.expert_weight.size": ("sequence_2D=", "expert_weight=dict(size=2), sequence_2D="),
    "parallel.zero1.fsdp": ("fsdp=False", "fsdp=True"),
    "parallel.tensor.mode": ('mode="isp"', 'mode="usp"'),
    "parallel.weight.launch_allgather_before": ('"wo"', '"w1"'),
    "parallel.context": ("sequence_2D=", "context=dict(size=2), sequence_2D="),
    "model.dtype": ('"torch.bfloat16"', '"torch.float32"'),
    "model.fp8": ("num_chunks=1", "num_chunks=1, fp8=True"),
    "model.apply_post_layer_norm": ("apply_post_layer_norm=False", "apply_post_layer_norm=True"),
    "model.drop_rate": ("num_chunks=1", "drop_rate=0.1"),
    "model.norm_type": ('norm_type="rmsnorm"', 'norm_type="batchnorm"'),
    "model.moe_use_residual": ("num_chunks=1", "num_experts=4, moe_use_residual=True"),
    "model.parallel_output": ("parallel_output=True", "parallel_output=False"),
    "hybrid_zero_optimizer.cpu_offload": ("clip_grad_norm=1.0", "cpu_offload=True"),
    "data.unit_schedule_size": ("min_length=50", "unit_schedule_size=4"),
    "use_fp32_norm": ("use_fp32_norm = False", "use_fp32_norm = True"),
    "selective_checkpoint": ("use_fp32_norm = False", "selective_checkpoint = True"),
    "cpu_offloading.enable": ("use_fp32_norm = False", "cpu_offloading = dict(enable=True)"),
    "fp8": ("use_fp32_norm = False", "fp8 = dict(enable=True)"),
    "model_type": ('model_type = "INTERNLM2"', 'model_type = "LLAVA"'),
}


BAD_VALUES = {
    "data.seq_len": ("seq_len=SEQ_LEN", 'seq_len="abc"'),
    "data.micro_num": ("    micro_num=4", "    micro_num=0"),
    "model.num_layers": ("num_layers=NUM_LAYER", "num_layers=-32"),
    "model.num_attention_heads": ("num_attention_heads=NUM_ATTENTION_HEAD", "num_attention_heads=33"),
    "model.num_kv_attention_heads": ("no_bias=True", "no_bias=True, num_kv_attention_heads=5"),
    "model.mlp_ratio": ("mlp_ratio=MLP_RATIO", "mlp_ratio=10.0**30"),
    "model.use_flash_attn": ("use_flash_attn=True", 'use_flash_attn="yes"'),
    "model.multiple_of": ("num_chunks=1", "multiple_of=0"),
    "keyword": ("num_chunks=1,", "num_chunks=1, **dict(a=1),"),
    "parallel.tensor": ('tensor=dict(size=2, mode="isp")', "tensor=[2]"),
    "parallel.pipeline.size": ("pipeline=dict(size=1,", "pipeline=dict(size=True,"),
    "parallel.zero1.size": ("zero1=dict(size=-1,", "zero1=dict(size=1.5,"),
    "model.top_k": ("num_chunks=1", "num_experts=4, top_k=5"),
    "model.num_layers too many": ("num_layers=NUM_LAYER", "num_layers=10**9"),
    "hybrid_zero_optimizer": ("loss = dict", "hybrid_zero_optimizer = 5\nloss = dict"),
}


@pytest.mark.parametrize(("key", "change"), [*UNPRICED.items(), *BAD_VALUES.items()])
def test_what_could_change_the_answer_is_one_error(tmp_path: Path, key: str, change: tuple[str, str]) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, changed(*change))
    key = key.removesuffix(" too many")
    assert refused.value.key == key
    assert re.match(rf"{tmp_path}/train\.py:\d+: {re.escape(key)} = ", str(refused.value))
    assert "\n" not in str(refused.value)


def test_errors_name_the_line_of_the_section(tmp_path: Path) -> None:
    text = changed("num_chunks=1", "num_chunks=2")  # in one stage
    line = text.splitlines().index("model = dict(") + 1
    with pytest.raises(ConfigError, match=rf"train\.py:{line}: model\.num_chunks = 2: "):
        load(tmp_path, text)


def test_missing_sections_and_keys_say_what_is_required(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="model = dict"):
        load(tmp_path, "x = 1")
    with pytest.raises(ConfigError, match=r"model\.hidden_size = None: required"):
        load(tmp_path, changed("hidden_size=HIDDEN_SIZE,", ""))


def test_helper_variables_are_no_settings(tmp_path: Path) -> None:
    text = changed("num_layers=NUM_LAYER", "num_layers=layers").replace("NUM_LAYER = 32", "layers = 32")
    assert load(tmp_path, text).model.num_layers == 32


def test_experts(tmp_path: Path) -> None:
    text = changed("num_chunks=1", 'num_experts=4, top_k=2, moe_type="GShard"')
    text = text.replace("no_bias=True,", "").replace("INTERNLM2", "INTERNLM_MoE")
    text = text.replace("sequence_2D=", "expert=dict(size=-1, no_tp=False), sequence_2D=")
    config = load(tmp_path, text + "moe = dict(top_k=2, capacity_factor=1.25)\n")
    block = config.model.blocks[0].block
    assert block.mlp is None
    assert (block.moe.num_experts, block.moe.topk, block.moe.capacity_factor) == (4, 2, 1.25)
    assert (config.plan.ep, config.plan.etp) == (0, 2)
    with pytest.raises(ConfigError, match="same number"):
        load(tmp_path, text + "moe = dict(top_k=1)\n")
    dropless = load(tmp_path, text.replace("GShard", "Dropless")).model.blocks[0].block.moe
    assert dropless.capacity_factor is None


SHARED = """
model = dict(
    num_layers=32, hidden_size=256, num_attention_heads=4, vocab_size=512, mlp_ratio=2.0, checkpoint={share}
)
parallel = dict(pipeline=dict(size={stages}))
"""


def load_shared(tmp_path: Path, share: str, stages: int) -> ConfigFile:
    return load(tmp_path, SHARED.format(share=share, stages=stages))


@pytest.mark.parametrize(
    ("share", "stages", "read"),
    [
        ("0.2", 1, ("full", 6)),  # int(0.2 x 32), InternEvo's own configs of InternLM2
        ("0.2", 4, ("full", 1)),  # int(0.2 x 8) of every stage
        ("0.1", 4, ("none", None)),
        ("0.5", 3, ("full", 5)),  # 10 or 11 layers a stage
        ("1.0", 1, ("full", None)),
        ("True", 1, ("full", None)),
        ("0", 1, ("none", None)),
    ],
)
def test_a_share_of_layers_is_recomputed_stage_by_stage(
    tmp_path: Path, share: str, stages: int, read: tuple[str, int | None]
) -> None:
    plan = load_shared(tmp_path, share, stages).plan
    assert (plan.recompute, plan.recompute_layers) == read


def test_a_share_that_differs_between_stages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not 1 or 2 of them"):  # int(0.4 x 4), int(0.4 x 5)
        load_shared(tmp_path, "0.4", 7)


@pytest.mark.parametrize(("written", "hidden"), [("interleaved_overlap=True", True), ("", False)])
def test_chunks_of_a_stage_are_interleaved(tmp_path: Path, written: str, *, hidden: bool) -> None:
    """model.num_chunks, and parallel.pipeline.interleaved_overlap, which InternEvo takes for False."""
    text = changed("num_chunks=1", "num_chunks=4, checkpoint=0.5").replace("checkpoint=False,", "")
    config = load(tmp_path, text.replace("size=1, interleaved_overlap=True", f"size=2, {written}"))
    assert (config.plan.pp, config.plan.vpp) == (2, 4)
    assert config.plan.recompute_layers == 2  # of 32 / (2 x 4) = 4 in each chunk
    assert config.framework_job["pipeline.overlap_p2p"] is hidden


@pytest.mark.parametrize(("mode", "schedule"), [("ZBH1", "zb-h1"), ("zbh1", "zb-h1"), ("1f1b", "1f1b")])
def test_pipeline_modes_are_schedules(tmp_path: Path, mode: str, schedule: str) -> None:
    config = load(tmp_path, changed("size=1, interleaved_overlap=True", f'size=2, mode="{mode}"'))
    assert (config.plan.pp, config.plan.schedule) == (2, schedule)


def test_layers_divide_over_chunks(tmp_path: Path) -> None:
    text = changed("num_chunks=1", "num_chunks=3").replace("pipeline=dict(size=1", "pipeline=dict(size=2")
    with pytest.raises(ConfigError, match="a divisor of num_layers = 32"):
        load(tmp_path, text)


@pytest.mark.parametrize(
    ("key", "choice"), [("mlp_layer_fusion", "layers.joined_gate"), ("enable_qkv_fusion", "layers.joined_qkv")]
)
def test_which_matrices_are_one_is_read(tmp_path: Path, key: str, choice: str) -> None:
    """InternEvo's own default is gate and up apart (internlm/model/modules/mlp.py)."""
    for joined in (True, False):
        read = load(tmp_path, changed("num_chunks=1", f"num_chunks=1, {key}={joined}"))
        assert read.framework_job[choice] is joined
    assert choice not in load(tmp_path, TRAINING_CONFIG).framework_job
    assert not framework_preset("internevo").layers.joined_gate
