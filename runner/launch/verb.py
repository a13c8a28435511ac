"""The verbs ``launch`` and ``preflight``: their options, what runs them, and a launch as a batch script of Slurm or as a
manifest of Kubernetes."""

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from runner.launch.command import LOCAL, PROGRAMS, Launch, chosen_variables, read_hosts
from runner.launch.hosts import run_on_hosts
from runner.launch.preflight import preflight
from spec.errors import ConfigError
from spec.files import atomic_file
from spec.program.command import comma_separated, non_empty, whole
from spec.program.kinds import MOST_GPUS

MOST_PORT = 65535
MOST_RANKS_OF_A_NODE = 1024


def add_hosts(verb: argparse.ArgumentParser) -> None:
    """The options that say where: those of every verb that starts ranks."""
    where = verb.add_argument_group("where to run (default: this machine)")
    where.add_argument("--hosts", type=Path, help="file of one host a line, reached by ssh; the first has rank 0")
    names = comma_separated(non_empty)
    where.add_argument("--exclude", type=names, default=(), help="hosts to leave out: node-3,node-7")
    where.add_argument("--nproc", type=whole(1, MOST_RANKS_OF_A_NODE), default=8, help="ranks of a host (default 8)")
    where.add_argument("--port", type=whole(1, MOST_PORT), default=29400, help="where ranks meet (default 29400)")
    where.add_argument("--python", default=sys.executable, help="interpreter on every host (default: this one)")
    variables = "variables of the ranks: NAME=VALUE, or 'NCCL_*' as set here"
    where.add_argument("--env", action="append", default=[], help=variables)


def add_launch(verb: argparse.ArgumentParser) -> None:
    """All options of ``launch``."""
    verb.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="-- PROGRAM ...", help=f"{', '.join(PROGRAMS)}, with its options"
    )
    add_hosts(verb)
    by = verb.add_argument_group("by a scheduler instead of ssh")
    by.add_argument("--slurm", action="store_true", help="submit a batch script (sbatch), or run it inside a job")
    by.add_argument("--kubernetes", type=Path, metavar="FILE", help="write a PyTorchJob for kubectl apply -f FILE")
    by.add_argument("--nodes", type=whole(1, MOST_GPUS), help="nodes, of --slurm and --kubernetes")
    by.add_argument("--image", help="container image with Python and the project, of --kubernetes")
    by.add_argument("--volume", action="append", default=[], metavar="CLAIM=PATH", help="volume claim, and its folder")
    verb.add_argument("--dry_run", action="store_true", help="print what each host would run, and start nothing")
    verb.add_argument("--no_preflight", action="store_true", help="start without a look at the hosts")


def launch_of(options: argparse.Namespace, words: list[str]) -> Launch:
    """The launch of the words on the hosts that the options of ``add_hosts`` name. Raises ConfigError as read_hosts and
    chosen_variables."""
    hosts = read_hosts(options.hosts, options.exclude) if options.hosts else (LOCAL,)
    return Launch(
        words=tuple(words),
        hosts=hosts,
        nproc=options.nproc,
        port=options.port,
        python=options.python,
        folder=Path.cwd(),
        project=Path(__file__).resolve().parents[2],
        environment=chosen_variables(options.env, os.environ),
    )


def launch(options: argparse.Namespace, _: Path) -> int:
    """Starts a program on all hosts, or hands it to a scheduler."""
    words = options.program[options.program[:1] == ["--"] :]
    _check(options)
    started = launch_of(options, words)
    if options.kubernetes:
        return _write_manifest(options, started)
    if options.slurm:
        return _submit(slurm_script(started, options.nodes or 1, options.exclude), dry_run=options.dry_run)
    if options.dry_run:
        for node, host in enumerate(started.hosts):
            print(f"{host or 'this host'}: {started.script(node)}")
        return 0
    if not options.no_preflight and started.hosts != (LOCAL,) and not preflight(started):
        return 2
    return run_on_hosts(started).status


def look(options: argparse.Namespace, _: Path) -> int:
    """Prints the state of all hosts; status 1 if one of them cannot take part."""
    return int(not preflight(launch_of(options, [PROGRAMS[0]])))


def _check(options: argparse.Namespace) -> None:
    """Raise ConfigError for options that belong to another way to launch."""
    scheduled = bool(options.slurm or options.kubernetes)
    wrong = [
        ("hosts", options.hosts and scheduled, "not with --slurm or --kubernetes, which choose the hosts"),
        ("slurm", options.slurm and options.kubernetes, "not with --kubernetes"),
        ("nodes", options.nodes and not scheduled, "only with --slurm or --kubernetes; --hosts has its own"),
        ("nodes", options.kubernetes and not options.nodes, "a number of nodes with --kubernetes"),
        ("image", options.kubernetes and not options.image, "a container image with --kubernetes"),
        ("image", options.image and not options.kubernetes, "only with --kubernetes"),
        ("volume", options.volume and not options.kubernetes, "only with --kubernetes"),
        ("exclude", options.exclude and not (scheduled or options.hosts), "with --hosts, --slurm or --kubernetes"),
    ]
    for name, is_wrong, allowed in wrong:
        if is_wrong:
            raise ConfigError(where="launch", key=f"--{name}", value=getattr(options, name), allowed=allowed)


