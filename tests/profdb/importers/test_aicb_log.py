from pathlib import Path

import pytest

from profdb.cases import CollectiveCase
from profdb.importers.aicb_log import read_aicb_log
from spec.collectives import Collective
from spec.errors import ProfileError

HEADER = "comm_type,comm_group,comm_group_size,msg_size,stage,dst,src,additional,_elapsed_time,algbw,busbw,count"
END = "CommType.epoch_end,None,None,0,,None,None,None,9.0,None,None,1"


def row(kind: str, group: str, ranks: int | str, size: int | str, elapsed_ms: float) -> str:
    """As AICB writes a row of its log."""
    named = f"CommGroup.{group}" if group != "None" else group
    return f"CommType.{kind},{named},{ranks},{size},forward.x,None,None,None,{elapsed_ms},1.0,1.0,1"


# 16 ranks, tp 2 x dp 4 x pp 2, on nodes of 4
ROWS = (
    row("all_reduce", "dp_group", 4, 8, 900.0),
    END,
    row("all_reduce", "tp_group", 2, 4096, 0.5),
    row("computation", "None", "None", '"((2 3) (3 4))"', 0.1),
    row("isend", "pp_group", 2, 64, 0.1),
    row("all_reduce", "tp_group", 2, 4096, 0.25),
    row("all_to_all", "ep_group", "None", 4096, 0.25),
    row("reduce_scatter", "dp_group", 4, 65536, 2.0),
    row("broadcast", "cp_group", 1, 8, 0.1),
    row("all_reduce", "tp_group", 2, 0, 0.02),
    row("all_gather", "ep_dp_group", 2, "0.0", 0.02),
    END,
)


def log(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "a_log.csv"
    path.write_text("\n".join((HEADER, *rows)) + "\n")
    return path


def test_operations_of_iterations_become_samples(tmp_path: Path) -> None:
    (samples,) = read_aicb_log(log(tmp_path, *ROWS), domain_ranks=4).values()
    # tp ranks are neighbours, two such pairs a node; dp ranks stand 2 apart: two in each of two nodes, two such groups
    assert [(sample.case, sample.trials_s) for sample in samples] == [
        (
            CollectiveCase(collective=Collective.ALL_REDUCE, size_bytes=4096, intra=2, inter=1, siblings=2),
            (0.5e-3, 0.25e-3),
        ),
        (CollectiveCase(collective=Collective.REDUCE_SCATTER, size_bytes=65536, intra=2, inter=2, siblings=2), (2e-3,)),
    ]
    assert {(sample.world.nodes, sample.world.ranks) for sample in samples} == {(4, 16)}


@pytest.mark.parametrize(
    ("rows", "domain_ranks", "said"),
    [
        (ROWS, 0, "a_log.csv: does not say how many GPUs a node has: --domain_ranks"),
        (ROWS[:1], 8, "no epoch_end, or nothing after the first"),
        ((*ROWS, row("all_reduce", "tp_group", 4, 8, 1.0)), 8, "tp_group has 2 and 4 ranks"),
        ((END, row("all_reduce", "tp_group", 2, 8, 0.0)), 8, "a_log.csv:3: _elapsed_time = '0.0': must be a positive"),
        ((END, row("all_reduce", "tp_group", 2, -1, 1.0)), 8, "a_log.csv:3: msg_size = '-1': must be a whole number"),
        ((END, row("all_reduce", "wp_group", 2, 8, 1.0)), 8, "comm_group = 'CommGroup.wp_group': is none of tp"),
    ],
)
def test_logs_that_cannot_be_used(tmp_path: Path, rows: tuple[str, ...], domain_ranks: int, said: str) -> None:
    with pytest.raises(ProfileError, match=said):
        read_aicb_log(log(tmp_path, *rows), domain_ranks=domain_ranks)
