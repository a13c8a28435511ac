"""``pss``: one command for all programs. ``pss VERB --help`` says what a verb takes."""

# ruff: noqa: E402 - what follows takes a second to import, and Ctrl-C may come meanwhile
from spec.program.command import exit_status, quiet_interrupts

quiet_interrupts()

import json
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from pss.subcommands import SUBCOMMANDS, plans_first
from spec.errors import CommandLineError
from spec.program.command import LANGUAGES, VERSION_LINE, in_language

NAME = "pss"
COMPLETION, SCHEMA, LIST = "completion", "schema", "list"
HELP_OPTIONS = frozenset({"-h", "--help", "--version"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the arguments of a subcommand; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in SUBCOMMANDS:
        return exit_status(lambda: run(words[0], words[1:]), arguments=words)
    return exit_status(lambda: run_own(words), arguments=words)


def run(verb: str, words: Sequence[str]) -> int:
    """Runs a subcommand; CommandLineError for arguments before the options that are no plans, for ``explain`` without a plan,
    and for ``sweep`` without a list."""
    program, (plans, options) = f"{NAME} {verb}", plans_first(words)
    if verb == "compare" and len(plans) > 1 and {*options} <= {"--lang", *LANGUAGES}:
        from pss.answers import compare_files

        return compare_files([Path(plan) for plan in plans], in_language(options))
    if verb == "compare" and len(plans) > 1:
        # Plans side by side are an option of the programs that price them.
        return SUBCOMMANDS["price"].run([*(f"--compare={plan}" for plan in plans), *options], program)
    helps = HELP_OPTIONS.intersection(options)
    if SUBCOMMANDS[verb].plan_option:
        if wrong := next((plan for plan in plans if "=" not in plan), ""):
            raise CommandLineError(f"{program}: {wrong[:60]!r} is no plan, such as tp=8,pp=2 (see --help)")
        if verb == "price" and len(plans) > 1:
            raise CommandLineError(f"{program}: {len(plans)} plans, at most 1 (see --help)")
        if verb == "explain" and not plans and not helps:
            raise CommandLineError(f"{program}: a plan first: tp=8,pp=2, or rank=1 of a search (see --help)")
    if verb == "sweep" and not helps:
        from pss.plan_options import is_sweep

        if not is_sweep(SUBCOMMANDS[verb].parser(program).parse_args(words)):
            raise CommandLineError(f"{program}: a list, such as --world_size 64,128 (see --help)")
    return SUBCOMMANDS[verb].run(words, program)


def run_own(words: Sequence[str]) -> int:
    """Runs the options of ``pss`` itself, and ``schema`` and ``completion``; returns the exit status."""
    first = words[0] if words else "--help"
    if first == "--version":
        print(VERSION_LINE)
        return 0
    if first in HELP_OPTIONS:
        print("\n".join(help_lines()))
        return 0
    if first == COMPLETION:
        from pss.completion import script

        print(script(words[1:]), end="")
        return 0
    if first == SCHEMA:
        print(schema_text(words[1:]))
        return 0
    if first == LIST:
        print("\n".join(known_names(words[1:])))
        return 0
    verbs = (*SUBCOMMANDS, SCHEMA, COMPLETION, LIST)
    near = get_close_matches(first, verbs, n=1, cutoff=0.6)
    meant = f", such as {near[0]}" if near else ""
    raise CommandLineError(f"{NAME}: no verb {first[:60]!r}; one of {', '.join(verbs)}{meant}")


def schema_text(words: Sequence[str]) -> str:
    """Returns the JSON Schema of that name."""
    from solver.report.schema import schemas

    names = schemas()
    if len(words) != 1 or words[0] not in names:
        raise CommandLineError(f"{NAME} {SCHEMA}: the name of a schema: {', '.join(names)}")
    return json.dumps(names[words[0]], indent=1)


def known_names(words: Sequence[str]) -> list[str]:
    """Returns the names that an option takes: models of --config, clusters, frameworks, keys of --plan and --job."""
    from spec.cluster.reader import cluster_names
    from spec.files import CONFIGS, shipped_folder
    from spec.frameworks import framework_names
    from spec.settings.job import job_settings
    from spec.settings.plan import plan_option_settings

    files = (shipped_folder() / CONFIGS).glob("*.*")
    names: dict[str, Sequence[str]] = {
        "models": sorted(one.stem for one in files if one.is_file()),
        "clusters": cluster_names(shipped_folder()),
        "frameworks": framework_names(),
        "keys": [*plan_option_settings(), *job_settings()],
    }
    if len(words) != 1 or words[0] not in names:
        raise CommandLineError(f"{NAME} {LIST}: {' or '.join(names)}")
    return list(names[words[0]])


def help_lines() -> list[str]:
    """Returns every subcommand with its summary."""
    verbs = {name: one.summary for name, one in SUBCOMMANDS.items()}
    verbs[SCHEMA] = "print the JSON Schema of --json's answer, or of a config's plan, job or constraints"
    verbs[LIST] = "list the models, clusters, frameworks or keys that options take"
    verbs[COMPLETION] = "print the completion script of bash or zsh (needs shtab)"
    width = max(map(len, verbs))
    lines = [f"usage: {NAME} VERB [OPTIONS], {NAME} VERB --help, {NAME} --version", ""]
    return lines + [f"  {name.ljust(width)}  {what}" for name, what in verbs.items()]
