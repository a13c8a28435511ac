"""Workloads of a training step: generates, checks, prices and runs them, lays out groups, traffic and topologies."""

# ruff: noqa: E402 - what follows takes a second to import, and Ctrl-C may come meanwhile
from spec.program.command import exit_status, quiet_interrupts

quiet_interrupts()

import argparse

from runner.verbs import VERBS as VERBS_ON_DEVICES
from spec.files import shipped_folder
from workload.verbs import PROGRAM, VERBS, check_result_files, parser

ROOT = shipped_folder()
ALL_VERBS = VERBS | VERBS_ON_DEVICES


def main(arguments: list[str], program: str = PROGRAM) -> int:
    """Runs one command line after ``program``; returns the exit status (1: the checked file has defects)."""
    return exit_status(lambda: run(options_parser(program).parse_args(arguments)))


def options_parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    """Returns the parser of the arguments after ``program``."""
    return parser(ALL_VERBS, program)


def run(options: argparse.Namespace) -> int:
    """Runs the verb of the options."""
    verb = ALL_VERBS[options.verb]
    check_result_files(options, verb)
    return verb.run(options, ROOT)
