"""The schemas in docs/schemas are those of today's tables and types, and real answers and configs keep them.

``--update-golden`` writes the files anew.
"""

import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import simulation_train_formulaic
from solver.report.schema import answer_schema, schemas
from spec.errors import ConfigError
from spec.settings.plan import plan_settings

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "docs" / "schemas"
ASKED = (
    "--config configs/8B_llama3.py --cluster h100-sxm --framework megatron --global_batch_size 524288 "
    "--fix cp=1,vpp=1,micro_batch=1 --modes fsp --no_recompute --world_size "
)
SEARCHED = f"{ASKED} 8 --run_all_solu --top_k 2"
# Every key that a record may have is in one of these.
COMMANDS = {
    "search": f"{SEARCHED} --explain rank=1 --why_not strategy=mtp,tp=2 --compare rank=1 rank=2 --tokens 1T --goodput",
    "priced": f"{ASKED} 8 --plan strategy=fsp,tp=2,zero_stage=1 --tokens 1T --price_per_gpu_hour 2",
    "sweep": f"{ASKED} 16 --every_node_count --min dp=16 --run_all_solu --tokens 1T --goodput",
}


def validator(schema: dict[str, Any]) -> Any:
    """What holds values against a schema that is one."""
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema (requirements-dev.txt) is not installed")
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@cache
def held(name: str) -> Any:
    return validator(schemas()[name])


def answered(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What --json writes for a command."""
    monkeypatch.chdir(ROOT)
    assert simulation_train_formulaic.main([*command.split(), "--json", str(folder / "a.json")]) in (0, 3)
    return json.loads((folder / "a.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", schemas())
def test_files_are_current(name: str, request: pytest.FixtureRequest) -> None:
    text = json.dumps(schemas()[name], indent=1, allow_nan=False) + "\n"
    path = FOLDER / f"{name}.schema.json"
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


def test_every_file_has_its_schema() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{one}.schema.json" for one in schemas()}


@pytest.mark.parametrize("shape", COMMANDS)
def test_an_answer_keeps_its_schema(shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is of its own shape, of no other, and a key more or less is noticed."""
    record = answered(COMMANDS[shape], tmp_path, monkeypatch)
    assert list(held("answer").iter_errors(record)) == []
    schema = answer_schema()
    for name in COMMANDS:
        alone = {"$ref": f"#/$defs/{name}", "$defs": schema["$defs"]}
        assert validator(alone).is_valid(record) == (name == shape)
    assert not held("answer").is_valid(record | {"more": 1})
    first = next(iter(record))
    assert not held("answer").is_valid({key: value for key, value in record.items() if key != first})


def test_a_run_that_never_ends_is_valid_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is interrupted every 4 s, with restarts of 10 minutes: no share of the time trains."""
    record = answered(f"{COMMANDS['priced']} --goodput --mtbf_gpu_hours 0.001", tmp_path, monkeypatch)
    assert record["goodput"]["effective"] == 0.0
    assert [record["run"][name] for name in ("seconds", "gpu_hours", "price", "energy_kwh")] == [None] * 4
    assert held("answer").is_valid(record)


@pytest.mark.nightly
def test_what_if_keeps_its_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = answered(f"{SEARCHED} --sensitivity", tmp_path, monkeypatch)
    assert record["sensitivity"]
    assert held("answer").is_valid(record)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda path: path.stem)
def test_tables_of_configs_keep_theirs(path: Path) -> None:
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    for name in ("plan", "job", "constraints"):
        assert list(held(name).iter_errors(tables.get(name, {}))) == []


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("plan", {"tp": 0}),
        ("plan", {"tp": True}),
        ("plan", {"tq": 1}),
        ("plan", {"strategy": "magic"}),
        ("plan", {"recompute_modules": ["all"]}),
        ("job", {"dropout": "yes"}),
        ("job", {"precision": {"gradient": "fp7"}}),
        ("job", {"world": 8}),
        ("constraints", {"headroom": 1}),
        ("constraints", {"fix": {"tp": "8"}}),
        ("constraints", {"max": {"strategy": "mtp"}}),
    ],
)
def test_what_the_readers_refuse_the_schema_refuses(name: str, table: dict[str, Any], tmp_path: Path) -> None:
    from spec.readers.toml_config import read_toml_config

    assert not held(name).is_valid(table)
    config = (ROOT / "configs" / "7B_gpt.toml").read_text(encoding="utf-8")
    others = config.split("\n[plan]")[0] if name == "plan" else config
    (tmp_path / "x.toml").write_text(others + "\n" + "\n".join(toml_lines(name, table)), encoding="utf-8")
    with pytest.raises(ConfigError):
        read_toml_config(tmp_path / "x.toml")


def toml_lines(name: str, table: dict[str, Any]) -> list[str]:
    """A table of plain values as TOML."""
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    lines = [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in plain.items())]
    for key, value in table.items():
        lines += toml_lines(f"{name}.{key}", value) if isinstance(value, dict) else []
    return lines


def test_a_plan_says_all_its_keys() -> None:
    plan = answer_schema()["$defs"]["plan"]
    assert set(plan["required"]) == {*plan_settings(), "dp"}
