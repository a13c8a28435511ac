"""The subcommands of ``pss`` and the programs behind them, which are imported when they run."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

PLANS, PROFILE, WORKLOAD = "pss.plans", "pss.profile", "pss.workload"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subcommand:
    """A subcommand: its ``summary`` and its ``module``, whose ``options_parser(program)`` parses the arguments after
    ``program`` (``pss search``), and whose ``main(arguments, program)`` runs them and returns the exit status.

    ``flags`` are always added. Plans before the first option become values of ``plan_option``, if there is one.
    ``part`` is the name of this subcommand if it is one of the module's own.
    """

    summary: str
    module: str
    flags: tuple[str, ...] = ()
    plan_option: str = ""
    part: str = ""

    def parser(self, program: str) -> argparse.ArgumentParser:
        """Returns the parser of the arguments after ``program``."""
        parser: argparse.ArgumentParser = import_module(self.module).options_parser(self._program(program))
        return sub_parsers(parser)[self.part] if self.part else parser

    def run(self, arguments: Sequence[str], program: str) -> int:
        """Runs the arguments after ``program``; returns the exit status."""
        plans, options = plans_first(arguments) if self.plan_option else ([], list(arguments))
        ranked = any(plan.startswith("rank=") for plan in plans)
        first = [self.part] if self.part else [*self.flags, *["--run_all_solu"] * ranked]
        passed = [*first, *(f"--{self.plan_option}={plan}" for plan in plans), *options]
        status: int = import_module(self.module).main(passed, self._program(program))
        return status

    def _program(self, program: str) -> str:
        return program.removesuffix(f" {self.part}") if self.part else program


def plans_first(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the arguments before the first option, and the rest."""
    first = next((at for at, text in enumerate(arguments) if text.startswith("-")), len(arguments))
    return list(arguments[:first]), list(arguments[first:])


def sub_parsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Returns the parsers of a parser's subcommands, by name."""
    result = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    return next((dict(one.choices) for one in result), {})


SEARCH_FLAGS = ("--run_all_solu",)
SUBCOMMANDS: dict[str, Subcommand] = {
    "search": Subcommand(summary="find the best plans for a model on a cluster", module=PLANS, flags=SEARCH_FLAGS),
    "price": Subcommand(summary="price one plan: pss price tp=8,pp=2 ...", module=PLANS, plan_option="plan"),
    "explain": Subcommand(
        summary="explain one plan: pss explain tp=8,pp=2 ..., or rank=1 of a search",
        module=PLANS,
        plan_option="explain",
    ),
    "sweep": Subcommand(
        summary="find the best plan for each combination of listed values", module=PLANS, flags=SEARCH_FLAGS
    ),
    "profile": Subcommand(summary="measure this cluster (torchrun --no-python pss profile)", module=PROFILE),
    "workload": Subcommand(summary="generate, check, replay and lay out workloads", module=WORKLOAD),
    "calibrate": Subcommand(summary="fit a few factors to measured steps", module="solver.calibrate.__main__"),
    "merge": Subcommand(summary="join profiles of one GPU", module="profdb.commands.merge_files"),
    "show": Subcommand(summary="summarise a profile", module="profdb.commands.show"),
    "launch": Subcommand(summary="start profile, run or train on many hosts", module=WORKLOAD, part="launch"),
    "preflight": Subcommand(summary="look at all hosts before a launch", module=WORKLOAD, part="preflight"),
    "links": Subcommand(summary="measure links and name the slow ones (torchrun)", module=WORKLOAD, part="links"),
    "run": Subcommand(summary="run a workload on real process groups (torchrun)", module=WORKLOAD, part="run"),
    "train": Subcommand(summary="time steps of a reference transformer (torchrun)", module=WORKLOAD, part="train"),
    "verify": Subcommand(summary="train the best plans and compare them", module=WORKLOAD, part="verify"),
    "compare": Subcommand(
        summary="compare a measured run with its prediction, two plans, or two answers of --json",
        module=WORKLOAD,
        part="compare",
    ),
}
