"""The content of a profile: python -m profdb show FILE [--config CONFIG] [--json] [--refit].

Machine, curves with their ranges, points and left-out errors; with --config also the origin of the times of each
operation of that model, and the commands that would measure missing ones. --refit stores curves fitted by
the present methods, so that later runs need not fit.
"""

import argparse
import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

from profdb.commands.overview import overview, overview_lines
from profdb.cost_model import ProfileCostModel
from profdb.coverage import missing_lines, needs_of
from profdb.refit import with_fits
from profdb.store.data_file import load_profile, save_profile
from profdb.store.sole_writer import sole_writer
from spec.program.command import OneLineParser, whole
from spec.program.kinds import MOST_SEQUENCE_TOKENS
from spec.readers.read_config import add_config, assumption_lines, read_config

PROGRAM = "python -m profdb show"


def options_parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    """Returns the parser of the options after ``program``."""
    parser = OneLineParser(prog=program, description="show the content of a profile")
    parser.add_argument("file", type=Path, help="a profile (data.pt)")
    add_config(parser, "a model config: what does the profile lack for it?")
    tokens = whole(1, MOST_SEQUENCE_TOKENS)
    parser.add_argument("--seq_len", type=tokens, help="tokens a sequence (default: the config's)")
    parser.add_argument("--refit", action="store_true", help="renew the stored curves where they are stale")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    return parser


def main(arguments: list[str], program: str = PROGRAM) -> int:
    """Parses the options, loads the profile and prints it; returns 0."""
    options = options_parser(program).parse_args(arguments)
    profile = load_profile(options.file)
    if options.refit:
        with sole_writer(options.file):
            profile = with_fits(load_profile(options.file))
            save_profile(options.file, profile)
    config = None if options.config is None else read_config(options.config, assume=options.assume)
    if config is not None and options.seq_len is not None:
        config = replace(config, seq_len=options.seq_len)
    needs = [] if config is None else needs_of(config, ProfileCostModel(profile))
    if options.json:
        document = overview(profile)
        if config is not None:
            document["needs"] = [asdict(need) for need in needs]
        print(json.dumps(document, indent=1))
        return 0
    print("\n".join(overview_lines(profile)))
    if config is not None:
        counts = Counter(need.answer for need in needs)
        print("\n".join(["", *assumption_lines(config.model)]))
        print(f"{options.config}: " + ", ".join(f"{count} {name}" for name, count in counts.most_common()))
        print("\n".join(missing_lines(needs)))
    return 0
