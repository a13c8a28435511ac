"""The verbs of ``pss``: what each does, and the program behind it, which is imported when it is asked for."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

PLANS, PROFILE, WORKLOAD = "pss.plans", "pss.profile", "pss.workload"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A verb: what it does, and the ``module`` that does it: its ``options_parser(program)`` reads what is typed after
    ``program`` (``pss search``), its ``main(words, program)`` runs it and returns the exit status.

    ``flags`` are always handed on. Plans that are typed before the options are handed on as values of
    ``plan_option``, where there is one. ``part`` is the verb of the module that this verb is.
    """

    what: str
    module: str
    flags: tuple[str, ...] = ()
    plan_option: str = ""
    part: str = ""

    def parser(self, program: str) -> argparse.ArgumentParser:
        """Returns what reads the options typed after ``program``."""
        parser: argparse.ArgumentParser = import_module(self.module).options_parser(self._whole(program))
        return sub_parsers(parser)[self.part] if self.part else parser

    def run(self, words: Sequence[str], program: str) -> int:
        """Runs the words typed after ``program``; returns the exit status."""
        plans, options = plans_first(words) if self.plan_option else ([], list(words))
        ranked = any(plan.startswith("rank=") for plan in plans)
        first = [self.part] if self.part else [*self.flags, *["--run_all_solu"] * ranked]
        handed = [*first, *(f"--{self.plan_option}={plan}" for plan in plans), *options]
        status: int = import_module(self.module).main(handed, self._whole(program))
        return status

    def _whole(self, program: str) -> str:
        return program.removesuffix(f" {self.part}") if self.part else program


def plans_first(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the words before the first option, and the rest."""
    first = next((at for at, word in enumerate(words) if word.startswith("-")), len(words))
    return list(words[:first]), list(words[first:])


def sub_parsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Returns the parsers of a parser's own verbs, by name."""
    result = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    return next((dict(one.choices) for one in result), {})


SEARCHED = ("--run_all_solu",)
VERBS: dict[str, Verb] = {
    "search": Verb(what="find the best plans for a model on a cluster", module=PLANS, flags=SEARCHED),
    "price": Verb(what="price one plan: pss price tp=8,pp=2 ...", module=PLANS, plan_option="plan"),
    "explain": Verb(
        what="explain one plan: pss explain tp=8,pp=2 ..., or rank=1 of a search",
        module=PLANS,
        plan_option="explain",
    ),
    "sweep": Verb(what="find the best plan for each combination of listed values", module=PLANS, flags=SEARCHED),
    "profile": Verb(what="measure this cluster (torchrun --no-python pss profile)", module=PROFILE),
    "workload": Verb(what="generate, check, replay and lay out workloads", module=WORKLOAD),
    "calibrate": Verb(what="fit a few factors to measured steps", module="solver.calibrate.__main__"),
    "merge": Verb(what="join profiles of one GPU", module="profdb.commands.merge_files"),
    "show": Verb(what="summarise a profile", module="profdb.commands.show"),
    "run": Verb(what="run a workload on real process groups (torchrun)", module=WORKLOAD, part="run"),
    "train": Verb(what="time steps of a reference transformer (torchrun)", module=WORKLOAD, part="train"),
    "compare": Verb(what="compare a measured run with its prediction", module=WORKLOAD, part="compare"),
}
