"""Why the winner wins: where its time goes, and what each other mode's best pays more."""

from collections.abc import Mapping
from math import sqrt

from solver.interval import EIGHTY_PERCENT
from solver.report.tables import PART_TITLES
from solver.result import Answer
from spec.units import seconds_to_ms

COMPUTE_PARTS = ("gemm", "grouped_gemm", "attention", "memory_bound")
PART_WORDS: dict[str, str] = {
    "gemm": "matrix products",
    "grouped_gemm": "expert matrix products",
    "attention": "attention",
    "memory_bound": "memory-bound kernels",
    "tp_comm": "waiting for tensor-parallel communication",
    "cp_comm": "waiting for context-parallel communication",
    "ep_comm": "waiting for expert all-to-alls",
    "wp_comm": "waiting for gathered weights",
    "dp_comm": "waiting for gradients and parameters of data parallelism",
    "pp_comm": "waiting for pipeline transfers",
    "bubble": "pipeline bubble",
    "optimizer": "the optimizer",
    "offload": "waiting for the host's memory and its part of the update",
    "host": "kernel launches",
}


def where_the_time_goes(answer: Answer) -> str:
    """The largest parts of the step in words."""
    compute = sum(answer.parts_s[part] for part in COMPUTE_PARTS)
    shares = sorted(answer.parts_s.items(), key=lambda item: -item[1])
    shown = ", ".join(
        f"{PART_WORDS[part]} {100 * seconds / answer.step_s:.1f} %"
        for part, seconds in shares
        if seconds >= 0.002 * answer.step_s
    )
    return f"{100 * compute / answer.step_s:.1f} % of the step computes: {shown}"


def difference(winner: Answer, other: Answer) -> str:
    """What the other plan pays more and what it saves, in ms."""
    deltas = {part: other.parts_s[part] - winner.parts_s[part] for part in PART_TITLES}
    worth_saying = 0.0005 * winner.step_s
    dearer = sorted((d, part) for part, d in deltas.items() if d > worth_saying)[::-1][:3]
    cheaper = sorted((d, part) for part, d in deltas.items() if d < -worth_saying)[:2]
    slower = other.step_s / winner.step_s - 1.0
    pays = ", ".join(f"{PART_WORDS[part]} +{seconds_to_ms(d):.1f} ms" for d, part in dearer)
    saves = ", ".join(f"{PART_WORDS[part]} {seconds_to_ms(d):.1f} ms" for d, part in cheaper)
    words = f"{other.plan.label()} is {100 * slower:.1f} % slower"
    if pays:
        words += f": {pays}"
    if saves:
        words += f" (against {saves})"
    return words + TIE * tied(winner, other)


TIE = "; a tie: within the 80 % interval of their difference"


def tied(one: Answer, other: Answer) -> bool:
    """Whether the steps of two plans differ by less than the 80 % interval of their difference."""
    return abs(other.step_s - one.step_s) < EIGHTY_PERCENT * paired_error_s(one, other)


def paired_error_s(one: Answer, other: Answer) -> float:
    """Standard error of the difference of two plans: what both take from one family of curves errs alike
    and cancels."""
    families = one.errors_s.keys() | other.errors_s.keys()
    return sqrt(sum((one.errors_s.get(f, 0.0) - other.errors_s.get(f, 0.0)) ** 2 for f in families))


def why(winner: Answer, best_of_mode: Mapping[str, Answer]) -> list[str]:
    """Sentences: the winner's time, then every other mode's best against it."""
    lines = [where_the_time_goes(winner)]
    lines += [
        difference(winner, answer) for mode, answer in best_of_mode.items() if mode != winner.plan.strategy
    ]
    return lines
