"""The older name of two verbs: python -m profdb.exchange import|export is python -m profdb import|export."""

import sys

from profdb.__main__ import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
