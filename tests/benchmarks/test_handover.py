"""Handing exports to the parsers of checkouts, here made up: what they refuse is said, and what is none of one."""

import re
from pathlib import Path

import pytest

from benchmarks import handover
from spec.program.command import exit_status

MEGATRON = '''
"""Takes every flag, and no pipeline of four stages."""
import argparse
import triton  # a stand-in
from megatron.training import get_args  # without the start-up code of megatron.training


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pipeline-model-parallel-size", type=int)
    return parser.parse_known_args()[0]


def validate_args(args):
    assert args.pipeline_model_parallel_size != 4, "four stages are too many"
    return args


def core_transformer_config_from_args(args):
    return args
'''
LAUNCH = """
import transformers  # a stand-in
from internlm.core.context import global_context as gpc


def args_sanity_check():
    assert gpc.config.model.num_layers != 2, "two layers are too few"
    gpc.config.data.pack_sample_into_one
"""
CONTEXT = """
class Config(dict):
    def __getattr__(self, name):
        return Config(self[name]) if isinstance(self[name], dict) else self[name]

    @staticmethod
    def from_file(path):
        names = {}
        exec(open(path).read(), names)
        return Config({key: value for key, value in names.items() if not key.startswith("__")})


class Context:
    def load_config(self, config):
        self.config = config


global_context = Context()
"""
REGISTRY = """
class Llama:
    def __init__(self, **keys):
        assert "rope_base" in keys


class Registry:
    def has(self, name):
        return True

    def get_module(self, module_name):
        assert module_name == "INTERNLM2_PUBLIC", module_name
        return Llama


model_initializer = Registry()
"""


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for parent in path.relative_to(folder).parents[:-1]:
            (folder / parent / "__init__.py").touch()
        path.write_text(text)
    return folder


@pytest.fixture(autouse=True)
def _two_configs_and_four_plans(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    # The parsers of these checkouts use nothing of torch, which takes four seconds to import.
    stub = written(tmp_path_factory.mktemp("stub"), {"torch/_dynamo.py": ""})
    (stub / "torch" / "__init__.py").write_text("import types\ncuda = types.SimpleNamespace()\n")
    monkeypatch.setenv("PYTHONPATH", str(stub))
    chosen = [handover.ROOT / "configs" / name for name in ("tiny_internlm2.py", "7B_gpt.toml")]
    monkeypatch.setattr(handover, "shipped_configs", lambda: chosen)


def test_what_a_parser_refuses_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkout = written(tmp_path, {"megatron/training/arguments.py": MEGATRON})
    (tmp_path / "megatron/training/__init__.py").write_text("raise RuntimeError('start-up code')")
    assert handover.main(["--framework", "megatron", str(checkout), "--draws", "24"]) == 1
    shown = capsys.readouterr().out.splitlines()
    refusals = [line for line in shown if line.endswith("AssertionError: four stages are too many")]
    assert refusals
    assert all(" pp4 " in line for line in refusals)
    drawn, missing, taken, of, models = (int(word) for word in re.findall(r"(?<![\d.])(\d+)(?= |,)", shown[-1]))
    assert (drawn - missing, of - taken, models) == (of, len(refusals), 2)
    assert taken > 0


def test_a_config_that_is_taken_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        "internlm/initialize/launch.py": LAUNCH,
        "internlm/core/context.py": CONTEXT,
        "internlm/model/registry.py": REGISTRY,
    }
    assert handover.main(["--framework", "internevo", str(written(tmp_path, files)), "--draws", "4"]) == 0
    shown = capsys.readouterr().out
    assert "no file of a model: 7B_gpt: InternEvo has no setting for other than rotary positions" in shown
    assert "refused" not in shown


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "a folder that holds megatron/training/arguments.py"),
        pytest.param({"megatron/training/arguments.py": "1 +"}, "parser runs", marks=pytest.mark.nightly),
    ],
)
def test_a_folder_that_is_no_checkout_is_one_line(
    files: dict[str, str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_status(lambda: handover.main(["--framework", "megatron", str(written(tmp_path, files))])) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
