"""The version of the project: what ``--version`` prints and pyproject.toml packages."""

VERSION = "0.1.0"
DISTRIBUTION = "parallel-strategy-solver"
VERSION_LINE = f"{DISTRIBUTION} {VERSION}"
