"""What the main command refuses before it loads a profile."""

from pathlib import Path

import pytest

import simulation_train_formulaic as command
from spec.errors import ConfigError
from tests.test_main_command import CONFIG, PROFILE, changed, refused


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rank": "11"}, "--rank"),
        ({"run_all_solu": None, "rank": "2"}, "1 to 1"),
        ({"framework": "deepspeed", "config": "configs/7B_llama2.py", "plan": "tp=0"}, "--plan"),
        ({"json": CONFIG}, "another file than that of --config"),
        ({"export_simai": PROFILE}, "another file than that of --pre_profiling_data_path"),
        ({"export_simai": "w.txt", "plan": "pp=2,schedule=zb-v"}, "those of schedule zb-v are not"),
        ({"export_bundle": "b", "plan": "pp=2,schedule=dualpipe"}, "those of schedule dualpipe are not"),
        ({"csv": "a.txt", "export_trace": "./a.txt"}, "another file than that of --csv"),
    ],
)
def test_what_needs_no_profile_is_refused_before_one_is_loaded(
    options: dict[str, str | None], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(path: Path) -> None:
        raise AssertionError(f"{path} was loaded")

    monkeypatch.setattr("solver.problem.request.load_profile", load)
    words = changed(**{"model_size": None, **{key: value for key, value in options.items() if key != "run_all_solu"}})
    if "run_all_solu" in options or "plan" in options:
        words.remove("--run_all_solu")
    refused(words, capsys, said)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"world_size": "12"}, "a multiple of 8"),
        ({"framework": "megatron", "export_internevo": "i.py"}, "--framework internevo"),
        ({"framework": "megatron", "config": "configs/7B_MoE4_sft.py", "export_megatron": "m.txt"}, "biases"),
    ],
)
def test_what_needs_the_cluster_alone_is_refused_before_a_search(
    options: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr("solver.api.Session.search")
    refused(changed(**{"model_size": None, **options}), capsys, said)


@pytest.mark.parametrize(
    "plan", ["pp=4,vpp=2,schedule=zb-h1", "pp=4,vpp=3,schedule=dualpipe", "pp=4,schedule=dualpipe-v"]
)
def test_a_schedule_without_an_order_on_such_stages_is_refused(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = changed(plan=plan)
    words.remove("--run_all_solu")
    refused(words, capsys, "--plan: schedule = ")


def test_an_unknown_schedule_is_refused_as_such_beside_an_export(capsys: pytest.CaptureFixture[str]) -> None:
    words = changed(plan="pp=2,schedule=zb", export_simai="w.txt")
    words.remove("--run_all_solu")
    refused(words, capsys, "schedule = 'zb'")


def test_why_a_plan_cannot_run_is_told_before_the_search(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also what has no order of work, or no world, is refused then."""

    def never(*_: object, **__: object) -> None:
        raise ConfigError(where="search", key="began", value=True, allowed="later")

    monkeypatch.setattr("solver.analysis.best_plans.best_plans", never)
    assert command.main([*changed(), "--why_not", "strategy=mtp,tp=16,pp=4"]) == 2
    printed = capsys.readouterr()
    assert "mtp tp16 pp4 dp2 mb1x512 cannot run: kv heads do not divide by tp" in printed.out
    assert "search: began" in printed.err
    assert command.main([*changed(), "--why_not", "tp=1,pp=7"]) == 2
    assert "--why_not: tensor x pipeline x context = 7" in capsys.readouterr().err
