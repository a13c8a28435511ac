"""Samples as lines of JSON: the results so far of a run that has not ended.

The journal is a file next to the profile (``data.pt.journal``) until the run ends and its samples are in
the profile. The first line has the format and the GPU. A line for the beginning of a case precedes its
sample. If the sample is missing, the process ended during that case.
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
    """Returns the path of a profile's journal."""
    return profile.with_name(profile.name + ".journal")


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalContent:
    """A journal as read: the GPU of its samples, the samples in order, and the case that began and neither ended nor
    was given up."""

    gpu: str
    samples: tuple[Sample, ...]
    unended: Case | None = None


def sample_to_plain(sample: Sample) -> dict[str, Any]:
    """Returns a sample as JSON types."""
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
    """Returns the line for the beginning of a case as JSON types."""
    return {"begun": asdict(case), "family": FAMILY_OF[type(case)].value}


def case_from_plain(family: str, plain: dict[str, Any]) -> Case:
    """Returns a case from JSON types; raises KeyError, TypeError or ValueError when it is none."""
    case_type = CASE_OF[Family(family)]
    values = {
        item.name: Collective(plain[item.name]) if item.type is Collective else plain[item.name]
        for item in fields(case_type)
    }
    case: Case = case_type(**values)
    return case


def sample_from_plain(plain: dict[str, Any]) -> Sample:
    """Returns the sample that sample_to_plain wrote; raises KeyError, TypeError or ValueError for anything else."""
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
    """Returns the content of the journal at ``path``, without an unfinished last line.

    Raises ProfileError, with the line, for anything that this program did not write.
    """
    try:
        # The text after the last newline is a line that was being written when the process ended, or nothing.
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
                # The first line identifies the file, and the GPU that all samples share.
                if plain["format"] != FORMAT:
                    raise ValueError(f"format {plain['format']!r}")
                gpu = plain["gpu"]
            elif "begun" in plain:
                unended = case_from_plain(plain["family"], plain["begun"])
            else:
                unended = None
                # A sample, or the remark that the case was given up, ends the case that began.
                samples += [] if "given_up" in plain else [sample_from_plain(plain)]
        except (KeyError, TypeError, ValueError, RecursionError, ProfileError) as error:
            raise ProfileError(
                f"{path}, line {number}: not a journal of this program ({error}); move it away"
            ) from error
    return JournalContent(gpu=gpu, samples=tuple(samples), unended=unended)
