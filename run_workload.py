"""Generates, checks, prices and runs workloads: the program is pss.workload, also ``pss workload``."""

import sys

from pss.workload import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
