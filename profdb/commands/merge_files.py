"""Two or more profiles of one GPU into one file: python -m profdb merge A B [...] --into C."""

import argparse
from pathlib import Path

from profdb.commands.import_measurements import difference_lines
from profdb.refit import with_fits
from profdb.store.data_file import load_profile, save_profile
from profdb.store.merge import Difference, merge
from profdb.store.sole_writer import sole_writer
from spec.program.command import OneLineParser

PROGRAM = "python -m profdb merge"


def options_parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    """Returns the parser of the options after ``program``."""
    parser = OneLineParser(prog=program, description="profiles of one GPU into one")
    parser.add_argument("first", type=Path, help="a profile")
    parser.add_argument("others", type=Path, nargs="+", help="more profiles of the same GPU")
    parser.add_argument("--into", type=Path, required=True, help="the file to write, or to add to")
    return parser


def main(arguments: list[str], program: str = PROGRAM) -> int:
    """Parses the options, merges from left to right and writes the result with new fits; returns 0.

    A profile that exists already is merged too. Raises ProfileError for a file that is no profile, or of another GPU.
    """
    options = options_parser(program).parse_args(arguments)
    differences: list[Difference] = []
    repeats = 0
    with sole_writer(options.into):
        first, *others = _sources(options.into, [options.first, *options.others])
        profile = load_profile(first)
        for path in others:
            merged = merge(profile, load_profile(path))
            profile, repeats = merged.profile, repeats + merged.repeats
            differences += merged.differences
        save_profile(options.into, with_fits(profile))
    count = len(profile.samples)
    print(f"{options.into}: {count} samples of {profile.machine.gpu}, {repeats} repeats left out")
    print("\n".join(difference_lines(differences)), end="\n" if differences else "")
    return 0


def _sources(into: Path, paths: list[Path]) -> list[Path]:
    """Returns the files given, after an existing file at ``into``."""
    there = into.exists() and not any(path.exists() and into.samefile(path) for path in paths)
    return [into, *paths] if there else paths
