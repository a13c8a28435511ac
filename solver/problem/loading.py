"""From a request to a problem: loads the profile or models the hardware spec, and makes the cost model."""

from dataclasses import dataclass
from pathlib import Path

from profdb.on_demand import MeasuringDevice
from solver.problem.cluster_times import ClusterTimes, times_of
from solver.problem.interval import Evidence
from solver.problem.problem import Problem
from solver.problem.request import ParsedRequest, ProfileFile, Request, find_profile, read_request
from spec.readers.config_file import ConfigFile
from spec.settings.constraints import NO_CONSTRAINTS, Constraints


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedProblem:
    """A problem with the files that it was read from and its times; ``source`` names their origin in errors."""

    problem: Problem
    config: ConfigFile
    times: ClusterTimes
    profile_path: Path
    source: str
    constraints: Constraints = NO_CONSTRAINTS


def load_problem(request: Request) -> LoadedProblem:
    """Returns the problem of a request.

    Raises ConfigError or ProfileError with one clear line for anything that does not fit together.
    """
    return load_parsed(request, read_request(request))


def load_parsed(request: Request, parsed: ParsedRequest, device: MeasuringDevice | None = None) -> LoadedProblem:
    """Returns the problem of a parsed request; ``device`` measures shapes far from any sample.

    Raises ConfigError or ProfileError for a profile or a calibration that does not fit it.
    """
    file = parsed.file or find_profile(request)
    return problem_with(request, parsed, file, times_of(file, request, parsed, device))


def problem_with(request: Request, parsed: ParsedRequest, file: ProfileFile, times: ClusterTimes) -> LoadedProblem:
    """Returns the problem of a parsed request with ``times``. Raises ConfigError for a calibration that does not fit it."""
    cluster = parsed.cluster
    op_timer = times.op_timer(cluster)
    # Only the profiler names the torch it ran on; what an importer read was measured on another machine.
    own = not times.source and times.profile.machine.torch and times.profile.is_measured
    evidence, calibration = Evidence.PROFILE if own else Evidence.SPEC, None
    if request.calibration:
        from solver.problem.calibration import read_calibration

        evidence, calibration = (
            Evidence.CALIBRATION,
            read_calibration(request.calibration, cluster, parsed.job.preset.name),
        )
    return LoadedProblem(
        problem=Problem(
            model=parsed.config.model,
            job=parsed.job,
            cluster=cluster,
            op_timer=op_timer,
            evidence=evidence,
            calibration=calibration,
        ),
        config=parsed.config,
        times=times,
        profile_path=file.path,
        source=times.source or str(file.path),
        constraints=parsed.constraints,
    )
