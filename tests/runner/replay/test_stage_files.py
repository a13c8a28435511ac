from pathlib import Path

import pytest

from runner.replay.program import Typed, read_work, stage_files, work_name
from spec.errors import ConfigError
from tests.runner.replay.test_program import END, collective, message
from workload.aicb.csv_workload import Arguments, GeneralItem, Workload

TYPED = Typed(degrees={}, order="tp-cp-ep-dp-pp")


def written(path: Path, *items: GeneralItem, **arguments: int) -> Path:
    given: Arguments = dict(arguments)
    Workload(items=[END, *items, END]).write(path, given)
    return path


def test_stages_lie_beside_the_first(tmp_path: Path) -> None:
    first = written(
        tmp_path / "a_workload-stage0.csv",
        message("send_next"),
        pipeline_model_parallel=2,
        world_size=4,
        stage=0,
    )
    with pytest.raises(
        ConfigError, match=r"2, one for each pipeline stage .*a_workload-stage1.csv is not there"
    ):
        read_work([first], TYPED, 4)
    written(tmp_path / "a_workload-stage1.csv", message("recv_prev"))
    work = read_work([first], TYPED, 4)
    assert (work.name, work.degrees.dp, [one.stage for one in work.programs]) == ("a", 2, [0, 1])


def test_what_differs_on_a_node_changes_the_digest(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", collective(), tensor_model_parallel_size=2)
    before = read_work([path], TYPED, 2).digest
    assert read_work([path], TYPED, 2).digest == before
    written(path, collective(), collective(), tensor_model_parallel_size=2)
    after = read_work([path], TYPED, 2).digest
    written(path, collective(), collective(), tensor_model_parallel_size=2, epoch_num=7)
    assert len({before, after, read_work([path], TYPED, 2).digest}) == 3


def test_another_stage_first_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", collective(), tensor_model_parallel_size=2, stage=1)
    with pytest.raises(ConfigError, match="stage = 1: 0 in the first file"):
        read_work([path], TYPED, 2)


def test_files_are_as_many_as_stages(tmp_path: Path) -> None:
    typed = [tmp_path / "x.csv", tmp_path / "y.csv"]
    assert stage_files(typed, 2) == typed
    with pytest.raises(ConfigError, match="files = 2: 3, one for each pipeline stage"):
        stage_files(typed, 3)


def test_names_of_results() -> None:
    assert work_name(Path("llama-3.1_workload-stage0.csv")) == "llama-3.1"
    assert work_name(Path("mine.csv")) == "mine"
