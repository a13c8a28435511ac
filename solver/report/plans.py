"""Sections about one question's plans: the question, the ranking, where the time goes, memory, what was rejected."""

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from ops.recompute import Recompute
from profdb.sample import ProfileDatabase
from solver.memory.device import likelihood_words, retries_words, usable_bytes
from solver.plans.simplicity import switches_beyond
from solver.problem.cluster_times import ClusterTimes
from solver.problem.interval import Evidence
from solver.problem.loading import LoadedProblem
from solver.problem.model_flops import attention_counted, logged_tflops, products
from solver.problem.problem import Problem
from solver.problem.request import SAMPLE_TOKENS
from solver.problem.result import Answer, is_tie
from solver.report.sections import ReportSection, Table
from spec.files import shipped_folder
from spec.origin import ORIGIN_NAMES
from spec.parameters import num_parameters
from spec.settings.constraints import NO_CONSTRAINTS, Constraints
from spec.settings.job import non_default_settings
from spec.settings.setting import setting_text
from spec.units import MIB, bytes_to_gib, seconds_to_ms

if TYPE_CHECKING:
    from solver.search import Result

COMPUTE_PARTS = ("gemm", "grouped_gemm", "attention", "memory_bound")
PART_NAMES: dict[str, tuple[str, str]] = {
    "gemm": ("gemm", "matrix products"),
    "grouped_gemm": ("experts", "expert matrix products"),
    "attention": ("attn", "attention"),
    "memory_bound": ("mem-bound", "memory-bound kernels"),
    "tp_comm": ("tp", "waiting for tensor-parallel communication"),
    "cp_comm": ("cp", "waiting for context-parallel communication"),
    "ep_comm": ("ep", "waiting for expert all-to-alls"),
    "wp_comm": ("wp", "waiting for gathered weights"),
    "dp_comm": ("dp", "waiting for gradients and parameters of data parallelism"),
    "pp_comm": ("pp", "waiting for pipeline transfers"),
    "bubble": ("bubble", "pipeline bubble"),
    "optimizer": ("optim", "the optimizer"),
    "offload": ("offload", "waiting for the host's memory and its part of the update"),
    "host": ("host", "kernel launches"),
}
"""The parts of a step: the title of a column, and words."""
PART_TITLES = {part: title for part, (title, _) in PART_NAMES.items()}
PART_WORDS = {part: words for part, (_, words) in PART_NAMES.items()}

PUBLISHED = Path("configs") / "published" / "runs.toml"
PRINTED_FRONT, PAGE_FRONT = 8, 60
"""Plans of a Pareto front in print, and on a page; --json has all."""
INTERVAL_WORDS = {
    Evidence.SPEC: "of a cluster that nothing was measured on: a profile of it (pss profile) narrows it, "
    "and a few measured steps (--calibration) more",
    Evidence.PROFILE: "of a cluster with a profile of its own; a few measured steps (--calibration) narrow it",
    Evidence.CALIBRATION: "of a cluster that was calibrated by measured steps",
}
TIE = "; a tie: within the 80 % interval of their difference"


def in_ms(seconds: float) -> str:
    """Returns milliseconds to a tenth."""
    return f"{seconds_to_ms(seconds):.1f}"


def in_gib(size_bytes: float) -> str:
    """Returns GiB to a tenth."""
    return f"{bytes_to_gib(size_bytes):.1f}"


