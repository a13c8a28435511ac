"""nccl-tests logs: sizes, groups, both times, and every damaged log refused whole."""

from pathlib import Path

import pytest

from profdb.cases import CollectiveCase
from profdb.importers.nccl_tests import read_nccl_tests
from profdb.sample import Sample
from spec.collectives import Collective
from spec.errors import ProfileError

COLUMNS = (
    "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    "     time   algbw   busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)"
    "            (us)  (GB/s)  (GB/s)\n"
)


def ranks(hosts: int, each: int, gpu: str = "NVIDIA H100 80GB HBM3") -> str:
    return "".join(
        f"#  Rank {host * each + rank:2d} Group  0 Pid  {4000 + rank} on node-{host} device {rank:2d} "
        f"[0000:0{rank}:00] {gpu}\n"
        for host in range(hosts)
        for rank in range(each)
    )


def log(program: str, hosts: int, each: int, rows: str) -> str:
    return (
        "# nccl-tests version 2.17.6 nccl-headers=22803 nccl-library=22803\n"
        f"# Collective test starting: {program}_perf\n"
        "# nThread 1 nGpus 1 minBytes 1024 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20\n"
        "#\n# Using devices\n" + ranks(hosts, each) + "#\n" + COLUMNS + rows + "# Out of bounds values : 0 OK\n"
    )


# 1 GiB in 4000 us is 268.44 GB/s; busbw = algbw * 7 / 8 for an all-gather of 8 (PERFORMANCE.md)
ROW = (
    "  1073741824     33554432     float    none      -1   4000.0  268.44  234.88      0"
    "   4100.0  261.89  229.15      0\n"
)
SMALL = (
    "        1024           32     float    none      -1    12.50    0.08    0.07      0"
    "    12.00    0.09    0.07    N/A\n"
)


def read(tmp_path: Path, text: str, name: str = "log.txt", domain_ranks: int = 0) -> list[Sample]:
    (tmp_path / name).write_text(text)
    found = read_nccl_tests(tmp_path / name, domain_ranks=domain_ranks)
    assert len(found) == 1
    return next(iter(found.values()))


def test_all_gather_of_one_node(tmp_path: Path) -> None:
    found = read(tmp_path, log("all_gather", 1, 8, SMALL + "[node-0:1] an MPI message\n" + ROW))
    assert [s.trials_s[0] for s in found] == pytest.approx([12.5e-6, 12e-6, 4000e-6, 4100e-6])
    assert [s.launched["in_place"] for s in found] == [False, True, False, True]
    assert found[2].case == CollectiveCase(
        collective=Collective.ALL_GATHER, size_bytes=1 << 30, intra=8, inter=1, dtype="fp32"
    )


def test_two_nodes_and_a_domain_over_hosts(tmp_path: Path) -> None:
    text = log("alltoall", 2, 4, ROW)
    case = read(tmp_path, text)[0].case
    assert isinstance(case, CollectiveCase)
    assert (case.collective, case.intra, case.inter) == (Collective.ALL_TO_ALL, 4, 2)
    joined = read(tmp_path, text, domain_ranks=72)[0].case
    assert isinstance(joined, CollectiveCase)
    assert (joined.intra, joined.inter) == (8, 1)


def test_sendrecv_is_p2p_between_neighbours(tmp_path: Path) -> None:
    case = read(tmp_path, log("sendrecv", 2, 1, ROW))[0].case
    assert isinstance(case, CollectiveCase)
    assert (case.collective, case.intra, case.inter) == (Collective.P2P, 1, 2)


def test_several_runs_in_one_file_and_an_old_header(tmp_path: Path) -> None:
    old = (
        "# nThread 1 nGpus 2 minBytes 1024\n"
        "#   Rank  0 Pid  53421 on dgx device  0 [0x06] Tesla V100\n"
        "#   Rank  1 Pid  53421 on dgx device  1 [0x07] Tesla V100\n"
        "#       size  count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error\n"
        "        1024    256   float     sum    20.00    0.05    0.05  0e+00    21.00    0.05    0.05  0e+00\n"
    )
    path = tmp_path / "all_reduce_perf.log"
    path.write_text(old + log("reduce_scatter", 1, 8, ROW))
    found = read_nccl_tests(path)
    assert set(found) == {"Tesla V100", "NVIDIA H100 80GB HBM3"}
    assert found["Tesla V100"][0].case.collective is Collective.ALL_REDUCE  # type: ignore[union-attr]


