"""AIOB files are microseconds; their sums are AICB's; nothing missing becomes a number."""

from pathlib import Path

import pytest

import run_workload
from ops.op import Phase
from ops.roles import Module, OpKey, Role
from profdb.cases import AttentionCase, GemmCase, MemoryBoundCase
from profdb.store.data_file import load_profile
from tests.workload.generator import made
from workload.aicb.aiob import AiobFile, ModuleTime, aiob_of, aiob_times_ns, read_aiob, write_aiob
from workload.diagnostics import WorkloadError
from workload.stage_work import PieceWork, StageWork, stage_works

# (max, min, avg) in us of AICB 2.1's workload/aiob_inputs/Example.txt.
EXAMPLE = {
    "Emb": (857, 782, 799),
    "layernorm": (84, 43, 70),
    "atten_qkv": (1255, 862, 889),
    "atten_flash": (786, 460, 512),
    "atten_linear": (939, 333, 349),
    "layernorm2": (116, 67, 71),
    "mlp_linear_1": (1876, 1372, 1408),
    "mlp_gelu": (560, 246, 257),
    "mlp_linear_2": (1183, 720, 742),
    "layernorm_post": (73, 68, 70),
    "logit_time": (15476, 12435, 12824),
    "param_time": (23746, 16647, 17374),
}


def example() -> AiobFile:
    sections = {
        name: ModuleTime(max_us=most, min_us=least, avg_us=mean) for name, (most, least, mean) in EXAMPLE.items()
    }
    return AiobFile(train_iter=10, sections=sections)


def test_written_is_read_and_looks_like_aicbs(tmp_path: Path) -> None:
    path = tmp_path / "aiob.txt"
    write_aiob(path, example())
    assert path.read_text().startswith(
        "train_iter:10\nEmb:\n    time_gpu_max: 857\n    time_gpu_min: 782\n    time_gpu_avg: 799\nlayernorm:\n"
    )
    assert read_aiob(path) == example()


def test_sums_are_aicbs() -> None:
    # Printed by AICB 2.1 for its Example.txt, nanoseconds.
    assert aiob_times_ns(example()) == {
        "attention_forward": 1_820_000,
        "attention_backward": 1_820_000,
        "mlp_forward": 2_478_000,
        "mlp_backward": 2_478_000,
        "grad_forward": 16_647_000,
        "grad_backward": 17_374_000,
        "Emb": 799_000,
        "layernorm_post": 70_000,
        "logit_time": 12_824_000,
        "attention_core": 512_000,
    }


def test_what_experts_need_besides_counts_in_their_half() -> None:
    sections = {
        name: ModuleTime(max_us=us, min_us=us, avg_us=us)
        for name, us in {"layernorm2": 1, "moe_route_gate": 2, "moe_sort": 4, "mlp_linear_1": 8}.items()
    }
    assert aiob_times_ns(AiobFile(train_iter=1, sections=sections))["mlp_forward"] == 15_000


TIMES = "\n time_gpu_max: 3\n time_gpu_min: 1\n time_gpu_avg: 2\n"


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("Emb:" + TIMES, "train_iter"),
        ("train_iter:1\n", "no section"),
        ("train_iter:1\n time_gpu_max: 3\n", "line 2"),
        (f"train_iter:1\nEmb:{TIMES}Emb:{TIMES}", "line 6: section Emb"),
        (f"train_iter:1\nEmb:{TIMES} time_gpu_avg: 2", "twice"),
        ("train_iter:1\nEmb:\n time_gpu_max: 3\n time_gpu_avg: 2\n", "time_gpu_min"),
        ("train_iter:1\nEmb:\n time_gpu_max: 1\n time_gpu_min: 1\n time_gpu_avg: 2\n", "outside"),
        ("train_iter:1\nEmb:\n time_gpu_max: nan\n", "line 3"),
        ("train_iter:1\nEmb:\n time_gpu_max: -1\n", "line 3"),
        ("train_iter:1\nEmb:\n time_gpu_max: 1000000000\n", "line 3"),
        ("train_iter:٣\nhello\n", "line 1"),
        ("train_iter:1\nhello\n", "line 2"),
        ("train_iter:99999999999999\n", "line 1"),
        ("\udcff", "is no UTF-8 text"),
    ],
)
def test_damaged_files(content: str, match: str, tmp_path: Path) -> None:
    path = tmp_path / "aiob.txt"
    path.write_bytes(content.encode("utf-8", errors="surrogateescape"))
    with pytest.raises(WorkloadError, match=match):
        read_aiob(path)


