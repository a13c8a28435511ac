"""Which options of a verb name the files it writes, and which the files it reads."""

import argparse
from pathlib import Path

from spec.program.outputs import check_outputs
from workload.command_line import GENERATE, SIMULATE, TOPOLOGY, TRAFFIC

WRITTEN: dict[str, tuple[str, ...]] = {
    GENERATE: ("output", "write_aiob"),
    SIMULATE: ("json", "rows"),
    TOPOLOGY: ("output", "picture", "write_cluster"),
    TRAFFIC: ("csv", "picture"),
}
READ: dict[str, tuple[str, ...]] = {
    GENERATE: ("config", "profile", "comp_filepath"),
    SIMULATE: ("file", "workload", "profile", "busbw"),
    TOPOLOGY: ("check", "cluster"),
}


def check_result_files(options: argparse.Namespace) -> None:
    """Raise ConfigError for a result that cannot be written, or is a file that is read or another result, before any
    work is done. An output that is a folder gets a file of the verb's naming in it."""
    written = {f"--{name}": getattr(options, name) for name in WRITTEN.get(options.verb, ())}
    read = {f"--{name}": getattr(options, name) for name in READ.get(options.verb, ())}
    check_outputs(
        {option: path for option, path in written.items() if path is not None and not path.is_dir()},
        folders={"--bundle": getattr(options, "bundle", None)},
        inputs={option: Path(path) if path is not None else None for option, path in read.items()},
    )
