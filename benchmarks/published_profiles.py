"""The profiles that are shipped in prof_data/: published measurements of A100, H100, H200 and B200 nodes.

    python benchmarks/published_profiles.py --curves DIR --out prof_data --own prof_data/h100-sxm.pt

DIR holds gemm.csv, attention_context.csv and nccl.csv in the generic form of docs/data_format.md, converted from the
tables of aiconfigurator (Apache-2.0; FILES names them). Of profiles ``--own`` the samples that
this project measured are kept.
Rows of a serving engine that no training step has are left out: fewer than 256 rows of a product or a number of them
that is no multiple of 8, n below 128, k below 256, attention below 512 tokens or of more than 4 sequences. For each
family the script prints the mean error at a tenth of the rows kept, by all other rows and by the others kept.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.curve_accuracy import ask_attention, ask_gemm, cost_model_without  # noqa: E402
from benchmarks.measured_times import SPECS, read_folder, tables_by_gpu  # noqa: E402
from profdb.cases import Family  # noqa: E402
from profdb.cost_model import ProfileCostModel  # noqa: E402
from profdb.queries import TimeEstimate  # noqa: E402
from profdb.refit import with_fits  # noqa: E402
from profdb.sample import MachineFacts, ProfileDatabase, Samples  # noqa: E402
from profdb.store.columns import LabelColumn, SampleTable  # noqa: E402
from profdb.store.data_file import load_profile, save_profile  # noqa: E402
from profdb.store.merge import PUBLISHED, merge  # noqa: E402
from spec.arrays import BoolArray  # noqa: E402
from spec.cluster.reader import read_cluster  # noqa: E402
from spec.program.command import exit_status  # noqa: E402

SOURCE = "github:ai-dynamo/aiconfigurator@095f58a5 aic-core/src/aiconfigurator_core/systems/data"
FILES = {
    Family.GEMM: "{gpu}_sxm/gemm/trtllm/{trtllm}/gemm_perf.parquet",
    Family.ATTENTION: "{gpu}_sxm/attention/trtllm/{trtllm}/context_attention_perf.parquet",
    Family.COLLECTIVE: "{gpu}_sxm/comm/nccl/{nccl}/nccl_perf.parquet",
}
"""The file of each family below SOURCE, by GPU and by version of its software."""
VERSIONS = {"a100": ("1.0.0", "2.27.3")}
OTHER_VERSIONS = ("1.3.0rc20", "2.29.2")
OWN = "this project: benchmarks/notes/h100.md"
NAMES = {"h200": "data"}
"""Files that are not named after their hardware spec: data.pt is read by default."""
ASK: Mapping[Family, Callable[[ProfileCostModel, SampleTable], TimeEstimate]] = {
    Family.GEMM: ask_gemm,
    Family.ATTENTION: ask_attention,
}
HELD_OUT = 0.1


def of_training(table: SampleTable) -> BoolArray:
    """Returns the rows whose shapes a training step may have."""
    sizes = table.numbers
    if table.family is Family.GEMM:
        rows = (sizes["m"] >= 256) & (sizes["m"] % 8 == 0)
        return np.asarray(rows & (sizes["n"] >= 128) & (sizes["k"] >= 256), dtype=np.bool_)
    if table.family is Family.ATTENTION:
        return np.asarray((sizes["q_len"] >= 512) & (sizes["batch"] <= 4), dtype=np.bool_)
    return np.ones(table.size, dtype=np.bool_)


def from_source(table: SampleTable, where: str) -> SampleTable:
    """Returns the table with a published source for each of its samples."""
    return replace(table, launched=LabelColumn.of([f'{{"{PUBLISHED}": "{where}"}}'] * table.size))


def errors_without(gpu: str, table: SampleTable, kept: BoolArray) -> tuple[float, float]:
    """Returns the mean errors at held-out rows of those kept, by all other rows and by the others kept."""
    hidden = kept & (np.random.default_rng(0).random(table.size) < HELD_OUT)
    test = table.take(np.flatnonzero(hidden).astype(np.int64))
    means = []
    for seen in (~hidden, kept & ~hidden):
        times = ASK[table.family](cost_model_without(gpu, table, ~seen), test)
        means.append(float(np.nanmean(np.abs(times.seconds / test.medians_s() - 1.0))))
    return means[0], means[1]


def published(name: str, tables: Mapping[Family, SampleTable]) -> ProfileDatabase:
    """Returns the profile of a hardware spec by the published tables of its GPU, and prints what was left out."""
    cluster = read_cluster(name, root=ROOT)
    short = name.split("-", maxsplit=1)[0]
    trtllm, nccl = VERSIONS.get(short, OTHER_VERSIONS)
    result = {}
    for family, table in tables.items():
        kept = of_training(table)
        if not kept.all():
            every, thin = errors_without(name, table, kept)
            print(
                f"{name} {family.value}: {kept.sum():,} of {table.size:,} rows; mean error {every:.2%} by all, {thin:.2%} by these"
            )
        where = f"{SOURCE}/{FILES[family].format(gpu=short, trtllm=trtllm, nccl=nccl)}"
        result[family] = from_source(table.take(np.flatnonzero(kept).astype(np.int64)), where)
    machine = MachineFacts(
        gpu=cluster.gpu.name,
        memory_bytes=int(cluster.gpu.memory_bytes),
        gpus_per_node=cluster.gpus_per_node,
        cluster=name,
        rest="modelled",
    )
    return ProfileDatabase(machine=machine, samples=Samples(result))


def ours(path: Path) -> ProfileDatabase:
    """Returns what this project measured of a profile, as published samples."""
    profile = load_profile(path)
    tables = {}
    for family, table in profile.tables.items():
        words = np.asarray([SOURCE not in text for text in table.launched.values])
        own = table.take(np.flatnonzero(words[table.launched.codes]).astype(np.int64))
        if own.size:
            tables[family] = from_source(own, OWN)
    return ProfileDatabase(machine=replace(profile.machine, torch="", rest="modelled"), samples=Samples(tables))


def main() -> int:
    """Builds and writes all profiles."""
    parser = argparse.ArgumentParser(description="profiles of published measurements")
    parser.add_argument(
        "--curves", type=Path, required=True, help="folder of gemm.csv, attention_context.csv, nccl.csv"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the profiles")
    parser.add_argument("--own", type=Path, nargs="*", default=[], help="profiles that this project measured")
    options = parser.parse_args()
    own = [ours(path) for path in options.own]
    for gpu, tables in tables_by_gpu(read_folder(options.curves)[0]).items():
        name = SPECS.get(gpu[:4])
        if name is None or Family.GEMM not in tables:
            continue
        profile = published(name, tables)
        for one in own:
            if one.machine.gpu == profile.machine.gpu:
                profile = merge(profile, one).profile
        path = options.out / f"{NAMES.get(name, name)}.pt"
        save_profile(path, with_fits(profile))
        print(f"{path}: {len(profile.samples):,} samples, {path.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