# A file's times on a stage: each half once a pass, and once more for what is recomputed.

# microseconds; the sections of attention with flash attention, as AICB names them, and without it
OTHERS = {"Emb": 10, "layernorm": 1, "layernorm2": 2, "mlp_linear_1": 40, "layernorm_post": 3, "logit_time": 50}
FLASH = {"atten_qkv": 20, "atten_flash": 30, "atten_linear": 15}
UNFUSED = {"atten_qkv": 20, "atten_core_qk": 5, "atten_core_softmax": 6, "atten_core_contex": 7, "atten_linear": 15}
MODEL = "--model_size 7 --num_layers 4 --world_size 8"


def timed(words: str, sections: dict[str, int], path: Path) -> dict[str, PieceWork]:
    """The pieces of the command with the times of these sections."""
    times = {name: ModuleTime(max_us=us, min_us=us, avg_us=us) for name, us in {**sections, "param_time": 60}.items()}
    write_aiob(path, AiobFile(train_iter=1, sections=times))
    (work,) = made(f"{words} --comp_filepath {path}").works
    return {piece.name: piece for piece in work.pieces}


def layer(words: str, sections: dict[str, int], path: Path) -> PieceWork:
    return timed(words, {**OTHERS, **sections}, path)["block0"]


def test_pieces_take_the_times_of_their_sections(tmp_path: Path) -> None:
    words, path = f"{MODEL} --use_flash_attn", tmp_path / "aiob.txt"
    pieces = timed(words, {**OTHERS, **FLASH}, path)
    forward_us = {name: 1e6 * sum(item.seconds for item in piece.forward) for name, piece in pieces.items()}
    assert forward_us == pytest.approx({"embedding": 10, "block0": 1 + 65 + 2 + 40, "head": 53})
    with pytest.raises(WorkloadError, match="no mlp_forward"):
        timed(words, {"Emb": 10, "layernorm_post": 3, "logit_time": 50, **FLASH}, path)


def recomputed_us(piece: PieceWork) -> float:
    return sum(item.seconds for item in piece.backward if item.phase is Phase.RECOMPUTE) * 1e6


def backward_us(piece: PieceWork) -> float:
    return sum(item.seconds for item in piece.backward) * 1e6


@pytest.mark.parametrize(("flags", "sections", "core"), [("--use_flash_attn", FLASH, 30), ("", UNFUSED, 5 + 6 + 7)])
def test_recomputation_acts_on_the_times_of_a_file(
    flags: str, sections: dict[str, int], core: int, tmp_path: Path
) -> None:
    path = tmp_path / "aiob.txt"
    whole = 1 + sum(sections.values()) + 2 + 40
    plain = layer(f"{MODEL} {flags}", sections, path)
    assert backward_us(plain) == pytest.approx(2 * whole)  # input and weight gradients, a forward each
    selective = layer(f"{MODEL} {flags} --recompute_activations", sections, path)
    assert recomputed_us(selective) == pytest.approx(core)
    assert backward_us(selective) == pytest.approx(2 * whole + core)
    full = layer(f"{MODEL} {flags} --recompute_full", sections, path)
    assert recomputed_us(full) == pytest.approx(whole)


def test_a_core_that_nobody_timed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"attention\.core \(recompute\): the file has no attention_core"):
        layer(f"{MODEL} --use_flash_attn --recompute_activations", {"atten_qkv": 20}, tmp_path / "aiob.txt")


# A plan's times as an AIOB file are the forwards of its halves, whatever the model.


def compute_us(work: StageWork, piece: str, parts: set[Module | OpKey]) -> float:
    (one,) = (each for each in work.pieces if each.name == piece)
    return 1e6 * sum(item.seconds for item in one.forward if item.collective is None and item.is_within(parts))


@pytest.mark.parametrize(
    ("words", "layer"),
    [
        ("--model_size 7 --tp 2 --use_flash_attn", "block0"),
        ("--model_size moe --ep 2", "block0"),
        ("--model_size deepseek16 --ep 8 --pp 2 --use_flash_attn", "block1"),
    ],
)
def test_sections_sum_to_the_halves_of_a_layer(words: str, layer: str, tmp_path: Path) -> None:
    built = made(f"{words} --world_size 16 --fixed_time_us 7 --pipeline_stage all")
    works = stage_works(built.problem, built.plan)
    write_aiob(tmp_path / "a.txt", aiob_of(works))
    times = aiob_times_ns(read_aiob(tmp_path / "a.txt"))
    assert times["attention_forward"] == pytest.approx(1e3 * compute_us(works[0], layer, {Module.ATTENTION}))
    halves = {Module.MLP, Module.MOE, Module.SHARED_EXPERTS}
    assert times["mlp_forward"] == pytest.approx(1e3 * compute_us(works[0], layer, halves))
    assert times["Emb"] == pytest.approx(1e3 * compute_us(works[0], "embedding", {Module.EMBEDDING}))
    logits = {OpKey(Module.HEAD, Role.LOGITS), Module.LOSS}
    assert times["logit_time"] == pytest.approx(1e3 * compute_us(works[-1], "head", logits))
    step_us = 1e6 * sum(item.seconds for item in works[0].step if item.collective is None)
    assert times["grad_backward"] == pytest.approx(1e3 * step_us)


