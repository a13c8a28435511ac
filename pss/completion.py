"""Completion scripts of bash and zsh, which shtab writes from the parsers: static, so that a TAB starts no Python."""

import argparse
from collections.abc import Sequence

from pss.subcommands import SUBCOMMANDS
from solver.report.schema import schemas
from spec.cluster.reader import cluster_names
from spec.errors import CommandLineError
from spec.files import CONFIGS, shipped_folder
from spec.frameworks import STRATEGIES, framework_names

SHELLS = ("bash", "zsh")


def script(words: Sequence[str]) -> str:
    """Returns the completion script of the shell named by the one word; CommandLineError for none or another, or without
    shtab."""
    if list(words) not in [[shell] for shell in SHELLS]:
        raise CommandLineError(f"pss completion: the name of a shell: {', '.join(SHELLS)}")
    try:
        import shtab
    except ImportError as error:
        raise CommandLineError("pss completion: needs shtab: pip install shtab") from error
    text: str = shtab.complete(whole_parser(), shell=words[0])
    return text


def whole_parser() -> argparse.ArgumentParser:
    """Returns one parser of all subcommands; shtab passes over those without help. Options that a subcommand leaves open
    have the names that there are: hardware specs, frameworks, shipped models, strategies."""
    root = shipped_folder()
    models = sorted(path.stem for path in (root / CONFIGS).glob("*.*"))
    values: dict[str, Sequence[str]] = {
        "--cluster": cluster_names(root),
        "--framework": framework_names(),
        "--config": models,
        "--modes": STRATEGIES,
    }
    whole = argparse.ArgumentParser(prog="pss")
    verbs = whole.add_subparsers()
    for name, verb in SUBCOMMANDS.items():
        parser = verbs.add_parser(name, help=verb.summary, parents=[verb.parser(f"pss {name}")], add_help=False)
        for action in parser._actions:
            action.choices = action.choices or next(filter(None, map(values.get, action.option_strings)), None)
    for name, words in {"completion": SHELLS, "schema": tuple(schemas()), "list": None}.items():
        verbs.add_parser(name, help=f"the {name}").add_argument("name", choices=words)
    return whole
