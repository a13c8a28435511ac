"""The options of ``simulate`` as a replay with our curves."""

import argparse
from dataclasses import replace
from pathlib import Path

from solver.times.op_times import Pricer
from spec.cluster.segment import segmented
from workload.aicb.generate.time_source import DEFAULT_PROFILE, TimeFlags, time_source
from workload.simai.format import SimaiWorkload
from workload.simai.replay import ReplayReport, replay_simai
from workload.simai.tokens import SimaiGroup


def replayed(options: argparse.Namespace, workload: SimaiWorkload, root: Path) -> ReplayReport:
    """The workload by the curves of --profile (default: the shipped one). Raises UserError as the readers do."""
    if options.gpus is not None:
        workload = replace(workload, header=replace(workload.header, all_gpus=options.gpus))
    source = time_source(
        TimeFlags(
            profile=options.profile or root / DEFAULT_PROFILE,
            cluster=options.cluster,
            missing=options.missing,
        ),
        root,
    )
    shares = {
        SimaiGroup.TP: options.tp_o,
        SimaiGroup.EP: options.ep_o,
        SimaiGroup.DP: options.dp_o,
        SimaiGroup.DP_EP: options.dp_o,
    }
    cluster = segmented(source.cluster, workload.header.all_gpus, options.nvlink_segment, where="simulate")
    return replay_simai(workload, Pricer.on(cluster, source.book), hidden=shares)
