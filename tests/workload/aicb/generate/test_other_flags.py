"""A flag that changes nothing says so; one that changes something does not."""

from pathlib import Path

import pytest

import run_workload
from tests.workload.generating import options
from workload.aicb.flags import OTHERS, Other, default_options, notes_on

SEVEN = "--model_size 7 --num_layers 2 --world_size 8 --use_flash_attn"
DEEPSPEED = "--frame DeepSpeed --model_size 7 --num_layers 2 --world_size 8 --global_batch 16"


def notes(words: str, *, test: bool = False) -> list[str]:
    return list(notes_on(options(words), default_options(), test=test))


def written(words: str, path: Path) -> bytes:
    assert run_workload.main(["generate", *f"{words} --output {path}".split()]) == 0
    return path.read_bytes()


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: other.name)
def test_the_others_change_nothing_and_say_so(
    other: Other, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flag = f"--{other.name}" + (" 1" if other.takes_value else "")
    plain = written(SEVEN, tmp_path / "plain")
    capsys.readouterr()
    assert written(f"{SEVEN} {flag}", tmp_path / "with") == plain
    assert f"--{other.name} changes nothing: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stage", "flag"),
    [
        ("3", "--epoch_num 2"),
        ("3", "--computation_enable"),
        ("2", "--allgather_bucket_size 200000"),
        ("1", "--use_multi_rank_bucket_allreduce false"),
        ("2", "--round_robin_gradients"),
        ("3", "--prefetch_bucket_size 200000"),
        ("3", "--param_persistence_threshold 10"),
        ("3", "--model_persistence_threshold 10"),
        ("3", "--max_live_parameters 200000"),
        ("3", "--max_reuse_distance 10"),
    ],
)
def test_flags_of_a_general_workload_act_there_alone(stage: str, flag: str, tmp_path: Path) -> None:
    name = flag.split(maxsplit=1)[0]
    words = f"{DEEPSPEED} --stage {stage} --reduce_bucket_size 5000000"
    assert notes(f"{words} {flag}") == [
        f"{name} changes nothing: it acts in a general workload alone (--format general)"
    ]
    words += " --format general"
    assert notes(f"{words} {flag}") == []
    assert written(f"{words} {flag}", tmp_path / "a.csv") != written(words, tmp_path / "b.csv")
    if name not in ("--epoch_num", "--computation_enable"):
        other = words.replace(f"--stage {stage}", "--stage 1" if stage == "3" else "--stage 3")
        (note,) = notes(f"{other} {flag}")
        assert note.startswith(f"{name} changes nothing: it acts with ZeRO stage")
        assert written(f"{other} {flag}", tmp_path / "a.csv") == written(other, tmp_path / "b.csv")


def test_a_test_has_no_model() -> None:
    test = "--test_comm all_reduce --world_size 8 --begin_size 1024 --iter_num 3"
    assert notes(test, test=True) == []
    assert notes(f"{test} --model_size 7 --workload_only", test=True) == [
        "--model_size changes nothing: a test has no model",
        "--workload_only changes nothing: a workload is only written here, never run",
    ]
    assert notes(f"{SEVEN} --iter_num 3") == [
        "--iter_num changes nothing: it is of a communication test (--test_comm)"
    ]
