"""The calibrate command and its files: what is written is read, used only when asked, and bad input is one
line."""

import json
from pathlib import Path

import pytest

from simulation_train_formulaic import main as search_main
from solver.calibrate.__main__ import main
from solver.problem.calibration import calibration_path, read_calibration
from spec.cluster.reader import read_cluster
from spec.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
CONFIG = ROOT / "configs" / "7B_internlm2.py"
PROFILE = ROOT / "prof_data" / "data.pt"
HEADER = "config,world_size,global_batch,measured_step_s,plan"
# Made-up steps, each twice what the shipped profile says or so.
LINES = (
    f'{CONFIG},128,4194304,6.7,"strategy=fsp,tp=2"',
    f'{CONFIG},128,4194304,7.9,"strategy=fsp,tp=4"',
    f'{CONFIG},128,4194304,8.3,"strategy=fsp,tp=4,pp=2"',
)


# Steps that no factor explains: the same plan, at a tenth of the speed of the next line.
ODD = (LINES[0].replace(",6.7,", ",3.4,"), LINES[1].replace(",7.9,", ",40,"), LINES[2].replace(",8.3,", ",4,"))


def calibrate(folder: Path, *lines: str) -> tuple[int, Path]:
    steps, out = folder / "steps.csv", folder / "found.json"
    steps.write_text("\n".join(lines) + "\n", "utf-8")
    return main(["--steps", str(steps), "--pre_profiling_data_path", str(PROFILE), "--out", str(out)]), out


def price(folder: Path, *more: str, gpus: int = 128) -> dict[str, float]:
    out = folder / "answer.json"
    asked = ["--config", str(CONFIG), "--world_size", str(gpus), "--global_batch_size", str(32768 * gpus)]
    asked += ["--pre_profiling_data_path", str(PROFILE), "--plan", "strategy=fsp,tp=4", "--json", str(out)]
    assert search_main([*asked, *more]) == 0
    answer: dict[str, float] = json.loads(out.read_text("utf-8"))["plan"]
    return answer


def test_made_factors_are_used_only_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = price(tmp_path)
    code, out = calibrate(tmp_path, HEADER, *LINES)
    assert code == 0
    assert "leave-one-out error" in capsys.readouterr().out
    # A calibration that lies there changes nothing by itself.
    assert price(tmp_path) == before
    asked = price(tmp_path, "--calibration", str(out))
    assert asked["step_s"] == pytest.approx(7.9, rel=0.1)
    assert asked["interval_low_s"] < asked["step_s"] < asked["interval_high_s"]
    assert before["step_s"] < 0.7 * asked["step_s"]


def test_steps_on_eight_gpus_correct_those_on_five_hundred(tmp_path: Path) -> None:
    """Priced a third too fast there and here; nothing is measured here."""
    eight, large = (price(tmp_path, gpus=gpus)["step_s"] for gpus in (8, 512))
    steps = [f'{CONFIG},8,262144,{1.5 * eight * wobble},"strategy=fsp,tp=4"' for wobble in (0.99, 1.0, 1.01)]
    code, out = calibrate(tmp_path, HEADER, *steps)
    assert code == 0
    told = price(tmp_path, "--calibration", str(out), gpus=512)
    assert told["step_s"] == pytest.approx(1.5 * large, rel=0.1)
    assert told["interval_low_s"] < 1.5 * large < told["interval_high_s"]


def test_one_step_has_no_error_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = calibrate(tmp_path, HEADER + ",cluster", LINES[0] + ",h200")
    assert code == 0
    assert "one step: no leave-one-out error" in capsys.readouterr().out
    record = json.loads(out.read_text("utf-8"))
    assert (record["steps"], record["leave_one_out_error"]) == (1, None)
    assert 3.4 < price(tmp_path, "--calibration", str(out))["step_s"] < 7.9


