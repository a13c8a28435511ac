"""Speed of look-ups, loading and the main command on this machine.

    python benchmarks/speed.py [--profile FILE] [--runs N]

Prints medians over N runs: a million look-ups of at most 10,000 different shapes, loading a profile of 54,000
samples with 10 trials each (the profile's own samples, repeated with made-up noise), and the main command.
Exits with 1 when the look-ups of a family take a second or more.
"""

import argparse
import datetime
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from profdb.cost_model import ProfileCostModel  # noqa: E402
from profdb.queries import AttentionQuery, CollectiveQuery, LinearQuery, MemoryBoundQuery, Query  # noqa: E402
from profdb.refit import with_fits  # noqa: E402
from profdb.sample import ProfileDatabase, Samples  # noqa: E402
from profdb.store.columns import SampleTable  # noqa: E402
from profdb.store.data_file import load_profile, save_profile  # noqa: E402
from spec.arrays import IntArray, ints  # noqa: E402
from spec.collectives import Collective  # noqa: E402
from spec.errors import UserError  # noqa: E402

LOOKUPS, SHAPES = 1_000_000, 10_000
SAMPLES, TRIALS = 54_000, 10
LIMIT_S = 1.0
MAIN_COMMAND = (
    *("--config", "configs/7B_internlm2.py", "--run_all_solu", "--model_size", "7"),
    *("--world_size", "128", "--global_batch_size", "4194304"),
)


def median_s(runs: int, work: Callable[[], object]) -> float:
    """Median wall time of ``work`` over ``runs`` calls, seconds."""
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return float(np.median(times))


def questions(seed: int) -> dict[str, Query]:
    """A million look-ups of at most 10,000 different shapes in the usual ranges, by the cost model's method without ``_s``."""
    rng = np.random.default_rng(seed)
    which = rng.integers(0, SHAPES, LOOKUPS)

    def draw(low: int, high: int, step: int = 1) -> IntArray:
        return ints(rng.integers(low, high + 1, SHAPES)[which] * step)

    heads = 8 * 2 ** rng.integers(0, 4, SHAPES)[which]
    length = draw(32, 1024, 16)
    return {
        "linear": LinearQuery(m=draw(4, 256, 128), k=draw(4, 128, 128), n=draw(4, 128, 128)),
        "attention": AttentionQuery(
            batch=draw(1, 8), q_len=length, kv_len=length, heads=heads, kv_heads=8, qk_dim=128, v_dim=128
        ),
        "memory_bound": MemoryBoundQuery(kernel="rmsnorm", rows=draw(1, 256, 128), width=draw(4, 128, 128)),
        "collective": CollectiveQuery(
            collective=Collective.ALL_GATHER,
            size_bytes=draw(1, 1 << 20, 1024),
            intra=2 ** rng.integers(1, 4, SHAPES)[which],
            inter=1,
        ),
    }


def enlarged(profile: ProfileDatabase, seed: int) -> ProfileDatabase:
    """The profile's samples repeated until there are 54,000, with noisy trials and fits."""
    rng = np.random.default_rng(seed)
    size = sum(table.size for table in profile.tables.values())
    tables = {family: _enlarged(table, SAMPLES / size, rng) for family, table in profile.tables.items()}
    return with_fits(replace(profile, samples=Samples(tables), fits={}))


def _enlarged(table: SampleTable, times: float, rng: np.random.Generator) -> SampleTable:
    more = table.take(np.arange(round(table.size * times), dtype=np.int64) % table.size)
    noise = rng.normal(1.0, 0.01, (more.size, TRIALS))
    return replace(
        more,
        trials_s=np.abs(more.medians_s()[:, None] * noise).reshape(-1),
        trial_offsets=ints(np.arange(more.size + 1) * TRIALS),
    )


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="speed of look-ups, loading and the main command")
    parser.add_argument("--profile", type=Path, default=ROOT / "prof_data" / "data.pt")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    profile = load_profile(options.profile)
    result: dict[str, float] = {}
    for name, query in questions(0).items():
        what = f"{name}: {LOOKUPS:,} look-ups of {SHAPES:,} shapes"
        look_up = getattr(ProfileCostModel(profile), f"{name}_s")
        result[what] = median_s(options.runs, partial(look_up, query))
    slowest = max(result.values())
    with tempfile.TemporaryDirectory() as folder:
        large = Path(folder) / "large.pt"
        save_profile(large, enlarged(profile, 0))
        size = len(load_profile(large).samples)
        result[f"loading {size:,} samples of {TRIALS} trials, with fits"] = median_s(
            options.runs, lambda: load_profile(large)
        )
    command = [sys.executable, "simulation_train_formulaic.py", *MAIN_COMMAND]
    command += ["--pre_profiling_data_path", str(options.profile.resolve())]
    result["main command, 7B on 128 GPUs, as a process"] = median_s(
        options.runs, lambda: subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    )
    for what, seconds in result.items():
        print(f"{what:55} {seconds:8.3f} s")
    print(f"median of {options.runs} runs on {os.cpu_count()} cores, {datetime.date.today().isoformat()}")
    return 0 if slowest < LIMIT_S else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
