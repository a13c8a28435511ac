"""Searches every parallel plan on a CPU, or prices one: the program is pss.plans, also ``pss search`` and ``pss price``."""

import sys

from pss.plans import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
