"""Answers as tables a person can read."""

from collections.abc import Sequence

from ops.recompute.layers import Recompute
from profdb.sample import ProfileDatabase
from solver.cluster_times import ClusterTimes
from solver.model_flops import counts_whole_attention, logged_tflops
from solver.plans.space import NO_CONSTRAINTS
from solver.question import Question
from solver.result import Answer
from solver.search import SearchResult
from spec.job import JobSpec
from spec.origin import ORIGIN_NAMES
from spec.parameters import num_parameters
from spec.readers.config_flags import assumed_lines
from spec.settings.constraints import Constraints
from spec.settings.job import settings_apart
from spec.settings.setting import typed
from spec.units import bytes_to_gib, seconds_to_ms

PART_TITLES: dict[str, str] = {
    "gemm": "gemm",
    "grouped_gemm": "experts",
    "attention": "attn",
    "memory_bound": "mem-bound",
    "tp_comm": "tp",
    "cp_comm": "cp",
    "ep_comm": "ep",
    "wp_comm": "wp",
    "dp_comm": "dp",
    "pp_comm": "pp",
    "bubble": "bubble",
    "optimizer": "optim",
    "offload": "offload",
    "host": "host",
}


def table(rows: Sequence[Sequence[str]], header: Sequence[str]) -> str:
    """Columns aligned, the first to the left and the others to the right."""
    everything = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in everything) for i in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in everything
    ]
    lines.insert(1, "-" * max(len(line) for line in lines))
    return "\n".join(lines)


def plans_table(answers: Sequence[Answer]) -> str:
    """One line a plan: step, throughput, memory, and every part of the step in ms."""
    parts = [
        part for part in PART_TITLES if any(answer.parts_s[part] > 1e-9 * answer.step_s for answer in answers)
    ]
    header = [
        "plan",
        "step ms",
        "80 % interval",
        "TGS",
        "MFU %",
        "GiB",
        *(PART_TITLES[part] for part in parts),
        "origin",
    ]
    rows = [
        [
            answer.label(),
            f"{seconds_to_ms(answer.step_s):.1f}",
            f"{seconds_to_ms(answer.interval_low_s):.1f}..{seconds_to_ms(answer.interval_high_s):.1f}",
            f"{answer.tgs:.0f}",
            f"{100 * answer.mfu:.1f}",
            f"{bytes_to_gib(answer.needed_bytes):.1f}",
            *(f"{seconds_to_ms(answer.parts_s[part]):.1f}" for part in parts),
            origin_words(answer),
        ]
        for answer in answers
    ]
    return table(rows, header)


def used_line(answer: Answer, question: Question) -> str:
    """Model-FLOP utilisation, of which peak, how it counts attention, and what the framework's log would say."""
    precision = question.job.precision
    linear = f", of {precision.linear} for linear layers" if precision.linear != precision.compute else ""
    counted = (
        "counts the whole attention matrix, causal or not (PaLM's convention)"
        if counts_whole_attention(question.model, question.job)
        else "counts what causal masks leave of the attention matrix, as the sequence is long"
    )
    logged = logged_tflops(question.model, question.job, answer.plan.recompute, answer.step_s)
    log = question.job.preset.log
    said = "" if logged is None else f"; {question.job.preset.name} would log {logged:.1f} TFLOP/s a GPU"
    if log.attention == "half":
        said += ", of a causal matrix half"
    if log.repeats and answer.plan.recompute is not Recompute.NONE:
        said += ", with what runs again"
    return f"{100 * answer.mfu:.1f} % of the dense peak of {precision.compute}{linear}; {counted}{said}"


