"""Completion scripts, written from the parsers: static, so that a TAB starts no Python.

source <(pss completion bash)
source <(pss completion zsh)          (zsh runs the bash one through its bashcompinit)
pss completion fish > ~/.config/fish/completions/pss.fish
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from string import Template

from pss.subcommands import SUBCOMMANDS, sub_parsers
from solver.report.schema import schemas
from spec.cluster.reader import cluster_names
from spec.errors import CommandLineError
from spec.files import CONFIGS, shipped_folder
from spec.frameworks import STRATEGIES, framework_names

SHELLS = ("bash", "zsh", "fish")

BASH = Template(
    """\
# Completion of pss; files are completed where nothing else is known. Bash cuts tp=8 in three words.
_pss() {
    local cur="$${COMP_WORDS[COMP_CWORD]}" prev="$${COMP_WORDS[COMP_CWORD-1]}" verb="" word at words=""
    for (( at = 1; at < COMP_CWORD; at++ )); do
        word="$${COMP_WORDS[at]}"
        [[ "$$word" == -* ]] && break
        case "$$verb" in
$above
        esac
    done
    case "$$verb $$prev" in
$values
    esac
    if [[ -z "$$words" ]]; then
        case "$$verb" in
$options
        esac
    fi
    COMPREPLY=( $$(compgen -W "$$words" -- "$$cur") )
}
complete -o bashdefault -o default -F _pss pss
"""
)
ZSH = "autoload -U +X compinit && compinit -u\nautoload -U +X bashcompinit && bashcompinit\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionPoint:
    """A command or subcommand by its words: its options with their values, and the subcommands below it."""

    path: tuple[str, ...]
    summary: str
    options: dict[str, tuple[str, ...]]
    below: dict[str, str]


def script(words: Sequence[str]) -> str:
    """Returns the completion script of the shell named by the one word; CommandLineError for none or another."""
    if list(words) not in [[shell] for shell in SHELLS]:
        raise CommandLineError(f"pss completion: the name of a shell: {', '.join(SHELLS)}")
    places = list(completion_points())
    if words[0] == "fish":
        return "\n".join(fish_lines(places)) + "\n"
    return (ZSH if words[0] == "zsh" else "") + bash_script(places)


def completion_points() -> Iterator[CompletionPoint]:
    """Returns the command itself, its subcommands and theirs."""
    values = value_lists()
    below = {name: verb.summary for name, verb in SUBCOMMANDS.items()}
    below |= {"schema": "print a JSON Schema", "completion": "print a completion script"}
    own: dict[str, tuple[str, ...]] = {"--help": (), "--version": ()}
    yield CompletionPoint(path=(), summary="", options=own, below=below)
    yield CompletionPoint(path=("completion",), summary="", options={}, below=dict.fromkeys(SHELLS, ""))
    yield CompletionPoint(path=("schema",), summary="", options={}, below=dict.fromkeys(schemas(), ""))
    for name, verb in SUBCOMMANDS.items():
        yield from _below(verb.parser(f"pss {name}"), (name,), verb.summary, values)


def _below(
    parser: argparse.ArgumentParser, path: tuple[str, ...], summary: str, values: dict[str, tuple[str, ...]]
) -> Iterator[CompletionPoint]:
    parts = sub_parsers(parser)
    yield CompletionPoint(
        path=path,
        summary=summary,
        options={
            name: tuple(map(str, action.choices or ())) or values.get(name, ())
            for action in parser._actions
            for name in action.option_strings
            if name.startswith("--")
        },
        below={name: part.description or "" for name, part in parts.items()},
    )
    for name, part in parts.items():
        yield from _below(part, (*path, name), "", values)


def value_lists() -> dict[str, tuple[str, ...]]:
    """Returns the values of options that the parsers leave open: hardware specs, frameworks, shipped models, strategies."""
    root = shipped_folder()
    clusters = cluster_names(root)
    models = tuple(sorted(path.stem for path in (root / CONFIGS).glob("*.*")))
    return {
        "--cluster": clusters,
        "--from_cluster": clusters,
        "--framework": framework_names(),
        "--config": models,
        "--modes": STRATEGIES,
    }


def bash_script(places: Sequence[CompletionPoint]) -> str:
    """Returns one function: the values of the option before the cursor, else the options and verbs of the place."""
    values = [
        f'        "{_spaced(one)} {option}") words="{" ".join(words)}" ;;'
        for one in places
        for option, words in one.options.items()
        if words
    ]
    options = [f'            "{_spaced(one)}") words="{" ".join((*one.below, *one.options))}" ;;' for one in places]
    above = [f'            "{_spaced(one)}") verb="$verb $word" ;;' for one in places if one.below]
    return BASH.substitute(values="\n".join(values), options="\n".join(options), above="\n".join(above))


def _spaced(one: CompletionPoint) -> str:
    return "".join(f" {word}" for word in one.path)


def fish_lines(places: Sequence[CompletionPoint]) -> Iterator[str]:
    """Returns a line for every verb, option and known value."""
    yield "# Completion of pss."
    for one in places:
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in one.path)
        none = f"not __fish_seen_subcommand_from {' '.join(one.below)}"
        place = "; and ".join(filter(None, (seen, none if one.below else "")))
        for name, what in one.below.items():
            yield f"complete -c pss -n {_quoted(place)} -f -a {name} -d {_quoted(what)}"
        for option, words in one.options.items():
            known = f" -x -a {_quoted(' '.join(words))}" if words else ""
            yield f"complete -c pss -n {_quoted(seen or none)} -l {option.removeprefix('--')}{known}"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