def slower_by(answer: Answer, best: Answer) -> str:
    """Returns how much longer a plan's step takes than the best one's, in per cent with its sign."""
    return f"{100 * (answer.step_s / best.step_s - 1):+.1f} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """Plans of one question, best first, and the search that ranked them, None for a given plan."""

    inputs: LoadedProblem
    answers: tuple[Answer, ...]
    result: "Result | None" = None

    @property
    def best(self) -> Answer:
        """Returns the first plan, of which a page shows details."""
        return self.answers[0]


def question_section(
    problem: Problem, times: ClusterTimes, *, framework_origin: str = "", constraints: Constraints = NO_CONSTRAINTS
) -> ReportSection:
    """Returns the question: model, job, settings that differ from the framework's own, constraints, cluster,
    and the source of the times. ``framework_origin`` says why the framework is what it is, where no command names it."""
    model, job, cluster = problem.model, problem.job, problem.cluster
    nodes = cluster.nodes_for(job.world_size)
    settings = non_default_settings(job, cluster.gpu.architecture)
    ratios = sorted(problem.op_timer.sustained.ratios.items())
    facts = {
        "model": f"{model.name}: {num_parameters(model).total:,} parameters, {model.num_layers} layers, "
        f"hidden {model.hidden}",
        "job": f"{job.global_batch_tokens:,} tokens a step ({job.global_batch_sequences:,} sequences of "
        f"{job.seq_len:,}), {job.preset.name} preset",
        "framework": framework_origin and f"{job.preset.name}, {framework_origin}; --framework names another",
        "settings": ", ".join(f"{key}={setting_text(value)}" for key, value in settings.items()),
        "limits": "" if constraints == NO_CONSTRAINTS else "; ".join(constraints.words()),
        "cluster": f"{cluster.name}: {job.world_size} x {cluster.gpu.name} on {nodes} node{'s' * (nodes > 1)}",
        "profile": times.source or profile_words(times.profile),
        "clocks": ", ".join(f"{ratio:.1%} in {dtype}" for dtype, ratio in ratios),
    }
    if ratios:
        facts["clocks"] = f"products sustain {facts['clocks']} of their benchmark rate (measured)"
    rows = [(key, fact) for key, fact in facts.items() if fact]
    rows[1:1] = [("assumed", assumption) for assumption in model.assumptions]
    if job.task != "pretrain" and job.document_tokens == SAMPLE_TOKENS:
        rows[2:2] = [
            ("assumed", f"samples of {SAMPLE_TOKENS} tokens on average; --job document_tokens=N says another number")
        ]
    return ReportSection(anchor="question", title="The question", facts=rows)


def profile_words(profile: ProfileDatabase) -> str:
    """Returns machine, date and number of samples by origin."""
    counts = Counter(ORIGIN_NAMES[code] for table in profile.tables.values() for code in table.origin.tolist())
    samples = ", ".join(f"{count:,} {name}" for name, count in counts.most_common())
    return f"{profile.machine.gpu} ({profile.machine.date or 'undated'}): {samples} samples"


def plan_sections(plans: Plans, obstacles: Sequence[str] = ()) -> list[ReportSection]:
    """Returns the sections of one given plan, with the ``obstacles`` that keep it from running."""
    return [
        ReportSection(
            anchor="ranking",
            details=True,
            title="The plan",
            tables=(
                plans_table([plans.best], "the plan (parts of the step in ms)", mfu_convention(plans.inputs.problem)),
            ),
            record=lambda: _priced_record(plans),
        ),
        breakdown_section(plans.best, plans.inputs.problem, {}),
        *([obstacle_section(obstacles)] if obstacles else []),
        settings_section(plans.best, plans.inputs.problem),
    ]


def search_sections(plans: Plans, result: "Result") -> list[ReportSection]:
    """Returns the sections of a search: the ranking, why the best wins, step against memory, what was rejected."""
    problem, best = plans.inputs.problem, plans.best
    usable = usable_bytes(problem.cluster)
    modes = list(result.best_of_mode.values())
    return [
        ReportSection(
            anchor="ranking",
            details=True,
            title="Ranking",
            tables=(
                plans_table(
                    result.best, f"best {len(result.best)} plans (parts of the step in ms)", mfu_convention(problem)
                ),
                plans_table(modes, "best of each mode", mfu_convention(problem)),
            ),
            record=lambda: _search_record(plans, result),
        ),
        breakdown_section(best, problem, result.best_of_mode, _neighbours(result, usable, plans.inputs.constraints)),
        front_section(result, usable),
        rejected_section(result),
        settings_section(best, problem),
    ]


def mfu_convention(problem: Problem) -> str:
    """Returns the part of causal attention matrices that MFU counts: full or causal (--mfu)."""
    return attention_counted(products(problem.model, problem.job), problem.job.mfu)


def plans_table(answers: Sequence[Answer], caption: str, mfu: str, names: Sequence[str] = ()) -> Table:
    """Returns a row a plan: step, throughput, MFU by that convention, memory, and every part of the step in ms;
    ``names`` label the rows instead of the plans where they are given."""
    parts = [part for part in PART_NAMES if any(one.mean_parts_s[part] > 1e-9 * one.step_s for one in answers)]
    rows = [
        [
            name,
            in_ms(one.step_s),
            f"{in_ms(one.interval_low_s)}..{in_ms(one.interval_high_s)}",
            f"{one.tgs:.0f}",
            f"{100 * one.mfu:.1f}",
            in_gib(one.needed_bytes),
            *(in_ms(one.mean_parts_s[part]) for part in parts),
            origin_words(one),
        ]
        for name, one in zip(names or map(Answer.label, answers), answers, strict=True)
    ]
    header = ["question" if names else "plan", "step ms", "80 % interval", "TGS", f"MFU % ({mfu})", "GiB"]
    header += [*(PART_TITLES[part] for part in parts), "origin"]
    # Parts of the step go first, then MFU and throughput (which the step fixes), the interval, and memory.
    drops = (*range(len(header) - 1, 5, -1), 4, 3, 2, 5)
    return Table(caption=caption, header=header, rows=rows, words=frozenset({0, len(header) - 1}), drops=drops)


def origin_words(answer: Answer) -> str:
    """Returns whole per cents of the step by origin, largest first."""
    shares = sorted(((s / answer.step_s, name) for name, s in answer.origins_s.items()), reverse=True)
    return " ".join(f"{name} {100 * share:.0f}%" for share, name in shares if share >= 0.005)


def breakdown_section(
    best: Answer, problem: Problem, best_of_mode: Mapping[str, Answer], facts: Sequence[tuple[str, str]] = ()
) -> ReportSection:
    """Returns where the best plan's time goes and what every other mode's best pays more, then its slowest stage,
    utilisation, memory and origins, and more ``facts``."""
    compute = sum(best.mean_parts_s[part] for part in COMPUTE_PARTS)
    parts = ", ".join(
        f"{PART_WORDS[part]} {100 * seconds / best.step_s:.1f} %"
        for part, seconds in sorted(best.mean_parts_s.items(), key=itemgetter(1), reverse=True)
        if seconds >= 0.002 * best.step_s
    )
    terms = ", ".join(
        f"{name} {bytes_to_gib(size):.2f}"
        for name, size in sorted(best.memory_bytes.items(), key=itemgetter(1), reverse=True)
        if size >= MIB
    )
    limit = usable_bytes(problem.cluster)
    memory = (
        f"needs {in_gib(best.needed_bytes)} GiB of {in_gib(limit)}, {likelihood_words(best.needed_bytes, limit)}: "
        f"{in_gib(best.allocated_bytes)} allocated ({terms}); "
        f"the allocator reserves {in_gib(best.reserved_bytes)} if it can, {in_gib(best.device_bytes)} on the device"
    )
    if best.host_bytes:
        memory += f"; {in_gib(best.host_bytes)} in the host's memory"
    warning = retries_words(best.needed_bytes, best.device_bytes, limit)
    origins = (
        f"{name} {100 * best.origins_s[name] / best.step_s:.1f} %"
        for name in ORIGIN_NAMES
        if best.origins_s.get(name, 0.0) > 0
    )
    return ReportSection(
        anchor="breakdown",
        details=True,
        title="Where the time goes",
        paragraphs=[
            f"{100 * compute / best.step_s:.1f} % of the step computes: {parts}",
            *(difference(best, other) for mode, other in best_of_mode.items() if mode != best.plan.strategy),
        ],
        facts=[
            ("slowest", f"{best.slowest.words()}; the parts are of all GPUs on average"),
            ("mfu", utilisation_words(best, problem)),
            ("memory", memory),
            *([("warning", warning)] if warning else []),
            ("origin", ", ".join(origins)),
            *(("published", words) for words in published_words(problem, best)),
            ("interval", INTERVAL_WORDS[problem.evidence]),
            *facts,
        ],
    )


def published_words(problem: Problem, answer: Answer) -> list[str]:
    """Returns the steps of published runs of the same model, GPUs, batch and format of products, and whether each lies
    inside the answer's interval."""
    job = problem.job
    question = {
        "model": problem.model.name,
        "gpu": problem.cluster.gpu.name,
        "world_size": job.world_size,
        "seq_len": job.seq_len,
        "global_batch_tokens": job.global_batch_tokens,
        "linear": job.precision.linear,
    }
    runs = tomllib.loads((shipped_folder() / PUBLISHED).read_text(encoding="utf-8"))["run"]
    lines = []
    for run in (one for one in runs if question.items() <= one.items()):
        inside = answer.interval_low_s <= run["step_s"] <= answer.interval_high_s
        where = "inside" if inside else "OUTSIDE"
        lines.append(
            f"a run with a plan of its own took {in_ms(run['step_s'])} ms ({run['source']}), {where} the 80 % interval"
        )
    return lines


