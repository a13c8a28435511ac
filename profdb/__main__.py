"""The command of the database.

python -m profdb show FILE [--config CONFIG] [--json] [--refit]     what a profile holds
python -m profdb merge A B [...] --into C                           profiles of one GPU into one
python -m profdb import csv|nccl-tests|vidur SOURCE --gpu NAME --into FILE
python -m profdb export vidur FILE [--config CONFIG] --to FOLDER

Without a verb it shows.
"""

import sys

from profdb.commands import import_export, merge_files, show
from spec.errors import UserError


def main(arguments: list[str]) -> int:
    """Hand the arguments to their verb; 0."""
    verb = arguments[0] if arguments else ""
    if verb in ("import", "export"):
        return import_export.main(arguments)
    if verb == "merge":
        return merge_files.main(arguments[1:])
    if verb in ("-h", "--help"):
        print(__doc__)
        return 0
    return show.main(arguments[1:] if verb == "show" else arguments)


def exit_code(arguments: list[str]) -> int:
    """As ``main``, with 2 and one line for what the user can mend."""
    try:
        return main(arguments)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 0


if __name__ == "__main__":
    sys.exit(exit_code(sys.argv[1:]))
