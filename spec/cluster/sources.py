"""Each figure of a sheet has a source, and each source a figure."""

from collections.abc import Iterator, Mapping

from spec.errors import ConfigError
from spec.section import Section


def read_sources(top: Section) -> dict[str, str]:
    """The ``[sources]`` table: where a figure, or the figures of a table, come from, by dotted path."""
    table = top.section("sources")
    return {key: table.text(key) for key in table.values}


def check_sources(top: Section, sources: Mapping[str, str], figures: tuple[str, ...]) -> None:
    """Raise ConfigError for a figure without a source of its own or on a table around it, and for a
    source in the file itself that belongs to no figure."""
    for figure in figures:
        if not is_sourced(figure, sources):
            raise ConfigError(
                where=top.where,
                key=f"sources.{figure!r}",
                value=None,
                allowed="where this figure comes from (or a source for the table around it)",
            )
    for key in top.section("sources").values:
        if not any(figure == key or figure.startswith(f"{key}.") for figure in figures):
            raise ConfigError(
                where=top.where, key=f"sources.{key!r}", value=key, allowed="the key of a figure"
            )


def is_sourced(figure: str, sources: Mapping[str, str]) -> bool:
    """Whether a figure (dotted key path) or a table around it has a source."""
    parts = figure.split(".")
    return any(".".join(parts[:length]) in sources for length in range(1, len(parts) + 1))


def facts_of(values: Mapping[str, object]) -> tuple[str, ...]:
    """Dotted paths of all numbers, words, flags and lists in a table and in the tables inside it; the tables
    of a list go by their name."""
    return tuple(path for path, _ in _leaves(values))


def figures_of(values: Mapping[str, object]) -> tuple[str, ...]:
    """Those of facts_of that are numbers."""
    return tuple(
        path
        for path, value in _leaves(values)
        if isinstance(value, int | float) and not isinstance(value, bool)
    )


def _leaves(values: Mapping[str, object], around: str = "") -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        path = f"{around}.{key}" if around else key
        if isinstance(value, dict):
            yield from _leaves(value, path)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for table in value:
                yield from _leaves(table, f"{path}.{table['name']}")
        else:
            yield path, value
