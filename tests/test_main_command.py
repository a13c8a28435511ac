"""The main command as a new user meets it: the answer, and one clear line for every mistake."""

import io
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import simulation_train_formulaic as command
from tests.solver.questions import ROOT

PROFILE = str(ROOT / "prof_data" / "data.pt")
CONFIG = str(ROOT / "configs" / "7B_internlm2.py")
SHIPPED = f"--pre_profiling_data_path {PROFILE} --config {CONFIG}".split()
MAIN = [*SHIPPED, *["--run_all_solu", "--model_size", "7", "--world_size", "128", "--global_batch_size", "4194304"]]


def asked(world_size: int, global_batch_tokens: int = 262144, *more: str) -> list[str]:
    """A question about the shipped model in the shipped profile."""
    return [*SHIPPED, "--world_size", str(world_size), "--global_batch_size", str(global_batch_tokens), *more]


def changed(**options: str | None) -> list[str]:
    """The main command with options replaced, or left out where None."""
    words = list(MAIN)
    for name, value in options.items():
        flag = f"--{name}"
        if flag in words:
            at = words.index(flag)
            del words[at : at + 2]
        if value is not None:
            words += [flag, value]
    return words


def test_the_main_command_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "answer.json"
    table = tmp_path / "answer.csv"
    assert command.main([*MAIN, "--json", str(out), "--csv", str(table), "--top_k", "3"]) == 0
    printed = capsys.readouterr().out
    answer = json.loads(out.read_text())
    best = answer["best"][0]
    assert best["plan"]["strategy"] in printed
    for key in ("algo_type", "seq_len", "micro_num", "micro_bsz", "pp_size", "tp_size", "wp_size", "zp_size"):
        assert f"'{key}'" in printed
    assert "'activation_ckpt'" in printed
    assert "tokens/s a GPU" in printed
    assert "MFU" in printed
    assert best["tgs"] == pytest.approx(4194304 / 128 / best["step_s"])
    assert best["device_bytes"] < 141 * 2**30
    assert sum(best["origins_s"].values()) == pytest.approx(best["step_s"])
    assert len(table.read_text().splitlines()) == 1 + 3
    sequences = best["plan"]["dp"] * best["plan"]["micro_batch"] * best["plan"]["num_micro"]
    assert sequences * 4096 == 4194304


def test_json_on_standard_output_is_all_that_stands_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SHIPPED, "--world_size", "128", "--csv", str(tmp_path / "plan.csv"), "--json", "-"]
    assert command.main(words) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["world_size"] == 128
    assert "msp tp8 dp16 zero16 mb4x16" in printed.err
    assert f"wrote {tmp_path / 'plan.csv'}" in " ".join(printed.err.split())


def test_without_run_all_solu_the_written_plan_is_priced(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*SHIPPED, "--world_size", "128"]) == 0
    printed = capsys.readouterr().out
    # configs/7B_internlm2.py: tensor 8 in msp mode, micro_bsz 4, micro_num 16, ZeRO over all 16.
    assert "msp tp8 dp16 zero16 mb4x16" in printed


