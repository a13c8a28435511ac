"""What a launch runs on each host, and the lists that it reads."""

import shlex
import subprocess
from pathlib import Path

import pytest

from runner.launch.command import LOCAL, Launch, chosen_variables, read_hosts
from spec.errors import ConfigError

HOSTILE = ("run", "a b.csv", "$(touch x)", "'; touch y #", "100%", "*")


def hosts(folder: Path, text: str) -> Path:
    path = folder / "iplist"
    path.write_text(text)
    return path


def launch(**given: object) -> Launch:
    usual: dict[str, object] = {"words": ("run", "w.csv"), "environment": {}, "folder": Path("/data"), "nproc": 4}
    return Launch(**(usual | given))  # type: ignore[arg-type]


def test_every_host_runs_the_environments_own_torchrun_with_its_number() -> None:
    three = launch(hosts=("node-1", "node-2", "10.0.0.3"), python="/opt/venv/bin/python", port=29500)
    for node in range(3):
        assert shlex.join(three.torchrun(node)) == (
            f"/opt/venv/bin/python -m torch.distributed.run --nnodes=3 --node-rank={node} --master-addr=node-1 "
            "--master-port=29500 --nproc-per-node=4 -m pss run w.csv"
        )
    assert "--standalone" in launch().torchrun(0)


def test_ssh_hands_over_every_word_as_it_was_given(tmp_path: Path) -> None:
    """A shell as on the host runs the script of ssh, with a program that writes down its words."""
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\nprintf "%s\\0" "$A" "$PYTHONPATH" "$PWD" "$@" >"$OUT"\n')
    program.chmod(0o755)
    out = tmp_path / "out"
    environment = {"OUT": str(out), "A": "it's $HOME"}
    given = launch(
        words=HOSTILE,
        hosts=("node-1", "node-2"),
        python=str(program),
        folder=tmp_path,
        project=Path("/pro ject"),
        environment=environment,
    )
    words = given.ssh(1)
    assert words[0] == "ssh"
    assert words[-3:-1] == ["--", "node-2"]
    assert {"BatchMode=yes", "ConnectTimeout=10"} <= set(words)
    with subprocess.Popen(["sh", "-c", words[-1]], stdin=subprocess.PIPE, env={"PYTHONPATH": "/mine"}) as ran:
        assert ran.wait() == 0
    received = out.read_text().split("\0")[:-1]
    assert received[:3] == ["it's $HOME", "/pro ject:/mine", str(tmp_path)]
    assert tuple(received[-6:]) == HOSTILE


def test_a_host_ends_its_ranks_when_the_launcher_is_gone(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\ntrap "exit 5" TERM\necho began\nwhile true; do sleep 0.05; done\n')
    program.chmod(0o755)
    script = launch(python=str(program), folder=tmp_path).script(0)
    pipe = subprocess.PIPE
    with subprocess.Popen(["sh", "-c", script], stdin=pipe, stdout=pipe, text=True) as ran:
        assert ran.stdout is not None
        assert ran.stdout.readline() == "began\n"
        assert ran.poll() is None
        assert ran.stdin is not None
        ran.stdin.close()
        assert ran.wait(20) == 5


def test_hosts_are_those_of_the_list_without_the_excluded(tmp_path: Path) -> None:
    path = hosts(tmp_path, "# racks\nnode-1\n\n10.0.0.2  # spare\nnode-3\n")
    assert read_hosts(path) == ("node-1", "10.0.0.2", "node-3")
    assert read_hosts(path, ["10.0.0.2"]) == ("node-1", "node-3")


@pytest.mark.parametrize(
    ("text", "excluded", "said"),
    [
        ("node-1; touch x\n", (), "hosts = 'node-1; touch x': one host name or address a line"),
        ("-oProxyCommand=x\n", (), "one host name or address a line"),
        ("# none\n", (), "at least one host"),
        ("a\nb\na\n", (), "hosts = 'a': each host once"),
        ("a\nb\n", ("c",), r"--exclude = 'c': a host of .*iplist"),
        ("a\n", ("a",), "hosts = 'a': at least one host"),
    ],
)
def test_lists_that_cannot_be_used(tmp_path: Path, text: str, excluded: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_hosts(hosts(tmp_path, text), excluded)


def test_variables_are_given_or_taken_from_here() -> None:
    here = {"NCCL_IB_HCA": "mlx5", "NCCL_DEBUG": "INFO", "HOME": "/me"}
    assert chosen_variables(["NCCL_*", "NCCL_DEBUG=WARN", "A="], here) == {
        "NCCL_DEBUG": "WARN",
        "NCCL_IB_HCA": "mlx5",
        "A": "",
    }
    for wrong in ("UCX_*", "A B=1", "=1"):
        with pytest.raises(ConfigError, match="--env"):
            chosen_variables([wrong], here)


@pytest.mark.parametrize("words", [(), ("search",)])
def test_only_programs_of_ranks_are_launched(words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="one of profile, links, run, train"):
        launch(words=words)


def test_this_machine_alone_needs_no_host() -> None:
    assert launch().hosts == (LOCAL,)
