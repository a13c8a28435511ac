"""AICB's flags: each is honoured, no preset overrides one, and a bad combination is one line."""

import time
from pathlib import Path

import pytest

import run_workload
from ops.recompute import Recompute
from spec.errors import UserError
from spec.mixers.attention import AttentionKind
from tests.workload.generator import made
from workload.aicb.csv_workload import Workload
from workload.aicb.flags import COLLECTIVES
from workload.aicb.plan_rows import _chunks
from workload.simai.check import check_simai
from workload.simai.reader import read_simai, usable_workload
from workload.stage_work import StageWork

MODEL = "--model_size 7 --world_size 16 --use_flash_attn"


def gemm_shapes(work: StageWork, name: str) -> set[tuple[int, ...]]:
    return {item.shape for piece in work.pieces for item in piece.forward if item.name == name and item.shape}


# AICB's presets force tp 4 or 8 on these sizes; here what was typed stands.
@pytest.mark.parametrize("size", ["7", "13", "22", "175"])
def test_no_preset_overrides_a_degree(size: str) -> None:
    plan = made(f"--model_size {size} --world_size 16 --tensor_model_parallel_size 2 --pp_num 2").plan
    assert (plan.tp, plan.pp, plan.dp, plan.ep) == (2, 2, 4, 1)


def test_dimensions_replace_the_presets() -> None:
    flags = (
        "--num_layers 4 --hidden_size 1024 --num_attention_heads 16 --ffn_hidden_size 3000 --vocab_size 1000 "
        "--num_query_groups 4 --max_position_embeddings 77 --seq_length 512 --micro_batch 2"
    )
    result = made(f"{MODEL} {flags}")
    model = result.problem.model
    (run,) = model.blocks
    assert (run.count, model.hidden, model.vocab, model.max_positions) == (4, 1024, 1000, 77)
    attention = run.block.mixer
    assert (attention.num_heads, attention.num_kv_heads, attention.qk_dim) == (16, 4, 64)
    assert attention.kind is AttentionKind.GQA
    # rows: 2 sequences of 512 tokens; GELU: one matrix of 3000 columns
    assert gemm_shapes(result.works[0], "mlp.up") == {(1, 1024, 1024, 3000)}


@pytest.mark.parametrize(
    ("flags", "width"),
    # Megatron-LM's defaults: 4 h, with SwiGLU 8/3 h down to a multiple of 64
    [("", 16384), ("--swiglu", 2 * 10880), ("--hidden_size 2048", 8192), ("--swiglu --ffn_hidden_size 96", 192)],
)
def test_feed_forward_width(flags: str, width: int) -> None:
    assert {shape[3] for shape in gemm_shapes(made(f"{MODEL} {flags}").works[0], "mlp.up")} == {width}


def test_training_flags() -> None:
    flags = (
        "--tensor_model_parallel_size 4 --pipeline_model_parallel 2 --virtual_pipeline_model_parallel_size 3 "
        "--global_batch 16 --micro_batch 2 --enable_sequence_parallel --use-distributed-optimizer "
        "--recompute_activations"
    )
    result = made(f"{MODEL} {flags}")
    plan = result.plan
    assert plan.strategy == "fsp"
    assert (plan.vpp, plan.num_micro, plan.micro_batch, plan.zero_stage, plan.zero_size) == (3, 4, 2, 1, 2)
    assert plan.recompute is Recompute.SELECTIVE
    assert result.problem.job.flash_attention


def test_experts_of_a_dense_preset() -> None:
    flags = "--moe_enable --num_experts 8 --moe_router_topk 2 --expert_model_parallel_size 4 --moe_grouped_gemm"
    result = made(f"{MODEL} {flags}")
    (run,) = result.problem.model.blocks
    assert run.block.moe is not None
    assert (run.block.moe.num_experts, run.block.moe.topk, run.block.moe.expert_ffn_hidden) == (8, 2, 16384)
    assert result.plan.ep == 4
    assert any("moe.dispatch" in item.name for piece in result.works[0].pieces for item in piece.backward)


def test_zero_stage_and_bucket() -> None:
    result = made(f"{MODEL} --frame DeepSpeed --stage 3 --reduce_bucket_size 12345")
    assert (result.plan.zero_stage, result.plan.zero_size) == (3, 16)
    assert result.problem.job.preset.data_parallel.bucket_elements == 12345