def memory_line(answer: Answer) -> str:
    """The named terms of the worst stage in GiB, largest first."""
    terms = sorted(answer.memory_bytes.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{name} {bytes_to_gib(size):.2f}" for name, size in terms if size >= 2**20)
    return (
        f"needs {bytes_to_gib(answer.needed_bytes):.1f} GiB: "
        f"{bytes_to_gib(answer.allocated_bytes):.1f} allocated ({shown}); where there is room "
        f"{bytes_to_gib(answer.reserved_bytes):.1f} reserved, {bytes_to_gib(answer.device_bytes):.1f} on the device"
        + (f"; {bytes_to_gib(answer.host_bytes):.1f} in the host's memory" if answer.host_bytes else "")
    )


def origin_words(answer: Answer) -> str:
    """Whole per cents of the step by origin, largest first."""
    shares = sorted(((s / answer.step_s, name) for name, s in answer.origins_s.items()), reverse=True)
    return " ".join(f"{name} {100 * share:.0f}%" for share, name in shares if share >= 0.005)


def origin_line(answer: Answer) -> str:
    """Share of the step by where its seconds come from."""
    shares = [
        f"{name} {100 * answer.origins_s[name] / answer.step_s:.1f} %"
        for name in ORIGIN_NAMES
        if answer.origins_s.get(name, 0.0) > 0
    ]
    return ", ".join(shares)


def internlm_dict(answer: Answer, job: JobSpec) -> dict[str, object]:
    """The plan under the forebear's keys."""
    plan = answer.plan
    return {
        "algo_type": plan.strategy,
        "seq_len": job.seq_len,
        "micro_num": plan.num_micro,
        "micro_bsz": plan.micro_batch,
        "pp_size": plan.pp,
        "tp_size": plan.tp,
        "wp_size": plan.wp,
        "zp_size": plan.zero_size,
        "activation_ckpt": plan.recompute is Recompute.FULL,
        **({"ckpt_layers": plan.num_recompute_layers} if plan.recompute is Recompute.BLOCK else {}),
    }


def question_lines(
    question: Question,
    times: ClusterTimes,
    *,
    assumed_framework: bool = False,
    constraints: Constraints = NO_CONSTRAINTS,
) -> str:
    """What is asked and demanded, which framework is meant or assumed, which settings differ from its own,
    and which data answers.
    """
    model, job, cluster = question.model, question.job, question.cluster
    count = num_parameters(model)
    nodes = cluster.nodes_for(job.world_size)
    lines = [
        f"model    {model.name}: {count.total:,} parameters, {model.num_layers} layers, hidden {model.hidden}",
        *assumed_lines(model),
        f"job      {job.global_batch_tokens:,} tokens a step ({job.global_batch_sequences:,} sequences of "
        f"{job.seq_len:,}), {job.preset.name} preset"
        + " (assumed; --framework names another)"
        * assumed_framework,
        *settings_lines(question),
        *(f"asked    {'; '.join(said)}" for said in [constraints.words()] if said),
        f"cluster  {cluster.name}: {job.world_size} x {cluster.gpu.name} on {nodes} node{'s' * (nodes > 1)}",
        f"profile  {times.source or profile_words(times.profile)}",
        *sustained_lines(question),
    ]
    return "\n".join(lines)


def sustained_lines(question: Question) -> list[str]:
    """What products hold of their benchmark rate, where the profile measured it; else it is the sheet's."""
    ratios = question.pricer.sustained.ratios
    said = ", ".join(f"{ratio:.1%} in {dtype}" for dtype, ratio in sorted(ratios.items()))
    return [f"clocks   products hold {said} of their benchmark rate (measured)"] if said else []


def settings_lines(question: Question) -> list[str]:
    """The settings that are not the framework's own, if any."""
    apart = settings_apart(question.job, question.cluster.gpu.architecture)
    said = ", ".join(f"{key}={typed(value)}" for key, value in apart.items())
    return [f"settings {said}"] if said else []


def profile_words(profile: ProfileDatabase) -> str:
    """Machine, date and number of samples by origin."""
    counts: dict[str, int] = {}
    for family in profile.tables.values():
        for code in family.origin.tolist():
            name = ORIGIN_NAMES[code]
            counts[name] = counts.get(name, 0) + 1
    shown = ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items(), key=lambda i: -i[1]))
    machine = profile.machine
    return f"{machine.gpu} ({machine.date or 'undated'}): {shown} samples"


def rejected_table(result: SearchResult) -> str:
    """Plans by the reason that removed them."""
    rows = [
        [reason, f"{count:,}"] for reason, count in sorted(result.rejected.items(), key=lambda item: -item[1])
    ]
    return table(rows, ["rejected because", "plans"])


def search_line(result: SearchResult) -> str:
    """How much was looked at, and how fast what is feasible was priced. Plans that a rule rejects in bulk count as
    seen, but not in the rate."""
    rate = result.num_priced / result.seconds
    return (
        f"{result.num_seen:,} plans seen, {result.num_priced:,} feasible ones priced and the best of them proven "
        f"in {result.seconds:.2f} s ({rate:,.0f} feasible plans/s)"
    )
