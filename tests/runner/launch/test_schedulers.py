"""Batch scripts of Slurm, and manifests held against the schema of Kubeflow's training operator."""

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import run_workload
from runner.launch.command import Launch
from runner.launch.verb import kubernetes_manifest, slurm_script

LAUNCH = Launch(
    words=("train", "--config", "a b.py"),
    nproc=8,
    python="/opt/venv/bin/python",
    folder=Path("/data"),
    project=Path("/opt/solver"),
    environment={"NCCL_DEBUG": "WARN"},
)

TEXT, WHOLE = {"type": "string"}, {"type": "integer"}


def closed(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """An object of these properties alone: the API server drops others without a word."""
    return {"type": "object", "properties": properties, "additionalProperties": False, "required": list(required)}


def several(one: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": one, "minItems": 1}


QUANTITY = {"anyOf": [WHOLE, TEXT]}
EXPRESSION = closed(("key", "operator"), key=TEXT, operator={"enum": ["In", "NotIn"]}, values=several(TEXT))
AFFINITY = closed(
    nodeAffinity=closed(
        requiredDuringSchedulingIgnoredDuringExecution=closed(
            ("nodeSelectorTerms",), nodeSelectorTerms=several(closed(matchExpressions=several(EXPRESSION)))
        )
    )
)
CONTAINER = closed(
    ("name",),
    name={"const": "pytorch"},
    image=TEXT,
    workingDir=TEXT,
    command=several(TEXT),
    env=several(closed(("name",), name=TEXT, value=TEXT)),
    resources=closed(limits={"type": "object", "additionalProperties": QUANTITY}),
    volumeMounts=several(closed(("name", "mountPath"), name=TEXT, mountPath=TEXT)),
)
VOLUME = closed(
    ("name",),
    name=TEXT,
    emptyDir=closed(medium={"enum": ["", "Memory"]}),
    persistentVolumeClaim=closed(("claimName",), claimName=TEXT),
)
POD = closed(("containers",), affinity=AFFINITY, containers=several(CONTAINER), volumes=several(VOLUME))
REPLICA = closed(replicas=WHOLE, restartPolicy={"enum": ["Always", "OnFailure", "Never"]}, template=closed(spec=POD))
ELASTIC = closed(minReplicas=WHOLE, maxReplicas=WHOLE, maxRestarts=WHOLE, rdzvBackend=TEXT)
SCHEMA = closed(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "kubeflow.org/v1"},
    kind={"const": "PyTorchJob"},
    metadata=closed(("name",), name={"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}),
    spec=closed(
        ("pytorchReplicaSpecs",),
        elasticPolicy=ELASTIC,
        nprocPerNode=TEXT,
        pytorchReplicaSpecs=closed(Master=REPLICA, Worker=REPLICA),
    ),
)
"""Of kubeflow/trainer, release 1.9, manifests/base/crds/kubeflow.org_pytorchjobs.yaml: names, types and what is required, as
far as our manifests go; the enumerations are those of its descriptions."""


def manifest(**given: Any) -> dict[str, Any]:
    usual = {"nodes": 4, "image": "registry/solver:1", "claims": [("results", "/data")], "excluded": ["node-3"]}
    made: dict[str, Any] = json.loads(kubernetes_manifest(LAUNCH, **(usual | given)))
    return made


@pytest.mark.parametrize("given", [{}, {"claims": [], "excluded": []}])
def test_a_manifest_is_what_the_operator_takes(given: dict[str, Any]) -> None:
    jsonschema.validate(manifest(**given), SCHEMA)


def test_a_manifest_says_what_runs_where() -> None:
    spec = manifest()["spec"]
    pod = spec["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    (container,) = pod["containers"]
    assert spec["pytorchReplicaSpecs"]["Worker"]["replicas"] == spec["elasticPolicy"]["minReplicas"] == 4
    assert container["command"] == [
        *("/opt/venv/bin/python", "-m", "torch.distributed.run", "--nproc-per-node=8"),
        *("-m", "pss", "train", "--config", "a b.py"),
    ]
    assert {one["name"]: one["value"] for one in container["env"]} == {
        "PYTHONPATH": "/opt/solver",
        "NCCL_DEBUG": "WARN",
    }
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert {one["mountPath"] for one in container["volumeMounts"]} == {"/dev/shm", "/data"}
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
    assert "node-3" in json.dumps(pod["affinity"])


def test_a_batch_script_runs_a_task_a_gpu(tmp_path: Path) -> None:
    script = slurm_script(LAUNCH, nodes=4, excluded=["node-3", "node-7"])
    settings = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]
    assert {"--nodes=4", "--ntasks-per-node=8", "--gpus-per-node=8", "--exclude=node-3,node-7"} <= set(settings)
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\nprintf "%s\\n" "$NCCL_DEBUG" "$PYTHONPATH" "$@"\n')
    srun.chmod(0o755)
    here = script.replace("/data", str(tmp_path))
    ran = subprocess.run(
        ["sh"], input=here, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines() == [
        *("WARN", "/opt/solver", "--distribution=block", "--kill-on-bad-exit=1", "/opt/venv/bin/python", "-m", "pss"),
        *("train", "--config", "a b.py"),
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--slurm", "--hosts", "x"], "--hosts"),
        (["--slurm", "--kubernetes", "k.json"], "--slurm"),
        (["--nodes", "2"], "--nodes"),
        (["--kubernetes", "k.json", "--image", "i"], "--nodes"),
        (["--kubernetes", "k.json", "--nodes", "2"], "--image"),
        (["--kubernetes", "k.json", "--nodes", "2", "--image", "i", "--volume", "data"], "--volume"),
        (["--image", "i"], "--image"),
        (["--exclude", "a"], "--exclude"),
        (["--port", "99999"], "--port"),
        (["--nproc", "0"], "--nproc"),
    ],
)
def test_options_of_another_way_to_launch_are_refused(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_workload.main(["launch", *words, "--", "run", "w.csv"]) == 2
    line = capsys.readouterr().err
    assert said in line
    assert line.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_dry_run_prints_what_each_host_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("iplist").write_text("node-1\nnode-2\n")
    assert run_workload.main(["launch", "--hosts", "iplist", "--nproc", "2", "--dry_run", "--", "run", "w.csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["node-1", "node-2"]
    assert all(f"--node-rank={node}" in line and "-m pss run w.csv" in line for node, line in enumerate(lines))
    words = ["launch", "--kubernetes", "k.json", "--nodes", "2", "--image", "i", "--", "run", "w.csv"]
    assert run_workload.main(words) == 0
    jsonschema.validate(json.loads(Path("k.json").read_text()), SCHEMA)
    assert capsys.readouterr().out == "wrote k.json: kubectl apply -f k.json\n"
    assert run_workload.main(["launch", "--slurm", "--nodes", "2", "--dry_run", "--", "run", "w.csv"]) == 0
    assert "#SBATCH --nodes=2" in capsys.readouterr().out
