"""What a launch runs on each host: torchrun of one Python environment, in one folder, with the same words everywhere."""

import fnmatch
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spec.errors import ConfigError
from spec.files import MAX_FILE_BYTES, UnreadableFileError, read_file_text

PROGRAMS = ("profile", "links", "run", "train", "workload")
"""Verbs of pss that run on ranks; ``workload suite`` is one of the last."""
HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LOCAL = ""
"""The host of a launch on this machine alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """``words`` after ``pss`` (``profile --budget_minutes 20``) on ``nproc`` ranks of each of ``hosts``, in ``folder``, by
    the interpreter ``python``; ``project`` is where pss is imported from. Ranks meet at ``port`` of the first host."""

    words: tuple[str, ...]
    hosts: tuple[str, ...] = (LOCAL,)
    nproc: int = 8
    port: int = 29400
    python: str = "python"
    folder: Path = Path()
    project: Path = Path()
    environment: Mapping[str, str]

    def __post_init__(self) -> None:
        if not self.words or self.words[0] not in PROGRAMS:
            raise ConfigError(
                where="launch",
                key="program",
                value=" ".join(self.words[:1]),
                allowed=f"one of {', '.join(PROGRAMS)} after --, with its options",
            )

    def torchrun(self, node: int) -> list[str]:
        """The words of torchrun on a host. Ranks are numbered in the order of the hosts."""
        if self.hosts == (LOCAL,):
            nodes = ["--standalone"]
        else:
            nodes = [f"--nnodes={len(self.hosts)}", f"--node-rank={node}"]
            nodes += [f"--master-addr={self.hosts[0]}", f"--master-port={self.port}"]
        program = [f"--nproc-per-node={self.nproc}", "-m", "pss", *self.words]
        return [self.python, "-m", "torch.distributed.run", *nodes, *program]

    def script(self, node: int) -> str:
        """What a shell of a host runs: torchrun, until it ends or its input does, as when the launcher is gone."""
        return (
            f"cd {shlex.quote(str(self.folder))} || exit 3; exec 3<&0; {self.exports()}"
            f"{shlex.join(self.torchrun(node))} </dev/null & ran=$!; "
            '{ cat <&3; kill "$ran"; } >/dev/null 2>&1 & wait "$ran"'
        )

    def exports(self) -> str:
        """Shell commands that set the ranks' environment variables."""
        path = f'export PYTHONPATH={shlex.quote(str(self.project))}"${{PYTHONPATH:+:$PYTHONPATH}}"; '
        return path + "".join(f"export {name}={shlex.quote(value)}; " for name, value in self.environment.items())

    def ssh(self, node: int) -> list[str]:
        """The words of ssh for a host."""
        return ssh_words(self.hosts[node], self.script(node))


def ssh_words(host: str, script: str) -> list[str]:
    """The words of ssh that run a shell script on a host; a host that is gone is noticed within 15 s."""
    options = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3")
    settings = [word for option in options for word in ("-o", option)]
    return ["ssh", *settings, "--", host, f"sh -c {shlex.quote(script)}"]


def read_hosts(path: Path, excluded: Iterable[str] = ()) -> tuple[str, ...]:
    """The hosts of a list, one a line, without those ``excluded``; blank lines and comments (#) are skipped.

    Raises ConfigError for a line that is no host, a host listed twice, an excluded host that is not listed, and for no
    hosts at all.
    """
    try:
        lines = [line.partition("#")[0].strip() for line in read_file_text(path, MAX_FILE_BYTES).splitlines()]
    except UnreadableFileError as error:
        raise _invalid(path, path.name, f"a file of one host a line ({error})") from error
    hosts = [line for line in lines if line]
    for place, host in enumerate(hosts):
        if not HOST.fullmatch(host):
            raise _invalid(path, host, "one host name or address a line")
        if host in hosts[:place]:
            raise _invalid(path, host, "each host once")
    unknown = [host for host in excluded if host not in hosts]
    if unknown:
        raise ConfigError(where="command line", key="--exclude", value=unknown[0], allowed=f"a host of {path}")
    remaining = tuple(host for host in hosts if host not in set(excluded))
    if not remaining:
        raise _invalid(path, ", ".join(hosts), "at least one host")
    return remaining


def _invalid(path: Path, value: str, allowed: str) -> ConfigError:
    return ConfigError(where=str(path), key="hosts", value=value, allowed=allowed)


def chosen_variables(words: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Variables for the ranks: ``NAME=VALUE``, or a pattern (``NCCL_*``) of those that are set here.

    Raises ConfigError for a name that is none, and for a pattern that matches nothing.
    """
    chosen: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            found = {name: value} if VARIABLE.fullmatch(name) else {}
        else:
            found = {key: environ[key] for key in sorted(environ) if fnmatch.fnmatchcase(key, name)}
        if not found:
            allowed = "NAME=VALUE, or a pattern of variables that are set here (NCCL_*)"
            raise ConfigError(where="command line", key="--env", value=word, allowed=allowed)
        chosen |= found
    return chosen
