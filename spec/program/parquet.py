"""Parquet files need pyarrow, which nothing else of the project does."""

from importlib.util import find_spec

from spec.errors import ConfigError


def check_parquet(where: str) -> None:
    """ConfigError, which says how to mend it, where pyarrow is not installed; ``where`` a file is asked for."""
    if find_spec("pyarrow") is None:
        raise ConfigError(
            where=where,
            key="pyarrow",
            value=None,
            allowed="an installed one (pip install pyarrow, or the extra parquet)",
        )
