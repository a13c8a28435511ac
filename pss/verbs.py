"""The verbs of ``pss``: what each does, the parser of its options and what runs it. Each is the program that
a script of a checkout runs, imported when it is asked for."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from spec.errors import CommandLineError

OF_WORKLOAD = ("run", "train", "compare")
"""Verbs of run_workload.py that are verbs here as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """``parser`` and ``run`` take what the words are typed after (``pss search``), ``run`` the words before
    it, and gives the exit status; ``plans``: whether plans are typed before the options."""

    what: str
    parser: Callable[[str], argparse.ArgumentParser]
    run: Callable[[list[str], str], int]
    plans: bool = False


def plans_first(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words before the first option, and the rest."""
    first = next((at for at, word in enumerate(words) if word.startswith("-")), len(words))
    return list(words[:first]), list(words[first:])


def _plans_parser(program: str) -> argparse.ArgumentParser:
    from pss.plans import options_parser

    return options_parser(program)


def _search(words: list[str], program: str) -> int:
    from pss.plans import main

    return main(["--run_all_solu", *words], program)


def _price(words: list[str], program: str) -> int:
    from pss.plans import main

    plans, options = plans_first(words)
    return main([*(f"--plan={plan}" for plan in plans), *options], program)


def _explain(words: list[str], program: str) -> int:
    from pss.plans import main

    plans, options = plans_first(words)
    searched = ["--run_all_solu"] * any(plan.startswith("rank=") for plan in plans)
    return main([*searched, *(f"--explain={plan}" for plan in plans), *options], program)


def _sweep(words: list[str], program: str) -> int:
    from pss.plan_options import is_sweep
    from pss.plans import command_typed, options_parser, run
    from spec.program.ending import exit_status

    def swept() -> int:
        said = argparse.Namespace(command=command_typed(program, words))
        options = options_parser(program).parse_args(["--run_all_solu", *words], said)
        if not is_sweep(options):
            raise CommandLineError(f"{program}: a list, such as --world_size 64,128 (see --help)")
        return run(options)

    return exit_status(swept)


def _profile_parser(program: str) -> argparse.ArgumentParser:
    from pss.profile import options_parser

    return options_parser(program)


def _profile(words: list[str], program: str) -> int:
    from pss.profile import main

    return main(words, program)


def _workload_parser(program: str) -> argparse.ArgumentParser:
    from pss.workload import options_parser

    return options_parser(program)


def _workload(words: list[str], program: str) -> int:
    from pss.workload import main

    return main(words, program)


def sub_parsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of a parser's own verbs, by name."""
    found = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    return next((dict(one.choices) for one in found), {})


def _part_parser(name: str, program: str) -> argparse.ArgumentParser:
    return sub_parsers(_workload_parser(program.removesuffix(f" {name}")))[name]


def _part(name: str, words: list[str], program: str) -> int:
    return _workload([name, *words], program.removesuffix(f" {name}"))


def _of_workload(name: str, what: str) -> Verb:
    return Verb(what=what, parser=partial(_part_parser, name), run=partial(_part, name))


def _calibrate_parser(program: str) -> argparse.ArgumentParser:
    from solver.calibrate.__main__ import options_parser

    return options_parser(program)


def _calibrate(words: list[str], program: str) -> int:
    from solver.calibrate.__main__ import main

    return main(words, program)


def _merge_parser(program: str) -> argparse.ArgumentParser:
    from profdb.commands.merge_files import options_parser

    return options_parser(program)


def _merge(words: list[str], program: str) -> int:
    from profdb.commands.merge_files import main
    from spec.program.ending import exit_status

    return exit_status(lambda: main(words, program))


def _show_parser(program: str) -> argparse.ArgumentParser:
    from profdb.commands.show import options_parser

    return options_parser(program)


def _show(words: list[str], program: str) -> int:
    from profdb.commands.show import main
    from spec.program.ending import exit_status

    return exit_status(lambda: main(words, program))


VERBS: dict[str, Verb] = {
    "search": Verb(what="the best plans for a model on a cluster", parser=_plans_parser, run=_search),
    "price": Verb(
        what="what one plan takes: pss price tp=8,pp=2 ...", parser=_plans_parser, run=_price, plans=True
    ),
    "explain": Verb(
        what="a plan taken apart: pss explain tp=8,pp=2 ..., or rank=1 of a search",
        parser=_plans_parser,
        run=_explain,
        plans=True,
    ),
    "sweep": Verb(what="the best plan for each of a list of questions", parser=_plans_parser, run=_sweep),
    "profile": Verb(
        what="measure this cluster (torchrun --no-python pss profile)", parser=_profile_parser, run=_profile
    ),
    "workload": Verb(
        what="generate, check, replay and lay out workloads", parser=_workload_parser, run=_workload
    ),
    "calibrate": Verb(what="fit a few factors to measured steps", parser=_calibrate_parser, run=_calibrate),
    "merge": Verb(what="join profiles of one GPU", parser=_merge_parser, run=_merge),
    "show": Verb(what="say what a profile holds", parser=_show_parser, run=_show),
    "run": _of_workload("run", "run a workload on real process groups (torchrun)"),
    "train": _of_workload("train", "time steps of a reference transformer (torchrun)"),
    "compare": _of_workload("compare", "a measured run beside its prediction"),
}