def difference(best: Answer, other: Answer, terms: int = 3) -> str:
    """Returns in which parts, ``terms`` at most, the other plan takes longer and in which less, in ms."""
    deltas = {part: other.mean_parts_s[part] - best.mean_parts_s[part] for part in PART_NAMES}
    worth_saying = 0.0005 * best.step_s
    dearer = sorted((d, part) for part, d in deltas.items() if d > worth_saying)[::-1][:terms]
    cheaper = sorted((d, part) for part, d in deltas.items() if d < -worth_saying)[: terms - 1]
    pays = ", ".join(f"{PART_WORDS[part]} +{in_ms(d)} ms" for d, part in dearer)
    saves = ", ".join(f"{PART_WORDS[part]} {in_ms(d)} ms" for d, part in cheaper)
    slower = 100 * (other.step_s / best.step_s - 1.0)
    words = f"{other.plan.label()} is {abs(slower):.1f} % {'slower' if slower >= 0.0 else 'faster'}"
    words += f": {pays}" if pays else ""
    words += f" (against {saves})" if saves else ""
    return words + TIE * is_tie(best, other)


def utilisation_words(answer: Answer, problem: Problem) -> str:
    """Returns model-FLOP utilisation, of which peak, how it counts attention, and what the framework's log would say."""
    precision, log = problem.job.precision, problem.job.preset.log
    linear = f", of {precision.linear} for linear layers" if precision.linear != precision.compute else ""
    counted = (
        "counts the whole attention matrix, causal or not (PaLM's convention)"
        if mfu_convention(problem) == "full"
        else "counts what causal masks leave of the attention matrix"
    )
    logged = logged_tflops(problem.model, problem.job, answer.plan.recompute, answer.step_s)
    words = "" if logged is None else f"; {problem.job.preset.name} would log {logged:.1f} TFLOP/s a GPU"
    words += ", half of a causal matrix" * (log.attention == "half")
    words += ", with recomputation" * bool(log.repeats and answer.plan.recompute is not Recompute.NONE)
    return f"{100 * answer.mfu:.1f} % of the dense peak of {precision.compute}{linear}; {counted}{words}"


