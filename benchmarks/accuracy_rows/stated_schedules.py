"""Schedules of pipelines by the names that people write."""

import re

from solver.pipeline.schedules import Schedule

INTERLEAVED = "interleaved-1f1b"
# Names without case, blanks, dashes and underscores: those of the schedules here, of torch.distributed.pipelining
# (schedules.py, get_schedule_class), of Megatron-LM and its forks, and Picotron's and nanotron's word for GPipe.
NAMES: dict[str, str] = {
    **{re.sub(r"\W", "", schedule.value): schedule.value for schedule in Schedule},
    **dict.fromkeys(
        (
            "interleaved",
            "interleaved1f1b",
            "1f1binterleaved",
            "1f1bi",
            "interleavedpipeline",
            "virtualpipeline",
        ),
        INTERLEAVED,
    ),
    "noninterleaved": Schedule.ONE_F_ONE_B.value,
    "afab": Schedule.GPIPE.value,
    "loopedbfs": Schedule.LOOPED_BFS.value,
    **dict.fromkeys(("interleavedzerobubble", "interleavedzb"), Schedule.ZB_INTERLEAVED.value),
    **dict.fromkeys(("zbv", "zbvzerobubble", "zerobubblev"), Schedule.ZB_V.value),
    "dualpipev": Schedule.DUALPIPE_V.value,
}
STATED = re.compile(
    r"(?:\b|_)schedule(?:[=:]\s?| (?!not\b|un))['\"]?((?:interleaved[ _-])?[\w-]+)(?: \((interleaved)\))?",
    re.I,
)
ALONE = re.compile(r"(?:pipeline |pp )?([\w -]+?)(?: pipeline)?(?: schedule)?", re.I)


def schedule_in(notes: str) -> str:
    """The schedule that notes name, by its value here or INTERLEAVED; a word that none is called by as it stands, "" where
    there is none."""
    stated = STATED.search(notes)
    if stated:
        word = f"{stated[2] or ''}{stated[1]}"
        return NAMES.get(_plain(word), stated[1])
    clauses = (ALONE.fullmatch(clause.strip()) for clause in notes.split(";"))
    named = (NAMES.get(_plain(found[1]), "") for found in clauses if found)
    return next((name for name in named if name), "")


def names_schedule(clause: str) -> bool:
    """Whether a clause says a schedule and nothing else."""
    stated, alone = STATED.fullmatch(re.sub(r"^pp_", "", clause.strip())), ALONE.fullmatch(clause.strip())
    found = stated or alone
    return found is not None and _plain(found[1]) in NAMES


def _plain(word: str) -> str:
    return re.sub(r"[\W_]", "", word.lower())