def test_dashes_are_underscores() -> None:
    assert made(f"{MODEL} --tensor-model-parallel-size 2 --num-layers 6").plan.tp == 2


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ("--world_size 8", "--num_layers, --hidden_size, --num_attention_heads"),
        ("--model_size 7", "world_size"),
        ("--model_size 12 --world_size 8", "one of"),
        ("--model_size 270 --world_size 8", "no dimensions are published"),
        ("--model_size 7 --world_size 12", "multiple of 8"),
        ("--model_size 7 --world_size 8 --tp_num 0", "1 or more"),
        ("--model_size 7 --world_size 16 --pp_num 5", "multiple of"),
        ("--model_size 7 --world_size 64 --pp_num 64", "more pipeline stages than layers"),
        (
            "--model_size 7 --num_layers 5 --world_size 8 --pp_num 4 --global_batch 8 "
            "--virtual_pipeline_model_parallel_size 2",
            "layers that divide over the chunks",
        ),
        ("--model_size 7 --world_size 16 --global_batch 17", "multiple of dp 16"),
        ("--model_size 7 --world_size 16 --num_attention_heads 30", "divisor of the hidden size"),
        ("--model_size 7 --world_size 16 --num_query_groups 5", "divisor of 32"),
        ("--model_size 7 --world_size 16 --num_experts 4", "--moe_enable"),
        ("--model_size 7 --world_size 16 --moe_enable", "2 experts"),
        ("--model_size 7 --world_size 16 --moe_enable --num_experts 2 --moe_router_topk 3", "topk"),
        ("--model_size 7 --world_size 16 --expert_model_parallel_size 2", "without experts"),
        ("--model_size moe --world_size 16 --tp_num 2", "sequence parallelism"),
        ("--model_size moe --world_size 16 --expert_model_parallel_size 3", "divide"),
        ("--model_size 7 --world_size 16 --frame DeepSpeed --stage 4", "0 to 3"),
        ("--model_size 7 --world_size 16 --frame DeepSpeed --use_distributed_optimizer", "shards by"),
        ("--model_size 7 --world_size 16 --zero_stage 2", "--frame DeepSpeed"),
        ("--model_size 7 --world_size 16 --prefetch_bucket_size 2", "needs --frame DeepSpeed"),
        ("--model_size 7 --world_size 16 --stage 3", "stage '3'"),
        ("--model_size 7 --world_size 16 --reduce_bucket_size 0 --frame DeepSpeed", "1 or more"),
        ("--model_size 7 --world_size 16 --fixed_time_us nan", "'nan' is not a number from 0 to 1e+09"),
        ("--model_size 7 --world_size 16 --fixed_time_us 1e9", "below 1000000000"),
        ("--model_size 7 --world_size 16 --fixed_time_us 1 --comp_filepath x", "not together"),
        ("--model_size 7 --world_size 16 --comp_filepath absent", "absent"),
        ("--model_size 7 --world_size 16 --profile absent.pt", "absent.pt"),
        ("--model_size 7 --world_size 16 --cluster nowhere", "nowhere"),
        ("--model_size 7 --world_size 16 --epoch_num 0", "1 or more"),
        ("--model_size 7 --world_size 16 --frame Horovod", "Horovod"),
        ("--model_size deepseek16 --world_size 16 --num_layers 1", "more than the 1 leading"),
        ("--model_size 7 --world_size 16 --virtual_pipeline_model_parallel_size 2", "without a pipeline"),
        (
            "--model_size 7 --world_size 16 --pp_num 4 --virtual_pipeline_model_parallel_size 3 --global_batch 8",
            "multiples of pp",
        ),
    ],
)
def test_bad_combinations(words: str, match: str) -> None:
    with pytest.raises(UserError) as caught:
        made(words)
    assert match in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_file_for_every_distinct_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"{MODEL} --pp_num 4 --stage all --output {tmp_path}/w.txt".split()
    assert run_workload.main(["generate", *words]) == 0
    assert "assumed: every operation takes 0.001 us" in capsys.readouterr().err
    names = sorted(path.name for path in tmp_path.glob("*.txt"))
    # the first with the embedding, two equal ones, the last with head and loss
    assert names == ["w-stage0.txt", "w-stage1.txt", "w-stage3.txt"]
    last = read_simai(tmp_path / "w-stage3.txt")
    assert any("loss" in placed.row.name for placed in last.rows)