def ties(best: Sequence[Answer]) -> list[int]:
    """Returns the places, from 2, of the plans whose step is within the 80 % interval of the first one's."""
    return [place for place, answer in enumerate(best[1:], start=2) if is_tie(best[0], answer)]


def _neighbours(result: "Result", usable: float, constraints: Constraints) -> list[tuple[str, str]]:
    """Returns the preset, ties within the interval, and what the memory left free would buy."""
    best, alike = result.best[0], ties(result.best)
    places = ", ".join(map(str, alike))
    plural = len(alike) > 1
    tie_words = f"plan{'s' * plural} {places} {'are' if plural else 'is'} tied with the best"
    tight = result.with_all_memory
    if tight is None:
        room = "no plan as searched is faster with every byte"
    else:
        room = (
            f"with every byte (--headroom 0): {tight.plan.label()}: {in_ms(tight.step_s)} ms "
            f"({slower_by(tight, best)}), {100 * tight.needed_bytes / usable:.0f} % full"
        )
    simple = simple_words(result)
    return [
        ("preset", best.plan.preset),
        *([("simple", simple)] if simple else []),
        ("ties", tie_words if alike else "none within the 80 % interval of the difference"),
        *([("headroom", room)] if constraints.headroom else []),
    ]


def simple_words(result: "Result") -> str:
    """Returns what the fastest plan has more than the best one, a simpler tie; "" where they are one."""
    best, faster = result.best[0], min(result.best, key=lambda one: one.step_s)
    if faster is best:
        return ""
    more = ", ".join(switches_beyond(faster.plan, best.plan))
    return (
        f"first as the simplest of its ties: plan {result.best.index(faster) + 1} ({slower_by(faster, best)}) has "
        f"more: {more} (--rank_by time)"
    )


