"""The table of constants on a page: one line each, replaced by its key."""

from collections.abc import Collection, Mapping
from pathlib import Path

from benchmarks.constants_stated.found import Constant
from spec.errors import ConfigError
from spec.files import replaced_path

HEAD = "| constant | file | | what its source says | points of error at -25 % / +25 % |"
UNPRICED = "not priced yet"
MOST_WORDS = 110
# What no priced step is made of, by the start of the path.
APART = {
    "profdb/fits": "how curves are fitted: docs/accuracy.md, curves",
    "profdb/store": "what a merge of profiles reports",
    "profdb/transfer": "the error told beside a restated time",
    "profdb/cost_model": "the error told beside a borrowed curve",
    "solver/analysis/goodput": "what --goodput answers: docs/questions.md",
    "solver/plans": "which plans are tried",
    "solver/search": "which plans are tried",
    "solver/calibrat": "calibration: docs/calibration.md",
    "workload": "what an exported workload holds",
    "profiler": "how a profile is measured",
}
# What stands for an entry of a published table and has no other value.
ENTRIES = {
    "configs/architectures/blackwell.toml:flash_attention.softmax_unhidden": "nothing by shares of itself: it is 0",
    "profdb/modelled/flash_generations.py:WIDTHS": "the widths that were published",
    "profdb/modelled/flash_generations.py:STATED_WIDTH": "the entry by which architectures are compared",
}


def why_unpriced(constant: Constant) -> str:
    """Why a constant moves no priced step, or cannot be varied; "" for one that may."""
    apart = (what for start, what in APART.items() if constant.path.startswith(start))
    return ENTRIES.get(constant.key, "") or next(apart, "")


def line_of(constant: Constant, moves: str) -> str:
    """The line of a constant."""
    source = constant.source.replace("|", "/").replace("``", "").removeprefix(constant.kind).lstrip(": ")
    source = (
        source if len(source) <= MOST_WORDS else source[: MOST_WORDS - 3].rsplit(" ", maxsplit=1)[0] + " ..."
    )
    return f"| `{constant.name}` | {constant.path} | {constant.kind} | {source} | {moves} |"


def key_of(line: str) -> str:
    """The key of the constant that a line is about; "" for another line."""
    cells = [cell.strip() for cell in line.split("|")]
    return f"{cells[2]}:{cells[1].strip('`')}" if len(cells) > 5 and cells[1].startswith("`") else ""


def keys_in(page: str) -> list[str]:
    """The keys of all constants in a page's table."""
    return [key for line in page.splitlines() if (key := key_of(line))]


def unpriced_in(page: str) -> set[str]:
    """The keys of the constants that a page's table has no figures of."""
    return {key for line in page.splitlines() if (key := key_of(line)) and f"| {UNPRICED} |" in line}


def replaced(page: Path, lines: Mapping[str, str], *, keep: Collection[str], anew: bool) -> None:
    """The page with these lines in its table, by path. Of its own lines those stay whose keys are to ``keep``, but the
    ones that ``lines`` has ``anew``.

    Raises ConfigError for a page without the table.
    """
    text = page.read_text(encoding="utf-8")
    if HEAD not in text:
        raise ConfigError(
            where=str(page), key="--out", value=str(page), allowed=f"a page with the line {HEAD}"
        )
    head, rest = text.split(HEAD, maxsplit=1)
    rule, *below = rest.lstrip("\n").splitlines()
    own = {key_of(line): line for line in below if key_of(line) in keep}
    after = [line for line in below if not key_of(line)]
    joined = own | lines if anew else dict(lines) | own
    ordered = sorted(joined.values(), key=lambda line: key_of(line).split(":")[0])
    with replaced_path(page) as temporary:
        temporary.write_text("\n".join([head + HEAD, rule, *ordered, *after]) + "\n", encoding="utf-8")