def test_a_plan_in_columns_is_the_plan_in_words(tmp_path: Path) -> None:
    calibrate(tmp_path, HEADER, *LINES)
    words = (tmp_path / "found.json").read_text("utf-8")
    columns = [f"{CONFIG},128,4194304,{s},fsp,{tp},{pp}" for s, tp, pp in ((6.7, 2, ""), (7.9, 4, ""), (8.3, 4, 2))]
    code, out = calibrate(tmp_path, "config,world_size,global_batch,measured_step_s,strategy,tp,pp", *columns)
    assert code == 0
    assert out.read_text("utf-8") == words


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((HEADER,), "a line a measured step"),
        ((HEADER + ",cluster", LINES[0] + ",a800"), "steps.csv:2: cluster"),
        ((HEADER, LINES[0].replace(",6.7,", ",0.7,")), "% of the peak FLOP/s of 128 H200"),
        ((HEADER + ",framework", LINES[0] + ",internevo", LINES[1] + ",megatron"), "steps.csv:3: framework"),
        ((HEADER, *ODD), "none are written"),
        (("config,world_size,measured_step_s", "a,8,1"), "global_batch"),
        ((HEADER + ",colour", LINES[0] + ",red"), "colour"),
        ((HEADER + ",plan", LINES[0] + ",tp=2"), "given twice"),
        ((HEADER, LINES[0].replace(",6.7,", ",0,")), "steps.csv:2: measured_step_s"),
        ((HEADER, LINES[0].replace(",6.7,", ",nan,")), "steps.csv:2: measured_step_s"),
        ((HEADER, LINES[0].replace(",128,", ",many,")), "steps.csv:2: world_size"),
        ((HEADER, LINES[0].replace(",128,", ",12,")), "world_size = 12"),
        ((HEADER, LINES[0].replace("tp=2", "tq=2")), "steps.csv:2: tq"),
        ((HEADER, LINES[0].replace("tp=2", "tp=3")), "steps.csv:2: tensor x pipeline"),
        ((HEADER, LINES[0].replace(str(CONFIG), "no.py")), "no.py"),
        ((HEADER, LINES[0].replace(str(CONFIG), "")), "steps.csv:2: config"),
        ((HEADER, "a,b"), "steps.csv:2: cells"),
    ],
)
def test_bad_steps_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: tuple[str, ...], said: str
) -> None:
    code, out = calibrate(tmp_path, *lines)
    error = capsys.readouterr().err
    assert code == 2
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert said in error
    assert not out.exists()


@pytest.fixture(scope="module")
def good_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    _, out = calibrate(tmp_path_factory.mktemp("good"), HEADER, *LINES)
    return out.read_text("utf-8")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 1}, "schema 3"),
        ({"cluster": "a100-sxm-80g"}, "factors of h200"),
        ({"factors": {}}, "exactly"),
        ({"factors": {"overlap": 1.5}}, "from 0 to 1"),
        ({"factors": {"compute_efficiency": 0.0}}, "from 0.25 to 2"),
        ({"factors": {"factors_std": "wide"}}, "factors_std"),
        ({"factors": {"scatter": -1.0}}, "scatter"),
        ({"framework": "megatron"}, "factors of internevo"),
        ({"factors": {"fixed_per_step_s": True}}, "fixed_per_step_s"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, good_file: str, change: dict[str, object], said: str) -> None:
    out, record = tmp_path / "factors.json", json.loads(good_file)
    factors = change.pop("factors", None)
    record |= change
    if isinstance(factors, dict):
        record["factors"] = record["factors"] | factors if factors else {}
    out.write_text(json.dumps(record), "utf-8")
    with pytest.raises(ConfigError, match=said):
        read_calibration(out, read_cluster("h200", root=ROOT), "internevo")


@pytest.mark.parametrize("text", [None, "", "[]", "{"])
def test_what_is_no_calibration_is_refused(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "found.json"
    if text is not None:
        path.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=r"calibrat"):
        read_calibration(path, read_cluster("h200", root=ROOT), "internevo")


def test_the_file_lies_beside_the_profile() -> None:
    assert calibration_path(Path("prof_data/data.pt")) == Path("prof_data/data.calibration.json")