@pytest.mark.parametrize(
    "words",
    [
        *[f"--model_size {size} --tp_num 8" for size in ("7", "13", "22", "65", "175", "405")],
        "--model_size moe --tp_num 2 --expert_model_parallel_size 8 --sp",
        *[f"--model_size {size} --expert_model_parallel_size 8" for size in ("deepseek16", "deepseek671")],
    ],
)
def test_presets_are_written_in_seconds_and_are_clean(words: str, tmp_path: Path) -> None:
    began = time.perf_counter()
    path = tmp_path / "w.txt"
    flags = f"{words} --world_size 64 --use-distributed-optimizer --use_flash_attn --output {path}"
    assert run_workload.main(["generate", *flags.split()]) == 0
    assert time.perf_counter() - began < 5.0
    # counts of tokens are smaller than the smallest array that SimAI prices, which is noted
    assert [one for one in check_simai(read_simai(path)) if one.code != "forward-floor"] == []


def test_gradients_of_zero_3_lie_in_the_column_of_weight_gradients(tmp_path: Path) -> None:
    path = tmp_path / "w.txt"
    words = f"--frame DeepSpeed --stage 3 --model_size 7 --world_size 8 --use_flash_attn --output {path}"
    assert run_workload.main(["generate", *words.split()]) == 0
    rows = [placed.row for placed in read_simai(path).rows]
    scattered = [row.weight_grad_bytes for row in rows if row.weight_grad_comm == "REDUCESCATTER"]
    # embedding, 32 layers and head: the 6,738,415,616 parameters of Llama-2-7B in bf16, once a micro-batch
    assert len(scattered) == 34
    assert sum(scattered) == 2 * 6_738_415_616
    assert {row.forward_comm for row in rows} == {"NONE"}


@pytest.mark.parametrize(
    ("degrees", "layers"), [("--pp_num 5 --world_size 40", 36), ("--pp_num 7 --world_size 56", 36)]
)
def test_layers_that_do_not_divide_are_all_there(degrees: str, layers: int) -> None:
    works = made(f"--model_size 7 {degrees} --pipeline_stage all").works
    held = [sum(piece.repeat for piece in work.pieces if piece.name.startswith("block")) for work in works]
    assert sum(work.count * own for work, own in zip(works, held, strict=True)) == layers
    assert max(held) - min(held) == 1


def test_edges_that_count_as_layers_shorten_their_chunk() -> None:
    # 38 layers on 5 stages of 2 chunks: (38 + 2) / 10 = 4, so 3 beside the embedding and 3 beside the head
    words = (
        "--model_size 7 --num_layers 38 --pp_num 5 --world_size 40 --global_batch 40 --format general "
        "--virtual_pipeline_model_parallel_size 2 --pipeline_stage all --tp_num 1"
    )
    built = made(words)
    first, last = (_chunks(built.plan, work) for work in (built.works[0], built.works[-1]))
    assert [len(chunk) for chunk in first] == [1 + 3, 4]
    assert [len(chunk) for chunk in last] == [4, 3 + 1]


# Sweeps of a collective: sizes, groups, and a header that SimAI reads whole.

SWEEP = "--world_size 16 --begin_size 1024 --end_size 8192"


def run(words: str, path: Path) -> int:
    return run_workload.main(["generate", *f"{words} --output {path}".split()])


@pytest.mark.parametrize("kind", sorted(COLLECTIVES))
def test_both_formats(kind: str, tmp_path: Path) -> None:
    ranks = 4 if kind.startswith("multi") else 16
    words = f"--test_comm {kind} {SWEEP} --tp_num {ranks}"
    assert run(words, tmp_path / "w.txt") == 0
    file = read_simai(tmp_path / "w.txt")
    assert check_simai(file) == []
    made = usable_workload(file)
    assert (made.header.tp, made.header.all_gpus, made.header.ga, made.header.vpp) == (ranks, 16, 1, 1)
    assert [row.forward_bytes for row in made.rows] == [1024, 2048, 4096, 8192]
    assert run(f"{words} --format general --epoch_num 2", tmp_path / "w.csv") == 0
    items = [item for item in Workload.load(tmp_path / "w.csv")[0].items if item.comm_group]
    assert [item.msg_size for item in items] == [1024, 2048, 4096, 8192] * 2
    assert {item.comm_group_size for item in items} == {ranks}


