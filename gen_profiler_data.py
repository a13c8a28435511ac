"""Measures this cluster (torchrun --nproc-per-node=8 gen_profiler_data.py): the program is pss.profile."""

import sys

from pss.profile import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
