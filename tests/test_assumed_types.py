"""``--assume``: every command that reads a model config takes it, and says what it took for granted."""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gen_profiler_data
import run_workload
import simulation_train_formulaic
from profdb.commands import show
from profiler.device import Device
from pss import plans, profile, workload
from runner.training.task import TrainRequest, read_task
from spec.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
SAID = "neo_llama is read as llama"
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 896,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "vocab_size": 1024,
}
PARSERS = {
    "simulation_train_formulaic": plans.options_parser,
    "run_workload": workload.options_parser,
    "gen_profiler_data": profile.options_parser,
    "profdb show": show.options_parser,
}


@pytest.fixture
def unknown(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "neo_llama", **SIZES}), encoding="utf-8")
    return path


def verbs(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from verbs(inner)


@pytest.mark.parametrize("program", PARSERS)
def test_what_reads_a_config_reads_it_as_another_type(program: str) -> None:
    """Of gen_profiler_data the config is ``--model``."""
    read = []
    for verb in verbs(PARSERS[program]()):
        options = {option for action in verb._actions for option in action.option_strings}
        takes = "--config" in options or (program == "gen_profiler_data" and "--model" in options)
        assert ("--assume" in options) == takes, verb.prog
        read += [verb.prog] * takes
    assert read


ASKED: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "price": (
        simulation_train_formulaic.main,
        "--plan tp=1,micro_batch=1 --cluster h100-sxm --world_size 8 --global_batch_size 8192 --seq_len 512 --config",
    ),
    "generate": (
        run_workload.main,
        "generate --world_size 8 --global_batch 8 --seq_length 512 --output w.txt --config",
    ),
    "show": (show.main, f"{ROOT}/prof_data/data.pt --seq_len 512 --config"),
}


@pytest.mark.parametrize("verb", ASKED)
def test_the_answer_says_what_was_assumed(
    verb: str, unknown: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(unknown.parent)
    main, words = ASKED[verb]
    assert main([*words.split(), str(unknown), "--assume", "llama"]) == 0
    assert SAID in "".join(capsys.readouterr())


def test_its_shapes_are_measured_first(unknown: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--device", "cpu", "--dry_run", "--seq_len", "512", "--model", str(unknown)]
    assert gen_profiler_data.main([*words, "--assume", "llama"]) == 0
    assert "tier -1:" in capsys.readouterr().out
    assert gen_profiler_data.main(words) == 2
    assert "--assume llama" in capsys.readouterr().err


def test_a_training_run_takes_it(unknown: Path) -> None:
    typed = TrainRequest(
        root=ROOT, config=unknown, plan="tp=1,micro_batch=1", micro_batches=1, seq_len=64, assume="llama"
    )
    cpu = Device(kind="cpu")
    assert read_task(typed, cpu, 1).training.model.assumptions[0].startswith(SAID)
    with pytest.raises(ConfigError, match="--assume llama"):
        read_task(
            TrainRequest(root=ROOT, config=unknown, plan="tp=1,micro_batch=1", micro_batches=1, seq_len=64), cpu, 1
        )
