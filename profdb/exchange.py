"""The older name of two verbs: python -m profdb.exchange import|export is python -m profdb import|export."""

import sys

from profdb.__main__ import exit_code

if __name__ == "__main__":
    sys.exit(exit_code(sys.argv[1:]))
