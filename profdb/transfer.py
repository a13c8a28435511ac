"""Times measured on one GPU, scaled to another according to their bound.

SimAI (Wang et al., NSDI 2025, "SimAI-CP") scales a compute-bound operation by the ratio of peak FLOP/s,
a memory-bound one by the ratio of memory rates, and keeps latency. ``by_model`` uses the ratio of the modelled times
of the case on both hardware specs (tiles, waves, power limit, exponentials, launch). It assumes that the model's error
on the source is also its error on the target.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from profdb.cases import FAMILY_OF, AttentionCase, Case, GemmCase, GroupedGemmCase, HostCase, MemoryBoundCase
from profdb.fits.families import FITTERS
from profdb.modelled.case_times import modelled_seconds
from profdb.modelled.cost_model import ModelledCostModel
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from spec.arrays import FloatArray
from spec.cluster.cluster import ClusterSpec, GpuSpec
from spec.origin import Origin

# Fitted: 1.48 x the median error of GEMM and attention times restated A100 -> H100 and H100 -> B200
# (aiconfigurator's tables; benchmarks/modelled_accuracy.py).
BY_MODEL_STD = 0.2


def by_model(cases: Sequence[Case], seconds: FloatArray, source: ClusterSpec, target: ClusterSpec) -> FloatArray:
    """Returns ``seconds`` on the target, by the ratio of modelled times; host costs are unchanged.

    Raises ConfigError when either hardware spec cannot model a case.
    """
    here = modelled_seconds(ModelledCostModel(cluster=source), cases)
    there = modelled_seconds(ModelledCostModel(cluster=target), cases)
    host = np.array([isinstance(case, HostCase) for case in cases], dtype=np.bool_)
    ratio = np.where(host, 1.0, there / here)
    return np.asarray(seconds * ratio, dtype=np.float64)


def transferred_profile(profile: ProfileDatabase, source: ClusterSpec, target: ClusterSpec) -> ProfileDatabase:
    """Returns the samples of a profile restated for the GPU of another cluster, without its curves.

    Each good sample has its case and its scaled trials; its origin becomes TRANSFERRED (a modelled one stays
    MODELLED). Left out: failed samples, host costs, families without curves (clocks settle on the GPU itself) and
    formats in which the target does not compute.
    """
    # Failed samples are left out: another GPU may have the memory for them.
    good = [sample for sample in profile.samples if sample.status == "ok" and _can_run(sample.case, target.gpu)]
    ones = np.ones(len(good))
    ratios = by_model([sample.case for sample in good], ones, source, target) if good else ones
    samples = [_restate(sample, float(ratio), source) for sample, ratio in zip(good, ratios, strict=True)]
    machine = MachineFacts(
        gpu=target.gpu.name,
        memory_bytes=int(target.gpu.memory_bytes),
        nodes=profile.machine.nodes,
        gpus_per_node=target.gpus_per_node,
        date=profile.machine.date,
        cluster=target.name,
    )
    return ProfileDatabase(machine=machine, samples=samples)


def _restate(sample: Sample, ratio: float, source: ClusterSpec) -> Sample:
    return replace(
        sample,
        trials_s=tuple(trial * ratio for trial in sample.trials_s),
        origin=max(sample.origin, Origin.TRANSFERRED),
        launched={**sample.launched, "transferred_from": source.gpu.name},
    )


def _can_run(case: Case, gpu: GpuSpec) -> bool:
    """Returns whether the GPU has what the case computes in; a host is not the GPU's, and what has no curve is no time."""
    if isinstance(case, HostCase) or FAMILY_OF[type(case)] not in FITTERS:
        return False
    if isinstance(case, GemmCase | GroupedGemmCase):
        return case.dtype_in in gpu.peak_flops
    if isinstance(case, AttentionCase):
        return case.dtype in gpu.peak_flops
    return not isinstance(case, MemoryBoundCase) or case.dtype in ("fp32", *gpu.peak_flops)