def test_a_sweep_may_end_between_two_sizes(tmp_path: Path) -> None:
    assert run("--test_comm all_reduce --world_size 8 --begin_size 3 --end_size 7", tmp_path / "w.txt") == 0
    assert [row.row.forward_bytes for row in read_simai(tmp_path / "w.txt").rows] == [3, 6]


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ("--test_comm gossip --world_size 8", "gossip"),
        ("--test_comm all_reduce", "world_size"),
        ("--test_comm all_reduce --world_size 1", "2 or more"),
        ("--test_comm all_reduce --world_size 8 --tp_num 3", "dividing"),
        ("--test_comm multi_all_reduce --world_size 8", "several groups"),
        ("--test_comm all_reduce --world_size 8 --begin_size 0", "begin_size"),
        ("--test_comm all_reduce --world_size 8 --begin_size 9 --end_size 8", "end_size"),
        ("--test_comm all_reduce --world_size 8 --iter_num 0", "iter_num"),
        ("--test_comm all_reduce --world_size 8 --pp 2", "1 in a test"),
        ("--frame collective_test --world_size 8 --tp 3", "a divisor of the world"),
        ("--frame collective_test --world_size 8 --multi_all_reduce_enable 1", "2 or more"),
    ],
)
def test_bad_sweeps(words: str, match: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words, tmp_path / "w.txt") == 2
    complaint = capsys.readouterr().err
    assert match in complaint
    assert complaint.count("\n") == 1


def test_a_collective_test_as_aicb_runs_it(tmp_path: Path) -> None:
    """Its frame: over the data-parallel group, 500 repetitions of a size, as many of the smallest as warm-up before;
    several groups at once over the pipeline's, one rank of each node."""
    flags = "--frame collective_test --world_size 16 --begin_size 1024 --end_size 2048 --iter_num 3"
    assert run(f"{flags} --format general", tmp_path / "w.csv") == 0
    rows = list(Workload.load(tmp_path / "w.csv")[0].items)
    assert [item.comm_type for item in rows[3::7]] == ["epoch_end", "epoch_end"]
    items = [item for item in rows if item.comm_group]
    assert [(item.msg_size, item.stage) for item in items] == [
        *[(1024, "warmup")] * 3,
        *[(1024, "test.all_reduce")] * 3,
        *[(2048, "test.all_reduce")] * 3,
    ]
    assert {(item.comm_type, item.comm_group, item.comm_group_size) for item in items} == {
        ("all_reduce", "dp_group", 16)
    }
    multi = f"{flags} --test_comm allgather --multi_all_reduce_enable 1 --pipeline_model_parallel 2"
    assert run(f"{multi} --format general", tmp_path / "w.csv") == 0
    items = [item for item in Workload.load(tmp_path / "w.csv")[0].items if item.comm_group]
    assert {(item.comm_type, item.comm_group, item.comm_group_size) for item in items} == {
        ("all_gather", "pp_group", 2)
    }


@pytest.mark.parametrize(
    ("flags", "tp", "ranks"),
    [("--multi_all_reduce_enable 1 --pipeline_model_parallel 2", 8, 2), ("--tensor_model_parallel_size 4", 4, 4)],
)
def test_ranks_apart_are_simais_data_parallel_group(flags: str, tp: int, ranks: int, tmp_path: Path) -> None:
    words = f"--frame collective_test --world_size 16 --begin_size 1048576 {flags}"
    assert run(words, tmp_path / "w.txt") == 0
    file = read_simai(tmp_path / "w.txt")
    assert check_simai(file) == []
    workload = usable_workload(file)
    assert (workload.header.tp, workload.header.dp) == (tp, ranks)
    (row,) = workload.rows
    assert (row.weight_grad_comm, row.weight_grad_bytes, row.forward_comm) == ("ALLREDUCE", 1048576, "NONE")


def test_launches_that_the_file_cannot_hold_are_named_as_the_bundle_counts_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = "--num_layers 2 --hidden_size 512 --num_attention_heads 8 --seq_length 128 --vocab_size 1024 --world_size 8"
    words = ["generate", *small.split(), "--missing", "modelled", "--aiob_enable"]
    assert run_workload.main([*words, "--output", str(tmp_path / "w.txt")]) == 0
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "launches" in line)
    assert run_workload.main([*words, "--bundle", str(tmp_path / "b")]) == 0
    counted = next(one for one in (tmp_path / "b" / "README.md").read_text().splitlines() if "kernel launches" in one)
    assert line == f"not in the SimAI file: kernel launches: {counted.split()[-2]} ms"
    assert run_workload.main([*words, "--fixed_time_us", "1", "--output", str(tmp_path / "w.txt")]) == 0
    assert "launches" not in capsys.readouterr().err


def test_names_with_slashes_stay_in_the_folder(tmp_path: Path) -> None:
    words = f"generate --frame Megatron {MODEL} --num_layers 2 --global_batch 16 --model_name ../x --gpu_type ../y"
    assert run_workload.main([*words.split(), "--output", str(tmp_path)]) == 0
    (made_file,) = tmp_path.rglob("*.txt")
    assert made_file.parent == tmp_path
