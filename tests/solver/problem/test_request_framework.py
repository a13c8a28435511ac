"""Which framework a config means: words of one framework act under it alone, and none named is Megatron-LM."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from solver.plans.plan_table import PlanTable
from solver.problem.price import price_plan
from solver.problem.request import Request, job_request, read_request
from solver.problem.requested_plan import parse_plan, plan_of
from spec.cluster.reader import read_cluster
from spec.errors import ConfigError
from spec.frameworks import framework_names, framework_preset
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import BlockRun, ModelSpec
from spec.readers.config_file import ConfigFile
from spec.readers.read_config import read_config
from spec.settings.job import job_of
from tests.solver.questions import ROOT, question

SHIPPED = sorted(path.name for path in (ROOT / "configs").glob("*.py"))
# A config of each kind of model: Llama's with and without groups of heads, Qwen2's biases, experts, experts
# with biases. Of the others only sizes differ.
OF_EACH_KIND = ("7B_llama2.py", "8B_llama3.py", "72B_qwen2.py", "8x7B_mixtral.py", "7B_MoE4_sft.py")
CLUSTER = read_cluster("h100-sxm", root=ROOT)


def huggingface_form(model: ModelSpec) -> dict[str, object]:
    """The config.json of a model of one kind of layer: Llama's, Qwen2's or Mixtral's."""
    (run,) = model.blocks
    attention, moe = run.block.mixer, run.block.moe
    assert isinstance(attention, AttentionSpec)
    assert model.rope is not None
    ffn = moe.expert_ffn_hidden if moe else run.block.mlp.ffn_hidden if run.block.mlp else 0
    form: dict[str, object] = {
        "model_type": "mixtral" if moe else "qwen2" if attention.qkv_bias else "llama",
        "hidden_size": model.hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": run.count,
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads,
        "vocab_size": model.vocab,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_epsilon,
        "rope_theta": model.rope.base,
        "tie_word_embeddings": model.tied_embeddings,
    }
    return form | ({"num_local_experts": moe.num_experts, "num_experts_per_tok": moe.topk} if moe else {})


def capacity_of(model: ModelSpec) -> dict[str, object]:
    """What a config.json cannot say of experts and a job can."""
    moe = model.blocks[0].block.moe
    return {"moe_capacity_factor": moe.capacity_factor} if moe and moe.capacity_factor else {}


def with_biases(run: BlockRun) -> BlockRun:
    mixer = replace(run.block.mixer, kind=AttentionKind.MHA, qkv_bias=True, out_bias=True)  # type: ignore[call-arg]
    return replace(run, block=replace(run.block, mixer=mixer))


def step_s(config: ConfigFile, framework: str, words: str) -> float:
    asked = Request(
        root=ROOT, profile=ROOT, world_size=16, global_batch_tokens=64 * 4096, seq_len=4096, framework=framework
    )
    job = job_of(job_request(asked, config, CLUSTER), CLUSTER.gpu.architecture)
    here = replace(question(memory_gib=1e6), model=config.model, job=job)
    return price_plan(here, PlanTable.of(plan_of(parse_plan(words), here, "--plan")))[0].step_s


EVERY, TWO = framework_names(legacy=True), ("internevo", "megatron")


@pytest.mark.parametrize(
    ("name", "frameworks"),
    [
        ("8B_llama3.py", EVERY),
        ("8x7B_mixtral.py", TWO),
        *(pytest.param(name, EVERY if name in OF_EACH_KIND else TWO, marks=pytest.mark.nightly) for name in SHIPPED),
    ],
)
def test_a_shipped_config_costs_what_its_huggingface_form_costs(
    name: str, frameworks: tuple[str, ...], tmp_path: Path
) -> None:
    """Under every framework, or of a known kind under InternEvo's own and the one assumed when none is named; words of
    InternEvo (buckets, overlaps) are no facts of a model."""
    ours = read_config(ROOT / "configs" / name)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(huggingface_form(ours.model)))
    theirs = replace(read_config(path), job=capacity_of(ours.model))
    if name == "7B_MoE4_sft.py":  # no config.json has biases of attention beside experts
        theirs = replace(theirs, model=replace(theirs.model, blocks=(with_biases(theirs.model.blocks[0]),)))
    for framework in frameworks:
        stage = max(framework_preset(framework).data_parallel.zero_stages)
        words = f"tp=2,zero_stage={stage},micro_batch=1"
        assert step_s(ours, framework, words) == step_s(theirs, framework, words), framework
    words = "strategy=isp,tp=4,wp=4,micro_batch=1"
    assert step_s(ours, "internevo", words) == step_s(theirs, "internevo", words)


