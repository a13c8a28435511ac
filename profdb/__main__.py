"""The command of the database.

python -m profdb show FILE [--config CONFIG] [--json] [--refit]     the content of a profile
python -m profdb merge A B [...] --into C                           profiles of one GPU into one
python -m profdb import aicb-log|csv|journal|nccl-tests SOURCE --gpu NAME --into FILE

Without a verb it shows the profile.
"""

# ruff: noqa: E402 - the imports below take a second, and Ctrl-C may come meanwhile
from spec.program.command import exit_status, quiet_interrupts

quiet_interrupts()

import sys

from profdb.commands import import_measurements, merge_files, show
from spec.program.command import VERSION_LINE


def main(arguments: list[str]) -> int:
    """Passes the arguments to their verb; returns the exit status."""
    return exit_status(lambda: run(arguments))


def run(arguments: list[str]) -> int:
    """Passes the arguments to their verb; returns 0. Raises UserError for errors that the user can correct."""
    verb = arguments[0] if arguments else ""
    if verb == "import":
        return import_measurements.main(arguments[1:])
    if verb == "merge":
        return merge_files.main(arguments[1:])
    if verb == "--version":
        print(VERSION_LINE)
        return 0
    if verb in ("-h", "--help"):
        print(__doc__)
        return 0
    return show.main(arguments[1:] if verb == "show" else arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
