"""What a profile holds: python -m profdb show FILE [--config CONFIG] [--json] [--refit].

Machine, curves with their ranges, points and left-out errors; with --config also how the profile would
answer each operation of that model, and what would measure the missing ones; --refit stores curves made by
the present methods, so that later runs need not fit.
"""

import argparse
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from profdb.commands.overview import overview, overview_lines
from profdb.coverage import missing_lines, needs_of
from profdb.curvebook import CurveBook
from profdb.refit import with_fits
from profdb.store.data_file import load_profile, save_profile
from profdb.store.sole_writer import sole_writer
from spec.program.parser import OneLineParser
from spec.readers.read_config import read_config

PROGRAM = "python -m profdb show"


def options_parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    """What reads the options typed after ``program``."""
    parser = OneLineParser(prog=program, description="show what a profile holds")
    parser.add_argument("file", type=Path, help="a profile (data.pt)")
    parser.add_argument("--config", type=Path, help="a model config: what does the profile lack for it?")
    parser.add_argument("--refit", action="store_true", help="renew the stored curves where they are stale")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    return parser


def main(arguments: list[str], program: str = PROGRAM) -> int:
    """Parse, load, print; 0."""
    given = options_parser(program).parse_args(arguments)
    profile = load_profile(given.file)
    if given.refit:
        with sole_writer(given.file):
            profile = with_fits(load_profile(given.file))
            save_profile(given.file, profile)
    needs = []
    if given.config is not None:
        needs = needs_of(read_config(given.config), CurveBook(profile))
    if given.json:
        document = overview(profile)
        if given.config is not None:
            document["needs"] = [asdict(need) for need in needs]
        print(json.dumps(document, indent=1))
        return 0
    print("\n".join(overview_lines(profile)))
    if given.config is not None:
        counts = Counter(need.answer for need in needs)
        print(f"\n{given.config}: " + ", ".join(f"{count} {name}" for name, count in counts.most_common()))
        print("\n".join(missing_lines(needs)))
    return 0
