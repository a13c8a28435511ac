"""AIOB files are microseconds; their sums are AICB's; nothing missing becomes a number."""

from pathlib import Path

import pytest

from workload.aicb.aiob import AiobFile, AiobTime, aiob_times_ns, read_aiob, row_time_ns, write_aiob
from workload.findings import WorkloadError

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
        name: AiobTime(max_us=most, min_us=least, avg_us=mean)
        for name, (most, least, mean) in EXAMPLE.items()
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


def test_recomputation_counts_flash_twice() -> None:
    assert aiob_times_ns(example(), recompute_activations=True)["attention_forward"] == 1_820_000 + 512_000


@pytest.mark.parametrize(
    ("row", "backward", "expected"),
    [
        ("attention_layer", False, 1_820_000),
        ("attention_column", True, 910_000),
        ("mlp_row", False, 1_239_000),
        ("mlp_moelayer", True, 2_478_000),
        ("grad_param_compute", True, 17_374_000),
        ("embedding_layer", False, 799_000),
        ("final_column", False, 910_000),
        ("logit_time", False, 12_824_000),
    ],
)
def test_rows_find_their_time(row: str, backward: bool, expected: int) -> None:
    assert row_time_ns(aiob_times_ns(example()), row, backward=backward) == expected


def test_what_experts_need_besides_counts_in_their_half() -> None:
    sections = {
        name: AiobTime(max_us=us, min_us=us, avg_us=us)
        for name, us in {"layernorm2": 1, "moe_route_gate": 2, "moe_sort": 4, "mlp_linear_1": 8}.items()
    }
    assert aiob_times_ns(AiobFile(train_iter=1, sections=sections))["mlp_forward"] == 15_000


def test_no_time_is_an_error() -> None:
    with pytest.raises(WorkloadError, match="router_forward"):
        row_time_ns(aiob_times_ns(example()), "router", backward=False)
    bare = AiobFile(train_iter=1, sections={"Emb": AiobTime(max_us=1, min_us=1, avg_us=1)})
    with pytest.raises(WorkloadError, match="attention_forward"):
        row_time_ns(aiob_times_ns(bare), "attention_layer", backward=False)


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
        ("train_iter:1\nEmb:\n time_gpu_max: fast\n", "line 3"),
        ("train_iter:1\nEmb:\n time_gpu_max: nan\n", "line 3"),
        ("train_iter:1\nEmb:\n time_gpu_max: -1\n", "line 3"),
        ("train_iter:1\nEmb:\n time_gpu_max: 1_0\n", "line 3"),
        ("train_iter:1\nEmb:\n time_gpu_max: ٣\n", "line 3"),
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


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(WorkloadError, match=str(path)):
            read_aiob(path)
