"""Every flag of AICB is taken, in both spellings."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import run_workload
from tests.workload.generator import made, options
from workload.aicb.flags import OTHERS, WITH_VALUE, default_options, notes_on

# AICB 2.1, utils/utils.py: every argument of get_params, with a value that it takes.
AICB = (
    "--frame Megatron --gpu_type H100 --world_size 16 --tensor_model_parallel_size 2 --pipeline_model_parallel 2 "
    "--context-parallel-size 1 --pp_rank -1 --global_batch 16 --micro_batch 2 --epoch_num 1 --computation_enable "
    "--dtype bfloat16 --ffn_hidden_size 1024 --enable_visual --workload_only --model_name name --hidden_size 1024 "
    "--num_layers 4 --seq_length 128 --num_attention_heads 16 --vocab_size 1000 --max_position_embeddings 128 "
    "--add_bias_linear --use_flash_attn --swiglu --stage 1 --amp_enabled --reduce_bucket_size 1000000 "
    "--contiguous_gradients --enable_sequence_parallel --use-distributed-optimizer --make_vocab_size_divisible_by "
    "64 --overlap_grad_reduce --begin_size 1024 --end_size 1024 --iter_num 500 --multi_all_reduce_enable 0 "
    "--overlap_version --moe_enable --expert_model_parallel_size 2 --num_experts 4 --moe_router_topk 2 "
    "--moe_grouped_gemm --activation_func silu --gated_linear_unit True --bias_gelu_fusion --openai_gelu "
    "--onnx_safe --squared_relu --recompute_activations"
)
# The rest of them, which need a DeepSpeed or DeepSeek frame, an AIOB file, or a test.
ELSEWHERE = (
    "--frame DeepSpeed --model_size 7 --stage 3 --format general --allgather_bucket_size 1000 "
    "--param_persistence_threshold 10 --model_persistence_threshold 10 --max_live_parameters 1000000000 "
    "--prefetch_bucket_size 1000000",
    "--frame DeepSeek --model_size deepseek16 --n_dense_layers 3 --n_shared_expert 2 --qk_rope_dim 64 "
    "--qk_nope_dim 128 --q_lora_rank 1536 --kv_lora_rank 512 --v_head_dim 128 --aiob_enable --comp_filepath absent.txt",
    "--frame collective_test --test_comm allreduce",
)
# What its shell scripts take besides.
SCRIPTS = (
    "--sp --sp-enable --tp 2 --pp 2 --aiob --flash_attn --experts 4 --topk 2 --ep 2 --grouped_gemm --recompute "
    "--model-size 7 --batch-size 4 --batch_size 4 --zero-stage 3 --seq-len 4096 --node_rank 0 --master_addr localhost "
    "--master_port 29500 --nnodes 2 --nproc_per_node 8 --muti-all-reduce-enable 1"
)


def test_all_of_them_at_once() -> None:
    spellings = [[word[:2] + word[2:].replace(*pair) for word in AICB.split()] for pair in ("__", "_-", "-_")]
    plans = [made(" ".join(words)).plan for words in spellings]
    assert plans[0] == plans[1] == plans[2]
    plan = plans[0]
    assert (plan.tp, plan.pp, plan.ep, plan.micro_batch, plan.zero_stage) == (2, 2, 2, 2, 1)


@pytest.mark.parametrize("words", [*ELSEWHERE, SCRIPTS])
def test_those_of_frames_and_scripts(words: str) -> None:
    options(f"--world_size 8 {words}")


def test_a_gate_by_either_name() -> None:
    models = [
        made(f"--model_size 7 --world_size 8 {flag}").problem.model
        for flag in ("--swiglu", "--gated_linear_unit True", "--gated_linear_unit false", "")
    ]
    assert models[0] == models[1]
    assert models[2] == models[3] != models[0]


def test_nodes_times_gpus() -> None:
    assert made("--model_size 7 --nnodes 2 --nproc_per_node 8").plan.world_size == 16


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ("--model_size 7 --world_size 8 --nnodes 2 --nproc_per_node 8", "nnodes x nproc_per_node = 2 x 8 = 16"),
        ("--model_size 7 --nnodes 2", "world_size"),
        ("--model_size 7 --world_size 8 --gated_linear_unit perhaps", "perhaps"),
        ("--model_size 7 --world_size 8 --pp_rank 0 --pipeline_stage 0", "not together with --pipeline_stage"),
        ("--model_size 7 --world_size 8 --bundle b --format general", "simai, with --bundle"),
        ("DeepSeek-671B deepseek_default.json --phase decode --aiob_forward_loops 10", "AICB's inference commands"),
        # an unknown flag by its whole name, though -m and -t begin known ones
        ("-model_size 7 --world_size 8", "-model_size"),
        ("--model_size 7 --world_size 8 --micro_bach 4", "--micro_bach 4"),
        ("--model_size 7 --world_size 8 --foo=3 --bar" + " --a_long_name" * 9, "--foo=3 --bar" + " --a_long_name" * 9),
    ],
)
def test_refusals(words: str, match: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_workload.main(["generate", *words.split()]) == 2
    complaint = capsys.readouterr().err
    assert match in complaint
    assert complaint.count("\n") == 1


def test_the_stage_by_rank() -> None:
    words = "--model_size 7 --world_size 8 --pp 2"
    assert made(f"{words} --pp_rank 1").works[0].position == 1
    assert made(f"{words} --pp_rank -1").works == made(words).works


# A flag that changes nothing says so; one that changes something does not.

SEVEN = "--model_size 7 --num_layers 2 --world_size 8 --use_flash_attn"
DEEPSPEED = "--frame DeepSpeed --model_size 7 --num_layers 2 --world_size 8 --global_batch 16"


def notes(words: str, *, test: bool = False) -> list[str]:
    return list(notes_on(options(words), default_options(), test=test))


@cache
def written(words: str) -> bytes:
    with TemporaryDirectory() as folder:
        assert run_workload.main(["generate", *words.split(), "--output", f"{folder}/w"]) == 0
        return Path(folder, "w").read_bytes()


@pytest.mark.parametrize("other", OTHERS)
def test_the_others_change_nothing_and_say_so(other: str, capsys: pytest.CaptureFixture[str]) -> None:
    flag = f"--{other}" + (" 1" if other in WITH_VALUE else "")
    plain = written(SEVEN)
    capsys.readouterr()
    assert written(f"{SEVEN} {flag}") == plain
    assert f"--{other} changes nothing: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stage", "flag"),
    [
        ("3", "--epoch_num 2"),
        ("3", "--computation_enable"),
        ("2", "--allgather_bucket_size 200000"),
        ("1", "--use_multi_rank_bucket_allreduce false"),
        ("3", "--prefetch_bucket_size 200000"),
        ("3", "--param_persistence_threshold 10"),
        ("3", "--model_persistence_threshold 10"),
        ("3", "--max_live_parameters 200000"),
        ("3", "--max_reuse_distance 10"),
    ],
)
def test_flags_of_a_general_workload_act_there_alone(stage: str, flag: str) -> None:
    name = flag.split(maxsplit=1)[0]
    words = f"{DEEPSPEED} --stage {stage} --reduce_bucket_size 5000000"
    assert notes(f"{words} {flag}") == [
        f"{name} changes nothing: it acts in a general workload alone (--format general)"
    ]
    words += " --format general"
    assert notes(f"{words} {flag}") == []
    assert written(f"{words} {flag}") != written(words)
    if name not in ("--epoch_num", "--computation_enable"):
        other = words.replace(f"--stage {stage}", "--stage 1" if stage == "3" else "--stage 3")
        (note,) = notes(f"{other} {flag}")
        assert note.startswith(f"{name} changes nothing: it acts with ZeRO stage")
        assert written(f"{other} {flag}") == written(other)


def test_a_test_has_no_model() -> None:
    test = "--test_comm all_reduce --world_size 8 --begin_size 1024 --iter_num 3"
    assert notes(test, test=True) == []
    assert notes(f"{test} --model_size 7 --workload_only", test=True) == [
        "--model_size changes nothing: a test has no model",
        "--workload_only changes nothing: a workload is only written here, never run",
    ]
    assert notes(f"{SEVEN} --iter_num 3") == ["--iter_num changes nothing: it is of a communication test (--test_comm)"]