def test_a_written_file_fills_a_workload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = "--model_size 7 --world_size 16 --tp 2 --use_flash_attn"
    words = f"{plan} --fixed_time_us 7 --write_aiob {tmp_path}/a.txt --output {tmp_path}/w.txt"
    assert run_workload.main(["generate", *words.split()]) == 0
    assert f"wrote {tmp_path}/a.txt" in capsys.readouterr().out
    again = f"{plan} --comp_filepath {tmp_path}/a.txt --output {tmp_path}/v.txt"
    assert run_workload.main(["generate", *again.split()]) == 0


# AICB's module times become samples of the model and degrees that the command names.

CONFIG = """model = dict(num_layers=2, hidden_size=1024, num_attention_heads=8, vocab_size=32000, mlp_ratio=4)
data = dict(seq_len=2048, micro_num=1, micro_bsz=1)
"""


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The verb on AICB's example for a small model over two ranks."""
    write_aiob(tmp_path / "aiob.txt", example())
    (tmp_path / "model.py").write_text(CONFIG)
    return [
        *("import-aiob", str(tmp_path / "aiob.txt"), "--config", str(tmp_path / "model.py")),
        *("--gpu", "H100", "--tp", "2", "--micro_batch", "3", "--seq_len", "512"),
        *("--into", str(tmp_path / "data.pt")),
    ]


def changed(words: list[str], flag: str, value: str) -> list[str]:
    at = words.index(flag) + 1
    return [*words[:at], value, *words[at + 1 :]]


def test_sections_are_kept_as_the_operations_they_time(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_workload.main(words) == 0
    printed = capsys.readouterr().out
    assert f"{len(EXAMPLE) - 1} samples of H100 added" in printed
    assert "not imported, no single operation: param_time" in printed
    found = {one.case: one for one in load_profile(words[-1]).samples}
    tokens = 3 * 512
    attention = AttentionCase(batch=3, q_len=512, kv_len=512, heads=4, kv_heads=4, qk_dim=128, v_dim=128)
    # Averages of the example, microseconds.
    assert found[attention].trials_s == pytest.approx((512e-6,))
    assert found[GemmCase(m=tokens, k=1024, n=3 * 512)].trials_s == pytest.approx((889e-6,))
    embedding = MemoryBoundCase(kernel="embedding", direction="forward", rows=tokens, width=1024)
    assert found[embedding].trials_s == pytest.approx((799e-6,))
    assert found[embedding].launched["source"] == "aiob"
    assert run_workload.main(words) == 0
    assert "0 samples of H100 added" in capsys.readouterr().out


def test_bad_input_is_one_line_and_nothing_is_imported(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_workload.main(words) == 0
    before = Path(words[-1]).read_bytes()
    capsys.readouterr()
    for flag, value, said in (
        ("--tp", "3", "tp"),
        ("--tp", "0", "tp"),
        ("--tp", "two", "--tp"),
        ("--micro_batch", "-1", "micro_batch"),
        ("--seq_len", "0", "seq_len"),
        ("--config", "nowhere.py", "nowhere.py"),
        ("--gpu", "A100", "different GPUs"),
    ):
        assert run_workload.main(changed(words, flag, value)) == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1, flag
        assert said in lines[0]
        assert Path(words[-1]).read_bytes() == before


def test_a_file_without_an_operation_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path(words[1]).write_text(f"train_iter:3\nparam_time:{TIMES}")
    assert run_workload.main(words) == 2
    assert "no section" in capsys.readouterr().err
    assert not Path(words[-1]).exists()


def test_the_gpu_goes_by_every_name_of_its_sheet(words: list[str]) -> None:
    assert run_workload.main(changed(words, "--gpu", "nvidia h200")) == 0
    assert load_profile(words[-1]).machine.gpu == "H200-SXM-141GB"
