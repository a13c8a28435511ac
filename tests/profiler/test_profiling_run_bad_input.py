"""What a user can get wrong: one clear line, exit status 2, nothing written."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import gen_profiler_data
from profdb.cases import GemmCase
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from profdb.store.data_file import save_profile
from profdb.store.journal import journal_path
from profiler.journal import Journal
from spec.origin import Origin

ROOT = Path(__file__).resolve().parents[2]
TINY = str(ROOT / "configs" / "tiny_internlm2.py")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the script with the given flags; its exit status."""
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    return lambda *flags: gen_profiler_data.main([str(flag) for flag in flags])


@pytest.fixture
def refused(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs the script with flags that it refuses; the only line on stderr."""

    def line(*flags: object, status: int = 2) -> str:
        assert run(*flags) == status
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1
        assert lines[0].startswith(("error: ", "interrupted; "))
        return lines[0]

    return line


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--only", "linea"), "linea"),
        (("--max_size", "big"), "big"),
        (("--budget_minutes", "nan"), "--budget_minutes"),
        (("--timeout_s", "-1"), "--timeout_s"),
        (("--ranks_per_domain", "3"), "--ranks_per_domain"),
        (("--tp", "1,0", "--model", TINY), "--tp"),
        (("--tp", "3,7", "--model", TINY), "divisor of the heads: 8"),
        (("--model", "configs/none.py"), "none.py"),
        (("--from_cluster", "h200"), "unrecognized arguments: --from_cluster"),
        (("--device", "tpu"), "tpu"),
        (("--pics", "--no_pics"), "--no_pics"),
        (("--dry_run", "--smoke"), "--smoke"),
        (("--seq_len", "512"), "--seq_len = 512: only with --model"),
        (("--tp", "2"), "only with --model"),
        (("data.pt",), "data.pt"),
    ],
)
def test_bad_flags(flags: tuple[str, ...], said: str, tmp_path: Path, refused: Callable[..., str]) -> None:
    output = tmp_path / "out" / "data.pt"
    assert said in refused("--output", output, "--device", "cpu", *flags)
    assert not output.exists()


@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_a_gpu_that_is_not_there(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = refused("--device", device)
    assert "torch sees no GPU here" in said
    assert "--device cpu" in said
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    def unusable(_: int) -> None:
        raise RuntimeError("CUDA error: no kernel image is available\nCompile with TORCH_USE_CUDA_DSA")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", unusable)
    said = refused()
    assert "no kernel image is available" in said
    assert "--device cpu" in said
    assert list(tmp_path.iterdir()) == []


def test_a_rehearsal_leaves_the_default_profile_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("--device", "cpu", "--only", "host", "--no_pics") == 0
    assert "prof_data/cpu.pt" in capsys.readouterr().out
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.pt")] == ["prof_data/cpu.pt"]


def profile_of(gpu: str, origin: Origin) -> ProfileDatabase:
    sample = Sample(case=GemmCase(m=8, k=8, n=8), trials_s=(1e-6,), origin=origin)
    return ProfileDatabase(machine=MachineFacts(gpu=gpu), samples=(sample,))


UNUSABLE = ("below a file", "a folder", "no profile", "another machine")


def make_bad_output(kind: str, folder: Path) -> Path:
    """An --output that cannot be used."""
    output = folder / "data.pt"
    if kind == "below a file":
        (folder / "file").touch()
        return folder / "file" / "data.pt"
    if kind == "a folder":
        output.mkdir()
    elif kind == "no profile":
        output.write_text("hello", encoding="utf-8")
    elif kind == "empty":
        output.touch()
    elif kind == "another machine":
        save_profile(output, profile_of("H999", Origin.MEASURED))
    elif kind == "a journal of another machine":
        Journal.open(journal_path(output), "H999").close()
    elif kind == "no journal":
        journal_path(output).write_text("hello\n", encoding="utf-8")
    return output


@pytest.mark.parametrize("kind", [*UNUSABLE, "empty", "a journal of another machine", "no journal"])
def test_bad_outputs_are_refused_before_anything_is_measured(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    output = make_bad_output(kind, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    monkeypatch.setattr("profiler.profiling_run.sweep", lambda *_: pytest.fail("measured something"))
    assert tmp_path.name in refused("--device", "cpu", "--output", output)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_ctrl_c_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("profiler.profiling_run.sweep", interrupted)
    output = tmp_path / "data.pt"
    assert "--resume" in refused("--device", "cpu", "--output", output, status=130)
    assert journal_path(output).exists()


@pytest.mark.parametrize("origin", [Origin.MODELLED, Origin.MEASURED])
def test_a_profile_of_another_machine_stays_where_and_as_it_is(
    origin: Origin, tmp_path: Path, refused: Callable[..., str]
) -> None:
    output = tmp_path / "data.pt"
    save_profile(output, profile_of("H999", origin))
    before = output.read_bytes()
    said = refused("--device", "cpu", "--output", output, "--only", "host", "--no_pics")
    assert "has times of 'H999'" in said
    assert "--output" in said
    assert [path.name for path in tmp_path.iterdir()] == ["data.pt"]
    assert output.read_bytes() == before


def test_a_budget_too_short_to_measure_says_so_and_draws_nothing(
    tmp_path: Path, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "data.pt"
    assert run("--device", "cpu", "--output", output, "--budget_minutes", "0.001") == 0
    said = capsys.readouterr().out
    assert "measured in 0.0 s: nothing; " in said
    assert "remain, as the budget ran out" in said
    assert f"{output}: not written, as nothing is measured yet" in said
    assert list(tmp_path.iterdir()) == []
