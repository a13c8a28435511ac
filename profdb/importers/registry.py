"""The forms in which measurements of other tools are read: a line a form."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from profdb.importers.aicb_log import read_aicb_log
from profdb.importers.generic_csv import read_curves_csv
from profdb.importers.nccl_tests import read_nccl_tests
from profdb.importers.vidur import read_vidur_folder
from profdb.sample import Sample
from profdb.store.journal import read_journal


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file or folder, and what the form may need beside it: ``domain_ranks`` GPUs of a scale-up domain, 0
    where the file says so itself."""

    path: Path
    domain_ranks: int = 0


Importer = Callable[[Source], dict[str, list[Sample]]]
"""Samples by the GPU name that the source gives ("" where it gives none); raises ProfileError."""


def _journal(source: Source) -> dict[str, list[Sample]]:
    """What a profiling run that did not end has measured."""
    recorded = read_journal(source.path)
    return {recorded.gpu: list(recorded.samples)}


IMPORTERS: Mapping[str, Importer] = {
    "csv": lambda source: read_curves_csv(source.path),
    "nccl-tests": lambda source: read_nccl_tests(source.path, domain_ranks=source.domain_ranks),
    "aicb-log": lambda source: read_aicb_log(source.path, domain_ranks=source.domain_ranks),
    "journal": _journal,
    "vidur": lambda source: {"": read_vidur_folder(source.path)},
}
