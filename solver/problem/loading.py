"""From a request to a problem: the profile is loaded, or the hardware spec modelled, and the cost model made."""

from dataclasses import dataclass
from pathlib import Path

from profdb.on_demand import MeasuringDevice
from profdb.store.data_file import load_profile
from solver.problem.cluster_times import ClusterTimes, ProfileFile, times_of
from solver.problem.problem import Problem
from solver.problem.request import ParsedRequest, Request, profile_path, read_request
from spec.cluster.reader import read_cluster
from spec.errors import ProfileError
from spec.readers.config_file import ConfigFile
from spec.settings.constraints import NO_CONSTRAINTS, Constraints


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedProblem:
    """A question with the files it came from, and the times that answer it."""

    problem: Problem
    config: ConfigFile
    times: ClusterTimes
    profile_path: Path
    constraints: Constraints = NO_CONSTRAINTS

    @property
    def source(self) -> str:
        """Returns which profile or sheet answers, for an error that names it."""
        return self.times.source or str(self.profile_path)


def load_problem(request: Request) -> LoadedProblem:
    """Read everything that the request names and check that it fits together.

    Raises ConfigError or ProfileError with one clear line for anything that does not.
    """
    return load_parsed(request, read_request(request))


def load_parsed(request: Request, parsed: ParsedRequest, device: MeasuringDevice | None = None) -> LoadedProblem:
    """The question of a request that is read; ``device`` measures what no sample surrounds.

    Raises ConfigError or ProfileError for a profile or factors that do not fit it.
    """
    file = find_profile(request)
    check_cluster(file, request, parsed)
    return problem_with(request, parsed, file, times_of(file, request, parsed, device))


def problem_with(request: Request, parsed: ParsedRequest, file: ProfileFile, times: ClusterTimes) -> LoadedProblem:
    """The question of a request that is read, answered by ``times``. ConfigError for factors that do not fit it."""
    cluster = parsed.cluster
    op_timer = times.op_timer(cluster)
    calibration = None
    if request.calibration:
        from solver.problem.calibration import read_calibration

        calibration = read_calibration(request.calibration, cluster)
    return LoadedProblem(
        problem=Problem(
            model=parsed.config.model,
            job=parsed.job,
            cluster=cluster,
            op_timer=op_timer,
            calibration=calibration,
        ),
        config=parsed.config,
        times=times,
        profile_path=file.path,
        constraints=parsed.constraints,
    )


def find_profile(request: Request) -> ProfileFile:
    """The profile asked for, or the default one if that is there; ProfileError as load_profile."""
    path = profile_path(request)
    if request.profile is None and not path.exists():
        return ProfileFile(profile=None, path=path)
    return ProfileFile(profile=load_profile(path), path=path)


def check_cluster(file: ProfileFile, request: Request, parsed: ParsedRequest) -> None:
    """Raise ProfileError unless the profile as loaded is of the cluster that a glance at it said."""
    if request.cluster is None and file.profile is not None:
        taken_on = file.profile.machine.cluster
        if not taken_on or read_cluster(taken_on, root=request.root) != parsed.sheet:
            raise ProfileError(f"{file.path}: changed while it was read, or names its cluster twice; try again")
