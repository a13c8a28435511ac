"""Whether the parsers of the frameworks take the exports of the shipped configs.

    python benchmarks/handover.py [--megatron DIR] [--zero_bubble DIR] [--internevo DIR] [--accelerate DIR] [--torchtitan DIR]

Each DIR is a checkout: its own parser runs in a process of its own, with stand-ins for CUDA, and for packages
that are not installed and that a parser does not need. Prints what every config becomes; exits with 1 when a
parser refuses an export, with 2 for a folder that is no such checkout. Checkouts that were taken: Megatron-LM
core_v0.14.0 and core_v0.19.0, the fork's 39f2c18, InternEvo's 02ea919; and accelerate's 16cb6eb, torchtitan's b5bcd76,
which want what they require installed.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.handover_cases.exports import (  # noqa: E402
    Export,
    Refusal,
    as_plain,
    exports_of,
    shipped_configs,
)
from spec.errors import ConfigError, UserError  # noqa: E402

CASES = Path(__file__).resolve().parent / "handover_cases"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """``exporter`` writes plans of ``framework``, whose ``parser`` is a program of handover_cases for a checkout that
    holds ``mark``."""

    exporter: str
    framework: str
    parser: str
    mark: str


HANDOVERS = {
    "megatron": Handover(
        exporter="megatron",
        framework="megatron",
        parser="megatron_parser.py",
        mark="megatron/training/arguments.py",
    ),
    "zero_bubble": Handover(
        exporter="megatron",
        framework="zero-bubble",
        parser="megatron_parser.py",
        mark="megatron/core/zbpp_utils.py",
    ),
    "internevo": Handover(
        exporter="internevo",
        framework="internevo",
        parser="internevo_parser.py",
        mark="internlm/initialize/launch.py",
    ),
    "accelerate": Handover(
        exporter="accelerate",
        framework="fsdp",
        parser="accelerate_parser.py",
        mark="src/accelerate/commands/launch.py",
    ),
    "torchtitan": Handover(
        exporter="torchtitan",
        framework="torchtitan",
        parser="torchtitan_parser.py",
        mark="torchtitan/config/manager.py",
    ),
}


def refused(handover: Handover, checkout: Path, exports: list[Export]) -> dict[str, str]:
    """By the name of an export what the checkout's parser says against it.

    Raises ConfigError for a checkout whose parser does not start.
    """
    ran = subprocess.run(
        [sys.executable, str(CASES / handover.parser), str(checkout)],
        input=json.dumps([as_plain(export) for export in exports]),
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        last = ran.stderr.strip().splitlines()[-1] if ran.stderr.strip() else "no word"
        raise ConfigError(
            where=f"--{handover.exporter}",
            key="checkout",
            value=str(checkout),
            allowed=f"one whose parser runs ({last})",
        )
    said = json.loads(ran.stdout.splitlines()[-1])
    return {case["name"]: case["refused"] for case in said if case["refused"]}


def hand_over(name: str, checkout: Path) -> int:
    """Export, parse and print; how many exports were refused."""
    handover = HANDOVERS[name]
    if not (checkout / handover.mark).is_file():
        raise ConfigError(
            where=f"--{name}",
            key="checkout",
            value=str(checkout),
            allowed=f"a folder that holds {handover.mark}",
        )
    exports: list[Export] = []
    for config in shipped_configs():
        found = exports_of(config, handover.exporter, handover.framework)
        if isinstance(found, Refusal):
            print(f"{name}: {found.name}: not exported: {found.reason}")
        else:
            exports += found
    against = refused(handover, checkout, exports)
    for export, reason in against.items():
        print(f"{name}: {export}: refused: {reason}")
    print(f"{name}: {len(exports) - len(against)} of {len(exports)} exports taken by {checkout}")
    return len(against)


def main(arguments: list[str]) -> int:
    """Run one command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, handover in HANDOVERS.items():
        parser.add_argument(f"--{name}", type=Path, metavar="DIR", help=f"a checkout with {handover.mark}")
    options = vars(parser.parse_args(arguments))
    given = {name: options[name] for name in HANDOVERS if options[name] is not None}
    try:
        if not given:
            raise ConfigError(
                where="command line",
                key="checkout",
                value=None,
                allowed=f"one of --{', --'.join(HANDOVERS)} DIR",
            )
        return int(sum(hand_over(name, checkout) for name, checkout in given.items()) > 0)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
