"""``python -m pss`` is ``pss``."""

import sys

from pss.command import main

if __name__ == "__main__":
    sys.exit(main())