def front_section(result: "Result", usable: float) -> ReportSection:
    """Returns the plans that no other beats in both step and memory, numbered as in their picture."""
    front = front_of(result)
    rows = [
        [
            f"{at}",
            one.plan.label(),
            in_ms(one.step_s),
            slower_by(one, result.best[0]),
            in_gib(one.needed_bytes),
            f"{100 * one.needed_bytes / usable:.0f} %",
        ]
        for at, one in enumerate(front, start=1)
    ]
    shown = Table(
        caption="step against memory: no plan is better in both",
        header=("number", "plan", "step ms", "slower", "GiB", "of memory"),
        rows=rows,
        words=frozenset({1}),
        shown=PRINTED_FRONT,
        drops=(0, 5, 3, 4),
    )
    return ReportSection(anchor="pareto", title="Step against memory", tables=(shown,), details=True)


def front_of(result: "Result") -> list[Answer]:
    """Returns the plans of the front that a page shows, fastest first."""
    return sorted(result.pareto, key=lambda one: one.step_s)[:PAGE_FRONT]


def rejected_section(result: "Result") -> ReportSection:
    """Returns plans by the reason that removed them, the nearest miss, and how fast feasible plans were priced;
    plans that a rule rejects in bulk count as seen, but not in the rate."""
    rate = result.num_priced / result.seconds
    rejected = sorted(result.rejected.items(), key=itemgetter(1), reverse=True)
    return ReportSection(
        anchor="dropped",
        details=True,
        title="Rejected plans",
        paragraphs=[
            f"{result.num_seen:,} plans seen, {result.num_priced:,} feasible ones priced, optimum proven "
            f"in {result.seconds:.2f} s ({rate:,.0f} feasible plans/s)"
        ],
        facts=[("nearest miss", result.nearest_miss)] if result.nearest_miss else (),
        tables=(
            Table(
                caption="plans rejected, by reason",
                header=("reason", "plans"),
                rows=[[reason, f"{count:,}"] for reason, count in rejected],
            ),
        ),
    )


def settings_section(answer: Answer, problem: Problem) -> ReportSection:
    """Returns the plan under InternEvo's keys."""
    plan = answer.plan
    keys = {
        "algo_type": plan.strategy,
        "seq_len": problem.job.seq_len,
        "micro_num": plan.num_micro,
        "micro_bsz": plan.micro_batch,
        "pp_size": plan.pp,
        "tp_size": plan.tp,
        "wp_size": plan.wp,
        "zp_size": plan.zero_size,
        "activation_ckpt": plan.recompute is Recompute.FULL,
        **({"ckpt_layers": plan.num_recompute_layers} if plan.recompute is Recompute.BLOCK else {}),
    }
    return ReportSection(anchor="settings", title="The plan under InternEvo's keys", literal=str(keys))


def obstacle_section(obstacles: Sequence[str]) -> ReportSection:
    """Returns why a plan cannot run."""
    facts = [("not feasible:", reason) for reason in obstacles]
    return ReportSection(anchor="obstacles", title="Why the plan cannot run", facts=facts, details=True)


def _priced_record(plans: Plans) -> dict[str, object]:
    from solver.report.files import answer_record, question_record

    return question_record(plans.inputs.problem) | {"plan": answer_record(plans.best)}


def _search_record(plans: Plans, result: "Result") -> dict[str, object]:
    from solver.report.files import answer_record, search_record

    problem = plans.inputs.problem
    return search_record(problem, result, plans.inputs.constraints) | {
        "ties": ties(result.best),
        "with_all_memory": None if result.with_all_memory is None else answer_record(result.with_all_memory),
    }
