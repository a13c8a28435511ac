"""The largest number that each kind of field can mean; what is larger is a slip of the pen, or an attack.

Each is well beyond anything built or published, and small enough that the products formulas make of them
stay whole numbers of 64 bits (solver.countable checks the products of a model and a job).
"""

MOST_GPUS = 2**24
"""The largest clusters built have some 2**18."""

MOST_SEQUENCE_TOKENS = 2**30
"""Published contexts end at some 2**27 tokens."""

MOST_STEP_TOKENS = 2**40
"""Published global batches end at some 2**27 tokens."""

MOST_LAYERS = 10_000
"""Blocks of a model; they are listed one by one."""

MOST_COUNT = 2**40
"""Widths, heads, experts, elements of a bucket."""

MOST_BYTES = 2**50
"""One array, or one message."""

MOST_EPOCHS = 100_000
"""Iterations that a workload file repeats."""

MOST_SHOWN = 100_000
"""Plans that are printed or ranked."""

MOST_MINUTES = 1e6
"""Two years."""
