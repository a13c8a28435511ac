"""What a request says is read and checked."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from profdb.sample import ProfileDatabase
from profdb.store.data_file import load_profile
from solver.problem.loading import load_problem
from solver.problem.request import Request, check_job, read_request
from spec.errors import ConfigError, ProfileError
from spec.program.kinds import Sequences
from spec.readers.read_config import read_config
from tests.ops.layouts import job
from tests.solver.questions import ROOT, small_model

SHIPPED = ROOT / "prof_data" / "data.pt"


def asked(**changes: object) -> Request:
    given: dict[str, object] = {
        "root": ROOT,
        "profile": SHIPPED,
        "config": ROOT / "configs" / "7B_llama2.py",
        "world_size": 16,
        "global_batch_tokens": 524288,
    }
    return Request(**{**given, **changes})  # type: ignore[arg-type]


def test_a_task_brings_packed_samples_and_adapters_unless_they_are_given() -> None:
    """LoRA as in Megatron-Bridge's common recipe: rank 32 on every linear layer; of experts on attention's alone."""
    read = {task: read_request(asked(job={"task": task})).job for task in ("pretrain", "sft", "lora")}
    assert {task: (job.document_tokens, job.adapter_rank) for task, job in read.items()} == {
        "pretrain": (0, 0),
        "sft": (512, 0),
        "lora": (512, 32),
    }
    assert read["lora"].adapted == {"qkv", "out", "up", "down"}
    experts = asked(config=ROOT / "configs" / "8x7B_mixtral.py", job={"task": "lora", "adapter_rank": 8})
    assert (read_request(experts).job.adapted, read_request(experts).job.adapter_rank) == ({"qkv", "out"}, 8)
    given = asked(job={"task": "sft", "document_tokens": 100})
    assert read_request(given).job.document_tokens == 100
    short = asked(job={"task": "sft"}, seq_len=512)
    assert read_request(short).job.document_tokens == 0


def test_the_profile_is_read_once_and_after_the_checks_where_the_cluster_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paths = []

    def load(path: Path) -> ProfileDatabase:
        paths.append(path)
        return load_profile(path)

    monkeypatch.setattr("solver.problem.request.load_profile", load)
    named = asked(cluster="h100-sxm", framework="megatron")
    assert read_request(named).job.preset.name == "megatron"
    assert paths == []
    load_problem(named)
    assert paths == [SHIPPED]
    problem = load_problem(asked()).problem
    assert (problem.cluster.name, problem.job.preset.name, problem.job.world_size) == ("h200", "internevo", 16)
    assert paths == [SHIPPED, SHIPPED]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"world_size": 12}, "less than one node or a multiple of 8"),
        ({"world_size": 8 * 10**6}, "nodes of 8 GPUs"),
        ({"global_batch_tokens": 1000}, "a positive multiple of the sequence length"),
        ({"global_batch_tokens": Sequences(2**40)}, "a positive multiple of the sequence length"),
        ({"framework": "horovod"}, "one of accelerate, composer"),
        ({"cluster": "no-such-sheet"}, "no-such-sheet"),
        ({"config": None}, "a model config"),
        (
            {"precision": "fp8-tensor", "framework": "megatron"},
            "of megatron one of fp8-delayed, fp8-current, fp8-blockwise",
        ),
        ({"precision": "fp8-rowwise", "framework": "deepspeed"}, "of deepspeed one of fp8-delayed"),
        ({"job": {"precision.low_precision_head": True}}, "only with low-precision products"),
        ({"job": {"precision.high_precision_last_layers": 1}}, "0 unless linear layers multiply in 8 bits or fewer"),
        (
            {
                "precision": "fp8-current",
                "job": {"precision.high_precision_first_layers": 30, "precision.high_precision_last_layers": 3},
            },
            "precision.high_precision_last_layers = 3: .* at most the model's 32 layers",
        ),
        (
            {
                "precision": "fp8-current",
                "job": {"precision.scaling": "delayed", "precision.high_precision_first_layers": 1},
            },
            "scales that are not delayed",
        ),
        ({"job": {"precision.router": "fp32"}, "cluster": "ascend-910b"}, "none: .* has no TF32"),
    ],
)
def test_what_does_not_fit_together_is_one_line(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_request(asked(**changes))


def test_a_batch_of_sequences_has_as_many_tokens_as_they_are_long() -> None:
    assert read_request(asked(global_batch_tokens=Sequences(128), seq_len=2048)).job.global_batch_tokens == 128 * 2048


@pytest.mark.parametrize(
    ("changes", "seq_len"),
    [
        ({}, 4096),
        ({"max_position_embeddings": 40960}, 8192),
        ({"model_type": "opt", "max_position_embeddings": 2048}, 2048),
        ({"model_type": "gpt2", "n_positions": 512, "max_position_embeddings": None}, 512),
        ({"max_position_embeddings": None}, None),
    ],
)
def test_a_hub_config_is_asked_about_at_the_length_that_it_states(
    changes: dict[str, object], seq_len: int | None, tmp_path: Path
) -> None:
    path = tmp_path / "model.json"
    llama = json.loads((ROOT / "tests/spec/readers/huggingface/shapes/llama_2_7b.json").read_text())
    content = {key: value for key, value in {**llama, **changes}.items() if value is not None}
    path.write_text(json.dumps(content))
    question = asked(config=path, global_batch_tokens=Sequences(64))
    if seq_len is None:  # The class has a default, which says nothing of this model.
        with pytest.raises(ConfigError, match="give --seq_len"):
            read_request(question)
        return
    parsed = read_request(question)
    assert (parsed.job.seq_len, parsed.job.global_batch_tokens) == (seq_len, 64 * seq_len)
    stated = content.get("n_positions", content.get("max_position_embeddings"))
    assert parsed.config.model.assumptions[-1] == (
        f"sequences of {seq_len:,} tokens, of max_position_embeddings = {stated:,} (--seq_len)"
    )
    told = read_request(replace(question, seq_len=256)).config.model.assumptions
    assert told == parsed.config.model.assumptions[:-1]


def test_the_largest_clusters_being_built_are_answered() -> None:
    assert (
        read_request(asked(cluster="h100-sxm", world_size=131072, global_batch_tokens=2**29)).job.world_size == 131072
    )


def test_a_file_without_a_cluster_is_loaded_to_say_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "p.pt").write_text("no profile")
    with pytest.raises(ProfileError, match="not a profile"):
        read_request(asked(profile=tmp_path / "p.pt"))


def test_reading_a_request_imports_neither_torch_nor_scipy() -> None:
    """Both take most of the second in which a wrong request is to be refused."""
    code = (
        "import sys; from simulation_train_formulaic import main; "
        f"status = main(['--config', '{ROOT}/configs/7B_llama2.py', '--world_size', '12', "
        f"'--pre_profiling_data_path', '{SHIPPED}', '--run_all_solu']); "
        "print(status, sorted({'torch', 'scipy', 'solver.search', 'pandas', 'matplotlib'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "2 []"
    assert "multiple of 8" in ran.stderr


def test_weight_gradients_are_put_off_beside_another_micro_batch_alone() -> None:
    """transformer_config.py: delay_wgrad_compute wants overlap_moe_expert_parallel_comm."""
    check_job(small_model(), job(overlap_expert_a2a=True, delay_wgrad=True))
    with pytest.raises(ConfigError, match=r"delay_wgrad.*overlap_expert_a2a true"):
        check_job(small_model(), replace(job(), delay_wgrad=True))


def test_frozen_weights_need_an_adapter() -> None:
    plain = job()
    frozen = replace(plain, precision=replace(plain.precision, frozen="nf4"))
    check_job(small_model(), plain)
    check_job(small_model(), replace(frozen, adapter_rank=8))
    with pytest.raises(ConfigError, match=r"precision\.frozen = 'nf4'.*adapter_rank above 0"):
        check_job(small_model(), frozen)


@pytest.mark.parametrize(
    "change",
    [{"adapted": frozenset({"up"})}, {"adapter_dropout": True}, {"adapter_dtype": "fp32"}, {"adapter_code": "fused"}],
)
def test_what_adapters_do_is_not_said_without_them(change: dict[str, object]) -> None:
    """Else a job that forgot the rank would be priced as training every weight."""
    check_job(small_model(), job(adapter_rank=8, **change))
    with pytest.raises(ConfigError, match=f"{next(iter(change))} = .*adapter_rank above 0"):
        check_job(small_model(), job(**change))


@pytest.mark.parametrize("names", [(), ("qkv", "q_k_v")])
def test_an_adapter_is_for_something_and_counted_once(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="of qkv and q_k_v one"):
        check_job(small_model(), job(adapter_rank=8, adapted=frozenset(names)))


@pytest.mark.parametrize(
    ("config", "names", "wrong"),
    [
        ("7B_llama2.py", ("q_k_v", "out", "up", "down"), ""),
        ("671B_deepseek_v3.toml", ("out", "up", "down"), ""),  # the first layers are dense
        ("671B_deepseek_v3.toml", ("qkv", "out"), "qkv"),
        ("2.7B_mamba2.toml", ("out",), "out"),
    ],
)
def test_every_name_is_a_product_of_the_model(config: str, names: tuple[str, ...], wrong: str) -> None:
    model = read_config(ROOT / "configs" / config).model
    plain = job(adapter_rank=8, adapted=frozenset(names))
    if not wrong:
        check_job(model, plain)
        return
    with pytest.raises(ConfigError, match=f"adapted = '{wrong}': products that "):
        check_job(model, plain)