def _write_manifest(options: argparse.Namespace, started: Launch) -> int:
    claims = []
    for text in options.volume:
        claim, equals, place = text.partition("=")
        if not (claim and equals and place.startswith("/")):
            raise ConfigError(where="launch", key="--volume", value=text, allowed="CLAIM=/PATH")
        claims.append((claim, place))
    manifest = kubernetes_manifest(started, options.nodes, options.image, claims, options.exclude)
    if options.dry_run:
        print(manifest, end="")
        return 0
    with atomic_file(options.kubernetes) as handle:
        handle.write(manifest)
    print(f"wrote {options.kubernetes}: kubectl apply -f {options.kubernetes}")
    return 0


def _submit(script: str, *, dry_run: bool) -> int:
    """Hands a batch script to Slurm; inside a job it runs here."""
    if dry_run:
        print(script, end="")
        return 0
    words = ["sh"] if "SLURM_JOB_ID" in os.environ else ["sbatch"]
    try:
        return subprocess.run(words, input=script, text=True, check=False).returncode
    except FileNotFoundError as error:
        raise ConfigError(where="launch", key="--slurm", value=words[0], allowed="a machine that has sbatch") from error


# A launch as a batch script of Slurm, or as a manifest of Kubernetes.

SHARED_MEMORY = "shm"


def slurm_script(launch: Launch, nodes: int, excluded: Sequence[str]) -> str:
    """The batch script that runs a launch, one task a rank (profiler.distributed.rank_layout reads Slurm's variables)."""
    settings = [f"--job-name=pss-{launch.words[0]}", f"--nodes={nodes}", f"--ntasks-per-node={launch.nproc}"]
    settings += [f"--gpus-per-node={launch.nproc}", f"--output=pss-{launch.words[0]}-%j.out"]
    settings += [f"--exclude={','.join(excluded)}"] if excluded else []
    run = ["srun", "--distribution=block", "--kill-on-bad-exit=1", launch.python, "-m", "pss", *launch.words]
    lines = ["#!/bin/sh", *(f"#SBATCH {setting}" for setting in settings)]
    lines += [f"cd {shlex.quote(str(launch.folder))} || exit 3", launch.exports().strip("; ")]
    return "\n".join([*lines, f"exec {shlex.join(run)}", ""])


def kubernetes_manifest(
    launch: Launch, nodes: int, image: str, claims: Sequence[tuple[str, str]], excluded: Sequence[str]
) -> str:
    """The manifest of a PyTorchJob (kubeflow.org/v1), as JSON, which kubectl takes as it takes YAML.

    Its elastic policy makes the operator hand torchrun its nodes and rendezvous (PET_* variables; kubeflow/trainer, release
    1.9, pkg/controller.v1/pytorch/elastic.go). ``claims`` are (volume claim, where it is mounted): without one
    results go with the pod.
    """
    volumes: list[dict[str, object]] = [{"name": SHARED_MEMORY, "emptyDir": {"medium": "Memory"}}]
    mounts = [{"name": SHARED_MEMORY, "mountPath": "/dev/shm"}]
    for claim, place in claims:
        volumes.append({"name": claim, "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": claim, "mountPath": place})
    variables = {"PYTHONPATH": str(launch.project), **launch.environment}
    container = {
        "name": "pytorch",  # the name that the operator looks for
        "image": image,
        "workingDir": str(launch.folder),
        "command": [
            *(launch.python, "-m", "torch.distributed.run", f"--nproc-per-node={launch.nproc}"),
            *("-m", "pss", *launch.words),
        ],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "resources": {"limits": {"nvidia.com/gpu": launch.nproc}},
        "volumeMounts": mounts,
    }
    pod: dict[str, object] = {"containers": [container], "volumes": volumes}
    if excluded:
        pod["affinity"] = _elsewhere(excluded)
    worker = {"replicas": nodes, "restartPolicy": "Never", "template": {"spec": pod}}
    elastic = {"rdzvBackend": "c10d", "minReplicas": nodes, "maxReplicas": nodes, "maxRestarts": 0}
    manifest = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": f"pss-{launch.words[0]}"},
        "spec": {
            "nprocPerNode": str(launch.nproc),
            "elasticPolicy": elastic,
            "pytorchReplicaSpecs": {"Worker": worker},
        },
    }
    return json.dumps(manifest, indent=2) + "\n"


def _elsewhere(excluded: Sequence[str]) -> dict[str, object]:
    """The node affinity that keeps pods off nodes."""
    expression = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(excluded)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