GOOD = log("all_gather", 1, 8, SMALL + ROW)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no row"),
        (GOOD.replace("all_gather_perf", "alltoallv_perf"), "unequal parts"),
        (GOOD.replace(" time ", " cputime "), "CPU times"),
        (GOOD.replace("all_gather_perf", "thing"), "unnamed program"),
        (GOOD.replace("#  Rank", "#  Nobody"), "how many GPUs"),
        (GOOD.replace("Group  0", "Group  1"), "several groups"),
        (GOOD.replace("  261.89", ""), "12 cells"),
        (GOOD.replace("4000.0", "-4000.0"), "not positive"),
        (GOOD.replace("4000.0", "4x00.0"), "no number"),
        (GOOD.replace("4000.0", "5000.0"), "is not that of size and time"),
        (GOOD.replace("234.88      0", "234.88      7"), "7 wrong values"),
        (GOOD.replace("float    none      -1   4000", "quark    none      -1   4000"), "type 'quark'"),
        (GOOD.replace("on node-0 device  0", "on node-9 device  0"), "different numbers of ranks"),
        (log("sendrecv", 2, 4, ROW), "mixes links"),
        (GOOD.replace("  1073741824", f"  {'9' * 5000}", 1), "size '9+...' is not a whole number"),
    ],
)
def test_bad_logs(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=says) as caught:
        read(tmp_path, text)
    assert "log.txt" in str(caught.value)
    assert "nothing imported" in str(caught.value)


# nccl-tests src/gather.cu and hypercube.cu pass an empty operator, so the cell under redop is blank;
# hypercube's algbw is (n-1)/n of size / time: 268.44 * 7 / 8.
ROOTED = (
    "  1073741824     33554432     float               0   4000.0  268.44  234.88      0"
    "   4100.0  261.89  229.15      0\n"
)
PAIRS = (
    "  1073741824     33554432     float              -1   4000.0  234.88  234.88      0"
    "   4100.0  229.15  229.15      0\n"
)


@pytest.mark.parametrize(
    ("program", "row", "kind"),
    [
        ("reduce", ROW.replace("none      -1", " sum       0"), Collective.REDUCE),
        ("gather", ROOTED, Collective.GATHER),
        ("scatter", ROOTED, Collective.SCATTER),
        ("hypercube", PAIRS, Collective.HYPERCUBE),
        ("broadcast", ROW.replace("-1", " 0"), Collective.BROADCAST),
        ("alltoall", ROW, Collective.ALL_TO_ALL),
    ],
)
def test_every_program(program: str, row: str, kind: Collective, tmp_path: Path) -> None:
    found = read(tmp_path, log(program, 2, 4, row))
    assert [s.trials_s[0] for s in found] == pytest.approx([4000e-6, 4100e-6])
    assert found[0].case == CollectiveCase(collective=kind, size_bytes=1 << 30, intra=4, inter=2, dtype="fp32")


@pytest.mark.parametrize(
    "prefix", ["[1,0]<stdout>:", "[1,0]<stdout>: ", "Sat Nov 21 13:00:00 2026[1,0]<stdout>:", "0: "]
)
def test_what_a_launcher_writes_before_each_line(prefix: str, tmp_path: Path) -> None:
    text = "".join(f"{prefix}{line}\n" for line in log("all_gather", 2, 8, SMALL + ROW).splitlines())
    found = read(tmp_path, text)
    assert [s.trials_s[0] for s in found] == pytest.approx([12.5e-6, 12e-6, 4000e-6, 4100e-6])
    assert found[0].world.nodes == 2


def test_time_stamps_single_iterations_and_empty_messages(tmp_path: Path) -> None:
    stamped = log("all_gather", 1, 8, ROW.rstrip() + "  2026-11-21 13:00:00\n").replace(
        "busbw #wrong\n#", "busbw #wrong            timestamp\n#", 1
    )
    assert [s.trials_s[0] for s in read(tmp_path, stamped)] == pytest.approx([4000e-6, 4100e-6])
    each = "   i_min   i_max   i_p99   i_cv%"
    single = log("all_gather", 1, 8, ROW.replace("      0", "      0  3900.0  4300.0  4200.0    1.20"))
    single = single.replace("#wrong", "#wrong" + each)
    assert [s.trials_s[0] for s in read(tmp_path, single)] == pytest.approx([4000e-6, 4100e-6])
    nothing = SMALL.replace("1024           32", "   0            0")
    assert len(read(tmp_path, log("all_gather", 1, 8, nothing + ROW))) == 2
