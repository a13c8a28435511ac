"""Import of measurements from other tools.

python -m profdb import aicb-log LOG --domain_ranks 8 --gpu NAME --into data.pt
python -m profdb import csv FILE --gpu NAME --into data.pt
python -m profdb import journal data.pt.journal --into data.pt
python -m profdb import nccl-tests LOG --gpu NAME --into data.pt

An import is merged into the profile (made when absent) and the fits are renewed. ``--gpu`` is the GPU
that the samples belong to, by any of its names in a hardware spec of configs/clusters, or by that of the profile;
it may be left out where the source names it. Of a file with several GPUs, ``--of`` selects one.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from profdb.cases import CollectiveCase
from profdb.importers.aicb_log import read_aicb_log
from profdb.importers.generic_csv import read_curves_csv
from profdb.importers.nccl_tests import read_nccl_tests
from profdb.refit import merge_into
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from profdb.store.journal import read_journal
from profdb.store.merge import Difference
from spec.cluster.reader import find_hardware_spec
from spec.errors import ProfileError
from spec.files import shipped_folder
from spec.program.command import OneLineParser, whole
from spec.program.kinds import MOST_GPUS

ROOT = shipped_folder()
PROGRAM = "python -m profdb import"


Importer = Callable[[Path, int], dict[str, list[Sample]]]
"""Samples by the GPU name that the source gives ("" where it gives none), of a path and the GPUs of a scale-up domain
(0: as the source states them); raises ProfileError."""


def _journal(path: Path, _: int) -> dict[str, list[Sample]]:
    """Returns the samples of a profiling run that did not end."""
    recorded = read_journal(path)
    return {recorded.gpu: list(recorded.samples)}


IMPORTERS: Mapping[str, Importer] = {
    "csv": lambda path, _: read_curves_csv(path),
    "nccl-tests": lambda path, domain_ranks: read_nccl_tests(path, domain_ranks=domain_ranks),
    "aicb-log": lambda path, domain_ranks: read_aicb_log(path, domain_ranks=domain_ranks),
    "journal": _journal,
}


def main(arguments: list[str], program: str = PROGRAM) -> int:
    """Parses the options, imports, and prints what was done; returns 0."""
    options = options_parser(program).parse_args(arguments)
    by_gpu = IMPORTERS[options.form](options.source, options.domain_ranks)
    named, samples = _select_gpu(by_gpu, options.of, options.source)
    gpu, spec_name = canonical_gpu(options.gpu or named, options.source)
    into: Path = options.into
    # Times of collectives belong to a network, not only to a GPU: which cluster it was, only the user knows.
    network = any(isinstance(sample.case, CollectiveCase) for sample in samples)
    machine = MachineFacts(
        gpu=gpu,
        cluster=options.cluster or ("" if network else spec_name),
        nodes=max(sample.world.nodes for sample in samples),
        gpus_per_node=max(_ranks_per_domain(sample) for sample in samples),
    )
    print("\n".join(import_lines(into, ProfileDatabase(machine=machine, samples=samples))))
    return 0


def import_lines(into: Path, new: ProfileDatabase) -> list[str]:
    """Returns what was done, in lines, once ``new`` is merged into the profile file ``into`` (made when absent) with
    new fits. Raises ProfileError when the file is of another GPU or cannot be written."""
    merged = merge_into(into, new)
    lines = [
        f"{into}: {len(new.samples) - merged.repeats} samples of {new.machine.gpu} added, "
        f"{merged.repeats} were there already"
    ]
    return lines + difference_lines(merged.differences)


def difference_lines(differences: Sequence[Difference]) -> list[str]:
    """Returns the worst ten cases whose two runs disagree."""
    return [
        f"  differs: {result.case}: {result.first_s:.3g} s, now {result.second_s:.3g} s" for result in differences[:10]
    ]


def options_parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    """Returns the parser of the options after ``program``."""
    parser = OneLineParser(prog=program, description="read another tool's measurements into a profile")
    parser.add_argument("form", choices=tuple(IMPORTERS))
    parser.add_argument("source", type=Path)
    parser.add_argument("--gpu", default="", help="GPU of the samples (default: as the source names it)")
    parser.add_argument("--of", default="", help="which GPU of a file with several")
    parser.add_argument("--cluster", default="", help="hardware spec in configs/clusters, for a new profile")
    domain = "GPUs of a scale-up domain (nccl-tests, aicb-log)"
    parser.add_argument("--domain_ranks", type=whole(0, MOST_GPUS), default=0, help=domain)
    parser.add_argument("--into", type=Path, required=True)
    return parser


def _ranks_per_domain(sample: Sample) -> int:
    return sample.case.intra if isinstance(sample.case, CollectiveCase) else 1


def canonical_gpu(gpu: str, source: Path) -> tuple[str, str]:
    """Returns the name of the GPU in profiles, and of its hardware spec ("": none); raises ProfileError for a
    ``source`` without a GPU."""
    if not gpu.strip():
        raise ProfileError(f"{source}: names no GPU; say which with --gpu")
    cluster = find_hardware_spec(gpu, root=ROOT)
    return (cluster.gpu.name, cluster.name) if cluster else (gpu, "")


def _select_gpu(by_gpu: dict[str, list[Sample]], name: str, source: Path) -> tuple[str, list[Sample]]:
    """Returns the GPU that the source names and its samples; at least one."""
    if not any(by_gpu.values()):
        raise ProfileError(f"{source}: no samples; nothing imported")
    if name and name not in by_gpu:
        raise ProfileError(f"{source}: no GPU {name!r}; it has {', '.join(sorted(by_gpu))}")
    if not name and len(by_gpu) > 1:
        raise ProfileError(f"{source}: several GPUs; choose with --of one of {', '.join(sorted(by_gpu))}")
    chosen = name or next(iter(by_gpu))
    return chosen, by_gpu[chosen]
