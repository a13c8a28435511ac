"""How the best plan changes with one improvement of cluster or job, or under another framework: a search for each, all
else equal."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from solver.analysis.best_plans import best_of
from solver.memory.device import usable_bytes
from solver.problem.cluster_times import suits_network, without_profile
from solver.problem.loading import LoadedProblem, problem_with
from solver.problem.request import ParsedRequest, ProfileFile, Request, find_profile, read_request
from solver.problem.result import Answer
from solver.times.op_times import OpTimer
from spec.cluster.cluster import ClusterSpec
from spec.errors import ConfigError, MissingCurveError
from spec.settings.job import PRECISIONS
from spec.units import GIB

FASTER_NETWORK = 2.0
MORE_MEMORY_BYTES = 40e9
LIKELY = ("megatron", "fsdp", "deepspeed")
"""Assumption: the frameworks that most large models are trained with, in this order."""
NUM_OTHERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """A change in words; the best plan with it, and the plan that it is compared with (None for the best plan without
    the change); in words why there is none."""

    words: str
    answer: Answer | None = None
    against: Answer | None = None
    why_none: str = ""


def sensitivities(
    request: Request, parsed: ParsedRequest, inputs: LoadedProblem, tick: Callable[[], object] = lambda: None
) -> tuple[WhatIf, ...]:
    """Returns the best plans with a network between nodes twice as fast, with 40 GB more memory, and with products in
    fp8: each change alone. ``tick`` is called after each."""
    answers = []
    for change in (_faster_network, _more_memory, _fp8_products):
        answers.append(change(request, parsed, inputs))
        tick()
    return tuple(answers)


def other_frameworks(
    request: Request, parsed: ParsedRequest, inputs: LoadedProblem, tick: Callable[[], object] = lambda: None
) -> tuple[WhatIf, ...]:
    """Returns the best plans as enumerated (solver.search) under the first NUM_OTHERS of LIKELY that are not the
    question's own framework: whole searches could only shorten their steps. ``tick`` is called after each."""
    file = parsed.file or find_profile(request)
    results = []
    for name in [one for one in LIKELY if one != parsed.job.preset.name][:NUM_OTHERS]:
        results.append(best_under(name, replace(request, framework=name), file, inputs, relaxes=False))
        tick()
    return tuple(results)


def best_under(
    words: str, request: Request, file: ProfileFile, inputs: LoadedProblem, *, relaxes: bool = True
) -> WhatIf:
    """Returns the best plan of a changed request, on a profile's file and the times of the question."""
    try:
        problem = problem_with(request, read_request(request, file), file, inputs.times).problem
        return WhatIf(words=words, answer=best_of(problem, inputs.constraints, relaxes=relaxes))
    except (ConfigError, MissingCurveError) as error:
        return WhatIf(words=words, why_none=str(error))


def _faster_network(request: Request, parsed: ParsedRequest, inputs: LoadedProblem) -> WhatIf:
    """Returns the best plan with twice the bandwidth between nodes."""
    words = f"{FASTER_NETWORK:g} x the bandwidth between nodes"
    cluster = parsed.cluster
    if cluster.nodes_for(parsed.job.world_size) == 1:
        return WhatIf(words=words, why_none="one node has no network between nodes")
    if request.transfer:
        return WhatIf(words=words, why_none="not of a profile that --transfer scales")
    file = parsed.file or find_profile(request)

    def on(changed: ClusterSpec) -> Answer | None:
        times = without_profile(file, changed, missing=request.missing)
        problem = replace(inputs.problem, cluster=changed, op_timer=OpTimer.on(changed, times.cost_model))
        return best_of(problem, inputs.constraints)

    outer = cluster.domains[-1]
    faster = replace(
        cluster, domains=(*cluster.domains[:-1], replace(outer, bandwidth=FASTER_NETWORK * outer.bandwidth))
    )
    profile = file.profile
    # A measured network cannot be scaled: both networks are modelled then, so that only the change differs.
    measured = (
        profile is not None
        and profile.machine.gpu == cluster.gpu.name
        and suits_network(profile, parsed.hardware_spec, root=request.root)
    )
    if measured:
        words += " (both modelled)"
    return WhatIf(words=words, answer=on(faster), against=on(cluster) if measured else None)


def _more_memory(request: Request, parsed: ParsedRequest, inputs: LoadedProblem) -> WhatIf:
    """Returns the best plan with more memory; a user's limit grows by as much."""
    cluster = inputs.problem.cluster
    gpu = replace(cluster.gpu, memory_bytes=cluster.gpu.memory_bytes + MORE_MEMORY_BYTES)
    larger = replace(cluster, gpu=gpu)
    problem = replace(inputs.problem, cluster=larger)
    limit = GIB * inputs.constraints.memory_gib + usable_bytes(larger) - usable_bytes(cluster)
    memory_gib = limit / GIB if limit < usable_bytes(larger) else inf
    more = replace(inputs.constraints, memory_gib=memory_gib)
    return WhatIf(words="40 GB more memory a GPU", answer=best_of(problem, more))


def _fp8_products(request: Request, parsed: ParsedRequest, inputs: LoadedProblem) -> WhatIf:
    """Returns the best plan with the first fp8 recipe that the GPU supports."""
    if parsed.job.precision.linear in ("fp8", "fp4"):
        return WhatIf(words="products in fp8", why_none=f"they are in {parsed.job.precision.linear}")
    file = parsed.file or find_profile(request)
    for recipe in (name for name in PRECISIONS if "fp8" in name):
        changed = replace(request, precision=recipe)
        try:
            read_request(changed, file)
        except ConfigError:
            continue
        return best_under(f"products in fp8 ({recipe})", changed, file, inputs)
    return WhatIf(words="products in fp8", why_none=f"{parsed.cluster.gpu.name} has none")
