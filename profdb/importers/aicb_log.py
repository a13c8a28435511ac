"""Collectives of a log that AICB, or run_workload.py run, wrote: results/comm_logs/NAME_log.csv of one rank.

``msg_size`` is the whole array on one rank, as our ``size_bytes``; ``_elapsed_time`` is in milliseconds, which include
the rank's wait for others. Initialisation, before the first ``epoch_end``, is left out: its first operations make the
communicators. So are messages of a pipeline: a send ends before its data have arrived, and a receive waits for
the previous stage.

A group's place on the machine follows from its name, in the order tp-cp-ep-dp-pp of AICB's RankGenerator: tp ranks are
neighbours, dp and ep ranks are tp apart, expert-dp ranks tp x ep, pipeline ranks tp x dp. The sizes are those
in the log's own rows, 1 for a name without rows.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from ops.layout import Group, place
from profdb.cases import CollectiveCase
from profdb.importers.csv_rows import CsvRow, read_rows
from profdb.sample import Sample, WorldShape
from spec.arrays import ints
from spec.collectives import Collective
from spec.errors import ProfileError
from spec.units import MS

KINDS: dict[str, Collective] = {
    "all_reduce": Collective.ALL_REDUCE,
    "all_gather": Collective.ALL_GATHER,
    "all_gather_into_tensor": Collective.ALL_GATHER,
    "reduce_scatter": Collective.REDUCE_SCATTER,
    "reduce_scatter_tensor": Collective.REDUCE_SCATTER,
    "all_to_all": Collective.ALL_TO_ALL,
    "broadcast": Collective.BROADCAST,
    "reduce": Collective.REDUCE,
}
COLUMNS = ("comm_type", "comm_group", "comm_group_size", "msg_size", "_elapsed_time")
EPOCH_END = "epoch_end"
NONE = "None"


def read_aicb_log(path: str | Path, *, domain_ranks: int) -> dict[str, list[Sample]]:
    """Returns samples of the iterations, one per case with one trial per operation, under the GPU name "" (the log
    has none).

    ``domain_ranks`` are the GPUs of a scale-up domain. Raises ProfileError with line and reason; then nothing is
    imported.
    """
    source = Path(path)
    if not domain_ranks:
        raise ProfileError(f"{source}: does not say how many GPUs a node has: --domain_ranks; nothing imported")
    rows = list(read_rows(source, COLUMNS))
    trained = _after_initialisation(rows)
    if not trained:
        raise ProfileError(f"{source}: no {EPOCH_END}, or nothing after the first: no iteration; nothing imported")
    sizes = _group_sizes(rows, source)
    world = sizes["tp"] * sizes["dp"] * sizes["pp"]
    trials: dict[CollectiveCase, list[float]] = {}
    for row in trained:
        kind = KINDS.get(_word(row, "comm_type"))
        # Computation, messages of a pipeline, groups of one rank, and arrays of nothing: AICB's every Megatron step
        # reduces layer-norm gradients of 0 bytes (generate_megatron_workload.py, _get_layernorm_params).
        if kind is None or _size(row) <= 1 or row.text("msg_size") in ("0", "0.0"):
            continue
        group = _group(row, sizes, world, domain_ranks)
        case = CollectiveCase(
            collective=kind,
            size_bytes=row.whole("msg_size"),
            intra=int(group.intra[0]),
            inter=int(group.inter[0]),
            siblings=int(group.siblings[0]),
        )
        trials.setdefault(case, []).append(row.seconds("_elapsed_time", MS))
    shape = WorldShape(nodes=max(world // domain_ranks, 1), ranks=world)
    return {
        "": [
            Sample(case=case, trials_s=tuple(times), launched={"source": "aicb-log"}, world=shape)
            for case, times in trials.items()
        ]
    }


def _after_initialisation(rows: Sequence[CsvRow]) -> list[CsvRow]:
    """Returns the rows of the iterations."""
    # AICB writes one epoch_end after initialisation and one after each iteration.
    ends = [place for place, row in enumerate(rows) if _word(row, "comm_type") == EPOCH_END]
    return list(rows[ends[0] + 1 :]) if ends else []


def _group_sizes(rows: Sequence[CsvRow], source: Path) -> dict[str, int]:
    """Returns the ranks of each axis, as the groups in the log have them. Raises ProfileError for a group of two
    sizes."""
    sizes: dict[str, Counter[int]] = {}
    for row in rows:
        if _size(row):
            sizes.setdefault(_word(row, "comm_group").removesuffix("_group"), Counter())[_size(row)] += 1
    for name in ("tp", "dp", "ep", "pp"):
        if len(sizes.get(name, ())) > 1:
            raise ProfileError(
                f"{source}: {name}_group has {' and '.join(map(str, sorted(sizes[name])))} ranks: where they stand is "
                "not known; nothing imported"
            )
    return {name: next(iter(sizes.get(name, {1: 1}))) for name in ("tp", "dp", "ep", "pp")}


def _group(row: CsvRow, sizes: Mapping[str, int], world: int, domain_ranks: int) -> Group:
    """Returns the shape of a row's group on domains of ``domain_ranks``."""
    tp, name = sizes["tp"], _word(row, "comm_group").removesuffix("_group")
    # Distance between neighbouring members of each group, in ranks. ``embedding``: the first and the last pipeline
    # stage.
    strides = {
        "tp": 1,
        "ep_tp": 1,
        "all": 1,
        "dp": tp,
        "ep": tp,
        "ep_dp": tp * sizes["ep"],
        "pp": tp * sizes["dp"],
        "embedding": tp * sizes["dp"] * max(sizes["pp"] - 1, 1),
    }
    if name not in strides:
        raise row.refuse("comm_group", f"is none of {', '.join(strides)}: where its ranks stand is not known")
    return place(ints(_size(row)), ints(strides[name]), world, domain_ranks)


def _word(row: CsvRow, column: str) -> str:
    """Returns the text after the last dot of a cell: ``CommType.all_reduce`` and ``all_reduce`` alike."""
    return row.text(column, NONE).rpartition(".")[2]


def _size(row: CsvRow) -> int:
    """Returns the ranks of a row's group; 0 where the log does not state them."""
    return 0 if row.text("comm_group_size", NONE) == NONE else row.whole("comm_group_size")
