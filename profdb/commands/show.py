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

from profdb.cases import Family
from profdb.cost_model import ProfileCostModel
from profdb.coverage import missing_lines, needs_of
from profdb.fits.lines import fit_error
from profdb.fitting import Curve, curves_of
from profdb.refit import with_fits
from profdb.sample import ProfileDatabase
from profdb.store.columns import STATUSES
from profdb.store.data_file import load_profile, save_profile
from profdb.store.merge import published_sources
from profdb.store.sole_writer import sole_writer
from spec.origin import ORIGIN_NAMES
from spec.program.command import OneLineParser, whole
from spec.program.kinds import MOST_SEQUENCE_TOKENS
from spec.readers.read_config import add_config, assumption_lines, read_config

PROGRAM = "python -m profdb show"
Plain = dict[str, object]


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


# The content, as plain data and as text.


def overview(profile: ProfileDatabase) -> Plain:
    """Returns machine, counts by family and status, sources of published samples, and every curve with its ranges and
    errors."""
    machine = profile.machine
    return {
        "machine": {name: getattr(machine, name) for name in machine.__dataclass_fields__},
        "schema_version": profile.schema_version,
        "samples": len(profile.samples),
        "families": {family.value: _counts(profile, family) for family in profile.tables},
        "published": {family.value: published_sources(table) for family, table in profile.tables.items()},
        "curves": [curve_summary(curve) for family in profile.tables for curve in curves_of(profile, family)],
    }


def _counts(profile: ProfileDatabase, family: Family) -> dict[str, int]:
    status = profile.tables[family].status
    return {name: int((status == code).sum()) for code, name in enumerate(STATUSES)}


def curve_summary(curve: Curve) -> Plain:
    """Returns one curve: key, origin, points, ranges, cross-validated errors and the worst points."""
    return {
        "family": curve.family.value,
        "key": curve.key,
        "origin": ORIGIN_NAMES[curve.origin],
        "points": curve.points,
        "ranges": {name: list(ends) for name, ends in curve.ranges.items()},
        "error": fit_error(curve.arrays) if curve.arrays["cv_error"].size else None,
        "worst": [{"sizes": point.sizes, "error": point.error} for point in curve.worst],
    }


def overview_lines(profile: ProfileDatabase) -> list[str]:
    """Returns the overview as lines of text."""
    machine = profile.machine
    lines = [
        f"machine   {machine.gpu}"
        + (f", {machine.memory_bytes / 2**30:.0f} GiB" if machine.memory_bytes else "")
        + f", {machine.nodes} x {machine.gpus_per_node} GPUs"
        + (f", cluster {machine.cluster}" if machine.cluster else "")
    ]
    software = [("driver", machine.driver), ("torch", machine.torch), ("NCCL", machine.nccl)]
    versions = [f"{name} {value}" for name, value in software if value]
    if machine.date or versions:
        lines.append("measured  " + ", ".join([machine.date, *versions] if machine.date else versions))
    for dtype, flops in sorted(machine.best_flops.items()):
        lines.append(f"best seen {flops / 1e12:.1f} TFLOP/s {dtype}")
    for family in profile.tables:
        counts = _counts(profile, family)
        bad = ", ".join(f"{counts[name]} {name}" for name in STATUSES[1:] if counts[name])
        lines += ["", f"{family.value}: {counts['ok']} samples" + (f" ({bad})" if bad else "")]
        lines += [f"  published by {source}" for source in published_sources(profile.tables[family])]
        for curve in curves_of(profile, family):
            lines += _curve_lines(curve)
    return lines


def _curve_lines(curve: Curve) -> list[str]:
    labels = " ".join(_word(name, value) for name, value in curve.key.items() if value not in ("", "0"))
    ranges = ", ".join(
        f"{name} {low}" if low == high else f"{name} {low}..{high}"
        for name, (low, high) in curve.ranges.items()
        # Sizes that no sample varies, such as 1 sibling or no window, are not shown.
        if (low, high) not in ((0, 0), (1, 1))
    )
    error = fit_error(curve.arrays)
    error_text = (
        f"left out: median {100 * error['median']:.1f} %, p90 {100 * error['p90']:.1f} %"
        if curve.arrays["cv_error"].size
        else "too few points to test"
    )
    lines = [f"  {labels:34} {ORIGIN_NAMES[curve.origin]:11} {curve.points:6d} points  {error_text}"]
    if ranges:
        lines.append(f"    {ranges}")
    if curve.worst:
        point = curve.worst[0]
        sizes = ", ".join(f"{name} {size}" for name, size in point.sizes.items() if size > 1)
        lines.append(f"    worst {100 * point.error:.0f} % at {sizes}")
    return lines


def _word(name: str, value: str) -> str:
    return name if value == "1" else value
