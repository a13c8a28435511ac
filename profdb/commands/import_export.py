"""Import of measurements from other tools, and export to them.

python -m profdb import aicb-log LOG --domain_ranks 8 --gpu NAME --into data.pt
python -m profdb import csv FILE --gpu NAME --into data.pt
python -m profdb import journal data.pt.journal --into data.pt
python -m profdb import nccl-tests LOG --gpu NAME --into data.pt
python -m profdb import vidur FOLDER --gpu NAME --into data.pt
python -m profdb export vidur data.pt --config CONFIG --to FOLDER

An import is merged into the profile (made when absent) and the fits are renewed. ``--gpu`` is the GPU
that the samples belong to, by any of its names in a hardware spec of configs/clusters, or by that of the profile;
it may be left out where the source names it. Of a file with several GPUs, ``--of`` selects one.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from profdb.cases import CollectiveCase
from profdb.cost_model import ProfileCostModel
from profdb.exporters.vidur import VidurModel, write_compute, write_network
from profdb.importers.aicb_log import read_aicb_log
from profdb.importers.generic_csv import read_curves_csv
from profdb.importers.nccl_tests import read_nccl_tests
from profdb.importers.vidur import read_vidur_folder
from profdb.refit import merge_into
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from profdb.store.data_file import load_profile
from profdb.store.journal import read_journal
from profdb.store.merge import Difference
from spec.cluster.reader import find_hardware_spec
from spec.errors import ExportError, MissingCurveError, ProfileError
from spec.files import shipped_folder
from spec.mixers.attention import attention_of
from spec.program.command import OneLineParser, whole
from spec.program.kinds import MOST_GPUS
from spec.readers.config_file import ConfigFile
from spec.readers.read_config import add_config, read_config

ROOT = shipped_folder()
PROGRAM = "python -m profdb"
TOKENS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file or folder, and for some forms ``domain_ranks``, the GPUs of a scale-up domain; 0 where the file states
    them."""

    path: Path
    domain_ranks: int = 0


Importer = Callable[[Source], dict[str, list[Sample]]]
"""Samples by the GPU name that the source gives ("" where it gives none); raises ProfileError."""


def _journal(source: Source) -> dict[str, list[Sample]]:
    """Returns the samples of a profiling run that did not end."""
    recorded = read_journal(source.path)
    return {recorded.gpu: list(recorded.samples)}


IMPORTERS: Mapping[str, Importer] = {
    "csv": lambda source: read_curves_csv(source.path),
    "nccl-tests": lambda source: read_nccl_tests(source.path, domain_ranks=source.domain_ranks),
    "aicb-log": lambda source: read_aicb_log(source.path, domain_ranks=source.domain_ranks),
    "journal": _journal,
    "vidur": lambda source: {"": read_vidur_folder(source.path)},
}


def main(arguments: list[str], program: str = PROGRAM) -> int:
    """Parses the options, imports or exports, and prints what was done; returns 0."""
    options = options_parser(program).parse_args(arguments)
    if options.verb == "export":
        config = None if options.config is None else read_config(options.config, assume=options.assume)
        for path in export_vidur(options.profile, config, options.to):
            print(f"wrote {path}")
        return 0
    source = Source(path=options.source, domain_ranks=options.domain_ranks)
    named, samples = _select_gpu(IMPORTERS[options.form](source), options.of, options.source)
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
    """Returns the parser of the verbs and options after ``program``."""
    parser = OneLineParser(prog=program)
    verbs = parser.add_subparsers(dest="verb", required=True)
    importer = verbs.add_parser("import", help="read another tool's measurements into a profile")
    importer.add_argument("form", choices=tuple(IMPORTERS))
    importer.add_argument("source", type=Path)
    importer.add_argument("--gpu", default="", help="GPU of the samples (default: as the source names it)")
    importer.add_argument("--of", default="", help="which GPU of a file with several")
    importer.add_argument("--cluster", default="", help="hardware spec in configs/clusters, for a new profile")
    importer.add_argument(
        "--domain_ranks",
        type=whole(0, MOST_GPUS),
        default=0,
        help="GPUs of a scale-up domain (nccl-tests, aicb-log)",
    )
    importer.add_argument("--into", type=Path, required=True)
    exporter = verbs.add_parser("export", help="write a profile's measurements for another tool")
    exporter.add_argument("form", choices=("vidur",))
    exporter.add_argument("profile", type=Path)
    add_config(exporter, "model config for mlp.csv and attention.csv")
    exporter.add_argument("--to", type=Path, required=True)
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


def export_vidur(profile_path: Path, config: ConfigFile | None, folder: Path) -> list[Path]:
    """Returns the files written: ``network/<gpu>`` and, with a config, ``compute/<gpu>/<model>`` below ``folder``.
    Raises ExportError when nothing measured can be written."""
    profile = load_profile(profile_path)
    # Vidur names its folders by GPU: letters and digits of the name, the rest underscores.
    gpu = "".join(letter if letter.isalnum() else "_" for letter in profile.machine.gpu.lower())
    paths: list[Path] = []
    refused: list[str] = []
    try:
        paths += write_network(profile, folder / "network" / gpu, gpus_per_node=profile.machine.gpus_per_node)
    except ExportError as error:
        refused.append(str(error))
    if config is not None:
        place = folder / "compute" / gpu / (config.model.name or Path(config.path).stem)
        try:
            paths += write_compute(
                ProfileCostModel(profile), vidur_model(config), place, degrees=(1, 2, 4, 8), tokens=TOKENS
            )
        except (ExportError, MissingCurveError) as error:
            refused.append(str(error))
    if not paths:
        raise ExportError("; ".join(refused))
    return paths


def vidur_model(config: ConfigFile) -> VidurModel:
    """Returns the model in Vidur's terms; raises ExportError for layers that differ or mix tokens otherwise than by
    attention, experts, MLA or heads that do not fill hidden."""
    blocks = [run.block for run in config.model.blocks]
    attention, *others = {attention_of(block.mixer, f"{config.path}: Vidur's files") for block in blocks}
    mlp, *more = {block.mlp for block in blocks}
    # Vidur computes the head size as hidden / heads.
    width = attention.num_heads * attention.qk_dim
    if mlp is None or others or more or attention.qk_dim != attention.v_dim or width != config.model.hidden:
        raise ExportError(
            f"{config.path}: Vidur's files describe dense models of equal layers with heads * dim = hidden"
        )
    return VidurModel(
        n_head=attention.num_heads,
        n_kv_head=attention.num_kv_heads,
        n_embd=config.model.hidden,
        n_expanded_embd=mlp.ffn_hidden,
        vocab_size=config.model.vocab,
        use_gated_mlp=mlp.gated,
    )