def test_a_plan_that_does_not_fit_says_by_how_much(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(asked(8, 4194304, "--plan", "strategy=mtp,tp=1,micro_batch=64")) == 3
    assert "not feasible: needs " in capsys.readouterr().out


def test_a_strategy_that_a_framework_lacks_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Its default of shards is larger than that framework's groups: refused as well, and priced without a warning."""
    words = "--config configs/7B_internlm2.py --world_size 16 --global_batch_size 1048576 --framework megatron"
    assert command.main([*words.split(), "--plan", "strategy=isp,tp=4"]) == 3
    said = capsys.readouterr()
    assert "not feasible: megatron does not run isp" in said.out
    assert "not feasible: zero_size does not divide the data-parallel ranks" in said.out


def test_typed_modules_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    def activations(plan: str) -> str:
        assert command.main(asked(16, 262144, "--framework", "megatron", "--verbose", "--plan", plan)) == 0
        return capsys.readouterr().out.split("activations ")[1].split(",")[0]

    assert float(activations("tp=2,recompute_modules=mlp")) < float(activations("tp=2"))


def test_a_module_that_no_layer_has_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "model.toml"
    source = (ROOT / "configs" / "7B_gpt.toml").read_text()
    config.write_text(source.replace("[plan]", '[plan]\nrecompute_modules = "attention"'))
    words = asked(8, 2097152, "--config", str(config), "--seq_len", "2048", "--plan", "tp=1")
    refused(words, capsys, "recompute_modules")


def test_an_empty_plan_is_no_plan(capsys: pytest.CaptureFixture[str]) -> None:
    refused(asked(8, 262144, "--plan", ""), capsys, "--plan")


@pytest.mark.usefixtures("quick_pictures")
def test_export_and_heatmap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simai, maps = tmp_path / "w.txt", tmp_path / "maps"
    words = asked(16, 65536, "--plan", "strategy=fsp,tp=4,pp=2,zero_size=2,micro_batch=1", "--export_simai", str(simai))
    assert command.main([*words, "--draw_heatmap", "--draw_heatmap_path", str(maps)]) == 0
    assert simai.read_text().startswith("HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 4 ")
    beyond = json.loads((tmp_path / "w.txt.beyond.json").read_text())
    # InternEvo returns parameters by broadcast, for which the format has no word.
    assert [one["what"] for one in beyond] == ["step.dense_parameters", "pipeline transfers"]
    assert "not in the SimAI file: pipeline transfers" in capsys.readouterr().err
    names = {path.name for path in maps.iterdir()}
    assert {"traffic_tp.npy", "traffic_tp.png", "traffic_pp.npy"} <= names
    assert command.main([*words, "--strict_export"]) == 2


def test_bundle_and_every_stage(tmp_path: Path) -> None:
    words = asked(16, 65536, "--plan", "strategy=fsp,tp=4,pp=2,zero_size=2,micro_batch=1")
    words += ["--export_simai", str(tmp_path / "w.txt"), "--stage", "all"]
    assert command.main([*words, "--export_bundle", str(tmp_path / "bundle")]) == 0
    # The first stage holds the embedding and the last one the head: two files.
    assert {"w-stage0.txt", "w-stage1.txt"} <= {path.name for path in tmp_path.iterdir()}
    names = {path.name for path in (tmp_path / "bundle").iterdir()}
    assert {"workload.txt", "busbw.yaml", "run_simai.sh", "README.md"} <= names
    assert command.main([*words[:-1], "7"]) == 2


@pytest.mark.parametrize("world", ["1", "2", pytest.param("4", marks=pytest.mark.nightly)])
def test_below_one_node_is_fine(world: str) -> None:
    tiny = str(ROOT / "configs" / "tiny_internlm2.py")
    words = changed(world_size=world, global_batch_size="65536", config=tiny, model_size=None, framework="megatron")
    assert command.main(words) == 0


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"global_batch_size": "4194305"}, "global_batch_size"),
        ({"global_batch_size": "0"}, "global_batch_size"),
        ({"world_size": "0"}, "world_size"),
        ({"cluster": "tpu-v5"}, "tpu-v5"),
        ({"framework": "jax"}, "framework"),
        ({"model_size": "70"}, "model_size"),
        ({"model_size": "huge"}, "model_size"),
        ({"config": "nowhere.py"}, "nowhere.py"),
        ({"config": "Makefile"}, "Makefile"),
        ({"top_k": "0"}, "top_k"),
        ({"json": "/nowhere/at/all.json"}, "output path"),
        ({"csv": "/"}, "output path"),
        ({"export_bundle": CONFIG}, "output folder"),
        ({"report": CONFIG}, "output folder"),
        ({"missing": "guess"}, "missing"),
        ({"pre_profiling_data_path": "nowhere.pt"}, "nowhere.pt"),
        ({"config": None, "model_size": None}, "--config"),
        ({"world_size": None}, "world_size"),
        ({"seq_len": "0"}, "seq_len"),
        ({"plan": "tp=2"}, "--plan"),
        ({"config": "configs/tiny_internlm2.py", "model_size": None, "rank": "0"}, "--rank"),
    ],
)
def test_bad_options(options: dict[str, str | None], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused(changed(**options), capsys, word)


def test_heads_that_do_not_divide(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "configs" / "odd.py"
    config.parent.mkdir()
    config.write_text(
        "model = dict(num_layers=2, hidden_size=100, num_attention_heads=7, vocab_size=1000, mlp_ratio=4)\n"
        "data = dict(seq_len=128, micro_num=1, micro_bsz=1)\n"
    )
    refused(changed(config=str(config), model_size=None), capsys, "num_attention_heads")


def torch_file() -> bytes:
    buffer = io.BytesIO()
    torch.save({"weights": torch.zeros(3)}, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a profile",
        pickle.dumps({"format": "training-profile"}),
        Path(PROFILE).read_bytes()[:5000],
        torch_file(),
    ],
    ids=["empty", "text", "pickle", "truncated", "another torch file"],
)
def test_damaged_profiles(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "data.pt"
    path.write_bytes(content)
    refused(changed(pre_profiling_data_path=str(path)), capsys, str(path))


def refused(words: list[str], capsys: pytest.CaptureFixture[str], naming: str) -> None:
    """Exit code 2 and one line on stderr that names what is wrong."""
    assert command.main(words) == 2
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("error: ")
    assert naming in lines[0]
    assert "Traceback" not in captured.err


def test_a_failed_run_leaves_the_old_result(tmp_path: Path) -> None:
    out = tmp_path / "answer.json"
    out.write_text("old")
    assert command.main([*changed(world_size="12"), "--json", str(out)]) == 2
    assert out.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["answer.json"]


def test_ctrl_c_exits_130_without_a_traceback(tmp_path: Path) -> None:
    words = [sys.executable, str(ROOT / "simulation_train_formulaic.py"), *MAIN]
    words += ["--json", str(tmp_path / "answer.json")]
    run = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    # Wait for the first printed line: the search has begun.
    assert run.stdout is not None
    assert os.read(run.stdout.fileno(), 1)
    time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


def test_a_typed_offload_is_priced_exported_and_refused_without_a_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simai, flags = tmp_path / "w.txt", tmp_path / "flags"
    words = asked(8, 262144, "--framework", "megatron")
    plan = ["--plan", "zero_stage=1,optimizer_offload=0.5,offloaded_layers=4"]
    outputs = ["--export_simai", str(simai), "--export_megatron", str(flags)]
    assert command.main([*words, *plan, *outputs]) == 0
    assert "in the host's memory" in " ".join(capsys.readouterr().out.split())
    beyond = {one["what"]: one for one in json.loads((tmp_path / "w.txt.beyond.json").read_text())}
    names = {"step.host_gradients", "step.host_parameters", "activations_to_host", "activations_from_host"}
    assert names <= beyond.keys()
    assert beyond["step.host_gradients"]["total_bytes"] == 2 * beyond["step.host_parameters"]["total_bytes"]
    assert "--optimizer-offload-fraction 0.5" in flags.read_text()
    bare = tmp_path / "bare.toml"
    text = (ROOT / "configs" / "clusters" / "h200.toml").read_text()
    bare.write_text(re.sub(r"\[host\][^\[]*", "", re.sub(r'"host" = .*', "", text)))
    refused([*words, *plan, "--cluster", str(bare)], capsys, "host")
