"""Two or more profiles of one GPU into one file: python -m profdb merge A B [...] --into C."""

from pathlib import Path

from profdb.commands.import_export import difference_lines
from profdb.fitting import with_fits
from profdb.store.data_file import load_profile, save_profile
from profdb.store.merge import Difference, merge
from spec.program.parser import OneLineParser


def main(arguments: list[str]) -> int:
    """Parse, merge from left to right, write with new fits; 0.

    Raises ProfileError for a file that is no profile, or of another GPU.
    """
    parser = OneLineParser(prog="python -m profdb merge", description="profiles of one GPU into one")
    parser.add_argument("first", type=Path, help="a profile")
    parser.add_argument("others", type=Path, nargs="+", help="more profiles of the same GPU")
    parser.add_argument("--into", type=Path, required=True, help="the file to write")
    given = parser.parse_args(arguments)
    joined = load_profile(given.first)
    differences: list[Difference] = []
    repeats = 0
    for path in given.others:
        merged = merge(joined, load_profile(path))
        joined, repeats = merged.profile, repeats + merged.repeats
        differences += merged.differences
    save_profile(given.into, with_fits(joined))
    count = sum(table.size for table in joined.tables.values())
    print(f"{given.into}: {count} samples of {joined.machine.gpu}, {repeats} repeats left out")
    print("\n".join(difference_lines(differences)), end="\n" if differences else "")
    return 0
