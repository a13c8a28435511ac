"""Every flag of AICB is taken, in both spellings."""

import pytest

import run_workload
from tests.workload.generating import made, options

# AICB 2.1, utils/utils.py: every argument of get_params, with a value that it takes.
AICB = {
    "frame": "Megatron",
    "gpu_type": "H100",
    "world_size": "16",
    "tensor_model_parallel_size": "2",
    "pipeline_model_parallel": "2",
    "context-parallel-size": "1",
    "pp_rank": "-1",
    "global_batch": "16",
    "micro_batch": "2",
    "epoch_num": "1",
    "computation_enable": None,
    "dtype": "bfloat16",
    "ffn_hidden_size": "1024",
    "enable_visual": None,
    "workload_only": None,
    "model_name": "name",
    "hidden_size": "1024",
    "num_layers": "4",
    "seq_length": "128",
    "num_attention_heads": "16",
    "vocab_size": "1000",
    "max_position_embeddings": "128",
    "add_bias_linear": None,
    "use_flash_attn": None,
    "swiglu": None,
    "stage": "1",
    "amp_enabled": None,
    "reduce_bucket_size": "1000000",
    "contiguous_gradients": None,
    "enable_sequence_parallel": None,
    "use-distributed-optimizer": None,
    "make_vocab_size_divisible_by": "64",
    "overlap_grad_reduce": None,
    "begin_size": "1024",
    "end_size": "1024",
    "iter_num": "500",
    "multi_all_reduce_enable": "0",
    "overlap_version": None,
    "moe_enable": None,
    "expert_model_parallel_size": "2",
    "num_experts": "4",
    "moe_router_topk": "2",
    "moe_grouped_gemm": None,
    "activation_func": "silu",
    "gated_linear_unit": "True",
    "bias_gelu_fusion": None,
    "openai_gelu": None,
    "onnx_safe": None,
    "squared_relu": None,
    "recompute_activations": None,
}
# The rest of them, which need a DeepSpeed or DeepSeek frame, an AIOB file, or a test.
ELSEWHERE = {
    "--frame DeepSpeed --model_size 7 --stage 3 --format general": (
        "allgather_bucket_size 1000",
        "param_persistence_threshold 10",
        "model_persistence_threshold 10",
        "max_live_parameters 1000000000",
        "prefetch_bucket_size 1000000",
    ),
    "--frame DeepSeek --model_size deepseek16": (
        "n_dense_layers 3",
        "n_shared_expert 2",
        "qk_rope_dim 64",
        "qk_nope_dim 128",
        "q_lora_rank 1536",
        "kv_lora_rank 512",
        "v_head_dim 128",
        "aiob_enable",
        "comp_filepath absent.txt",
    ),
    "--frame collective_test": ("test_comm allreduce",),
}
# What its shell scripts take besides.
SCRIPTS = (
    "sp",
    "sp-enable",
    "tp 2",
    "pp 2",
    "aiob",
    "flash_attn",
    "experts 4",
    "topk 2",
    "ep 2",
    "grouped_gemm",
    "recompute",
    "model-size 7",
    "batch-size 4",
    "batch_size 4",
    "zero-stage 3",
    "seq-len 4096",
    "node_rank 0",
    "master_addr localhost",
    "master_port 29500",
    "nnodes 2",
    "nproc_per_node 8",
    "muti-all-reduce-enable 1",
)


def test_all_of_them_at_once() -> None:
    plans = [
        made(" ".join(f"--{spelt(name)} {value or ''}" for name, value in AICB.items())).plan
        for spelt in (str, lambda name: name.replace("_", "-"), lambda name: name.replace("-", "_"))
    ]
    assert plans[0] == plans[1] == plans[2]
    assert (plans[0].tp, plans[0].pp, plans[0].ep, plans[0].micro_batch, plans[0].zero_stage) == (
        2,
        2,
        2,
        2,
        1,
    )


@pytest.mark.parametrize("frame", ELSEWHERE)
def test_those_of_one_frame(frame: str) -> None:
    for flag in ELSEWHERE[frame]:
        options(f"{frame} --world_size 8 --{flag}")


@pytest.mark.parametrize("flag", SCRIPTS)
def test_those_of_the_scripts(flag: str) -> None:
    options(f"--{flag}")


def test_a_gate_by_either_name() -> None:
    models = [
        made(f"--model_size 7 --world_size 8 {flag}").question.model
        for flag in ("--swiglu", "--gated_linear_unit True", "--gated_linear_unit false", "")
    ]
    assert models[0] == models[1]
    assert models[2] == models[3] != models[0]


def test_nodes_times_gpus() -> None:
    assert made("--model_size 7 --nnodes 2 --nproc_per_node 8").plan.world_size == 16


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (
            "--model_size 7 --world_size 8 --nnodes 2 --nproc_per_node 8",
            "nnodes x nproc_per_node = 2 x 8 = 16",
        ),
        ("--model_size 7 --nnodes 2", "world_size"),
        ("--model_size 7 --world_size 8 --gated_linear_unit perhaps", "perhaps"),
        (
            "--model_size 7 --world_size 8 --pp_rank 0 --pipeline_stage 0",
            "not together with --pipeline_stage",
        ),
        ("--model_size 7 --world_size 8 --bundle b --format general", "simai, with --bundle"),
        # an unknown flag by its whole name, though -m and -t begin known ones
        ("-model_size 7 --world_size 8", "-model_size"),
        ("--model_size 7 --world_size 8 -micro_batch 4", "-micro_batch"),
        ("--model_size 7 --world_size 8 --micro_bach 4", "--micro_bach 4"),
        (
            "--model_size 7 --world_size 8 --foo=3 --bar" + " --a_long_name" * 9,
            "--foo=3 --bar" + " --a_long_name" * 9,
        ),
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
