"""Samples as lines of JSON: what a run that has not ended has measured so far.

The journal lies beside the profile (``data.pt.journal``) until the run ends and its samples are in
the profile. The first line holds the format and the GPU. A line of a case that begins stands before its
sample; one without a sample is the case that took the process with it.
"""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from profdb.cases import CASE_OF, FAMILY_OF, Case, Family
from profdb.sample import Sample, WorldShape
from spec.collectives import Collective
from spec.errors import ProfileError
from spec.files import MOST_MEASURED_BYTES, UnreadableFileError, read_file_text
from spec.origin import Origin

FORMAT = "profiling-journal 1"


def journal_path(profile: Path) -> Path:
    """Returns where the journal of a profile lies."""
    return profile.with_name(profile.name + ".journal")


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalContent:
    """A journal as read: the GPU it was taken on, its samples in order, and the case that was begun and neither
    ended nor given up."""

    gpu: str
    samples: tuple[Sample, ...]
    unended: Case | None = None


def sample_to_plain(sample: Sample) -> dict[str, Any]:
    """A sample as JSON types."""
    return {
        "family": FAMILY_OF[type(sample.case)].value,
        "case": asdict(sample.case),
        "trials_s": list(sample.trials_s),
        "status": sample.status,
        "launched": dict(sample.launched),
        "origin": int(sample.origin),
        "taken": sample.date,
        "world": asdict(sample.world),
    }


def begun_to_plain(case: Case) -> dict[str, Any]:
    """A case that begins as JSON types."""
    return {"begun": asdict(case), "family": FAMILY_OF[type(case)].value}


def case_from_plain(family: str, plain: dict[str, Any]) -> Case:
    """A case from JSON types; KeyError, TypeError or ValueError when it is none."""
    case_type = CASE_OF[Family(family)]
    values = {
        item.name: Collective(plain[item.name]) if item.type is Collective else plain[item.name]
        for item in fields(case_type)
    }
    case: Case = case_type(**values)
    return case


def sample_from_plain(plain: dict[str, Any]) -> Sample:
    """The sample that sample_to_plain wrote; KeyError, TypeError or ValueError for anything else."""
    return Sample(
        case=case_from_plain(plain["family"], plain["case"]),
        trials_s=tuple(plain["trials_s"]),
        status=plain["status"],
        launched=plain["launched"],
        origin=Origin(plain["origin"]),
        date=plain["taken"],
        world=WorldShape(**plain["world"]),
    )


def read_journal(path: Path) -> JournalContent:
    """The journal at ``path``, without an unfinished last line.

    Raises ProfileError, with the line, for anything that this program did not write.
    """
    try:
        lines = read_file_text(path, MOST_MEASURED_BYTES).split("\n")[:-1]
    except UnreadableFileError as error:
        raise ProfileError(f"{path}: {error}") from error
    samples: list[Sample] = []
    gpu = ""
    unended: Case | None = None
    for number, line in enumerate(lines, start=1):
        try:
            plain = json.loads(line)
            if number == 1:
                if plain["format"] != FORMAT:
                    raise ValueError(f"format {plain['format']!r}")
                gpu = plain["gpu"]
            elif "begun" in plain:
                unended = case_from_plain(plain["family"], plain["begun"])
            else:
                unended = None
                samples += [] if "given_up" in plain else [sample_from_plain(plain)]
        except (KeyError, TypeError, ValueError, RecursionError, ProfileError) as error:
            raise ProfileError(
                f"{path}, line {number}: not a journal of this program ({error}); move it away"
            ) from error
    return JournalContent(gpu=gpu, samples=tuple(samples), unended=unended)