def test_a_word_of_internevo_acts_under_internevo_alone() -> None:
    ours = read_config(ROOT / "configs" / "7B_internlm2.py")
    told = replace(ours, framework_job={**ours.framework_job, "data_parallel.overlap_grad_reduce": False})
    words = "zero_stage=1,micro_batch=1"
    assert step_s(told, "internevo", words) > step_s(ours, "internevo", words)
    assert step_s(told, "megatron", words) == step_s(ours, "megatron", words)


def request(config: Path, **asked: object) -> Request:
    sizes = {"world_size": 8, "seq_len": 4096, "global_batch_tokens": 64 * 4096}
    return Request(root=ROOT, config=config, cluster="h100-sxm", **(sizes | asked))


@pytest.mark.parametrize(
    ("config", "asked", "name", "assumed"),
    [
        ("config.json", {}, "megatron", True),
        ("7B_gpt.toml", {}, "megatron", False),
        ("config.toml", {}, "megatron", True),
        ("7B_llama2.py", {}, "internevo", False),
        ("config.json", {"framework": "nemo"}, "nemo", False),
        ("7B_llama2.py", {"framework": "fsdp"}, "fsdp", False),
    ],
)
def test_no_framework_named_is_megatron_and_the_answer_says_that_it_was_assumed(
    config: str, asked: dict[str, object], name: str, assumed: bool, tmp_path: Path
) -> None:
    path = ROOT / "configs" / config
    if config == "config.json":
        path = tmp_path / config
        path.write_text(json.dumps(huggingface_form(read_config(ROOT / "configs" / "7B_llama2.py").model)))
    if config == "config.toml":
        path = tmp_path / config
        path.write_text((ROOT / "configs" / "7B_gpt.toml").read_text().replace('preset = "megatron"', ""))
    read = read_request(request(path, **asked))
    assert (read.job.preset.name, read.assumed_framework) == (name, assumed)


def test_what_is_typed_beats_the_precision_that_beats_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    text = (ROOT / "configs" / "7B_gpt.toml").read_text()
    path.write_text(text + '\n[job]\ndropout = true\n[job.precision]\nrecipe = "fp8-current"\nmoments = "bf16"\n')
    said = request(path)
    job = read_request(said).job
    assert (job.dropout, job.precision.scale_recipe, job.precision.moments) == (True, "tensor", "bf16")
    job = read_request(replace(said, precision="fp8-blockwise")).job
    assert (job.dropout, job.precision.scale_recipe, job.precision.moments) == (True, "block", "fp32")
    typed = {"precision.scale_recipe": "tensor", "dropout": False}
    job = read_request(replace(said, precision="fp8-blockwise", job=typed)).job
    assert (job.dropout, job.precision.scale_recipe, job.precision.scaling) == (False, "tensor", "block")
    with pytest.raises(ConfigError, match=r"tensor_parallel\.strategies|strategy"):
        read_request(replace(said, job={"tensor_parallel.strategies": ("ours",)}))


@pytest.mark.parametrize(
    ("cluster", "precision", "word"),
    [
        ("a100-sxm-80g", "mxfp8", "precision.linear = 'fp8'"),
        ("h100-sxm", "nvfp4", "precision.linear = 'fp4'"),
        ("dgx2-v100", None, "precision.compute = 'bf16'"),
        ("h100-sxm", "mxfp8", "precision.scale_recipe = 'mx'"),
    ],
)
def test_a_format_that_the_gpu_does_not_compute_in_is_refused(cluster: str, precision: str | None, word: str) -> None:
    asked = replace(request(ROOT / "configs" / "7B_gpt.toml"), cluster=cluster)
    with pytest.raises(ConfigError, match=word):
        read_request(replace(asked, precision=precision))


@pytest.mark.parametrize("key", ["tensor_parallel.strategies", "pipeline.schedules", "data_parallel.zero_stages"])
def test_a_framework_runs_something(key: str) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        read_request(request(ROOT / "configs" / "7B_gpt.toml", job={key: ()}))
