"""A launch as a batch script of Slurm, or as a manifest of Kubernetes."""

import json
import shlex
from collections.abc import Sequence

from runner.launch.command import Launch

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
