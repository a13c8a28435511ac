"""General workloads, AIOB times, bus bandwidths and topologies hurt in every way: an error, or rows in bounds."""

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import run_workload
from spec.errors import UserError
from tests.solver.questions import question
from tests.workload.generator import made
from workload.aicb.aiob import MOST_US, AiobFile, ModuleTime, aiob_times_ns, read_aiob, write_aiob
from workload.aicb.csv_workload import Workload
from workload.diagnostics import Severity, summary_of
from workload.simai.busbw import BusBandwidths, SimaiNetwork, read_busbw, write_busbw
from workload.simai.check import check_simai
from workload.simai.closed_form import AnalyticalOptions, price_simai
from workload.simai.export import header_of, rows_of
from workload.simai.format import SimaiGroup
from workload.simai.reader import parse_simai, usable_workload
from workload.simai.replay import replay_simai
from workload.simai.writer import check_header, check_row
from workload.topology.templates import build_topology
from workload.topology.topology import bandwidth_bits, read_topology, write_topology

HURTS = ("cut", "shuffle", "drop", "repeat", "huge", "unicode", "crlf", "negative", "bytes")


def hurt(whole: bytes, kind: str, seed: int) -> bytes:
    """``whole`` hurt in one place."""
    draw = random.Random(seed)
    if kind == "cut":
        return whole[: draw.randrange(len(whole))]
    if kind == "crlf":
        return whole.replace(b"\n", b"\r\n")
    if kind == "bytes":
        place = draw.randrange(len(whole))
        return whole[:place] + draw.randbytes(draw.randrange(1, 9)) + whole[place + 1 :]
    lines = whole.decode().splitlines()
    row = draw.randrange(len(lines))
    if kind == "shuffle":
        draw.shuffle(lines)
    elif kind == "drop":
        del lines[row]
    elif kind == "repeat":
        lines.insert(row, lines[row])
    else:
        digits = [place for place, letter in enumerate(lines[row]) if letter.isdigit()]
        words = {
            "huge": "9" * draw.choice([8, 20, 400, 5000]),
            "unicode": draw.choice(["٣", "²", "\u202e", "\u2028", "\ufeff", "𝟜"]),
            "negative": "-7",
        }
        place = draw.choice(digits) if digits else 0
        lines[row] = lines[row][:place] + words[kind] + lines[row][place + 1 :]
    return ("\n".join(lines) + "\n").encode()


def general_bytes(folder: Path) -> bytes:
    path = folder / "whole.csv"
    words = "--model_size 7 --num_layers 2 --world_size 4 --tp_num 2 --global_batch 4 --computation_enable"
    run_workload.main(["generate", *words.split(), "--format", "general", "--output", str(path)])
    return path.read_bytes()


def aiob_bytes(folder: Path) -> bytes:
    path = folder / "aiob.txt"
    names = ("Emb", "layernorm", "atten_qkv", "mlp_linear_1", "param_time")
    times = {name: ModuleTime(max_us=9.0, min_us=7.0, avg_us=8.0) for name in names}
    write_aiob(path, AiobFile(train_iter=10, sections=times))
    return path.read_bytes()


def busbw_bytes(folder: Path) -> bytes:
    path = folder / "busbw.yaml"
    path.write_text("mine\nTP:\n  allreduce,: 300\n  allgather,: null\nDP:\n  allgather,: 380\nPP:\n  busbw: 47.5\n")
    write_busbw(path, read_busbw(path))
    return path.read_bytes()


def topology_bytes(folder: Path) -> bytes:
    path = folder / "topology"
    write_topology(path, build_topology({"template": "AlibabaHPN", "gpus": 16, "num_psw": 2}))
    return path.read_bytes()


def read_general_rows(path: Path) -> None:
    items = Workload.load(path)[0].items
    assert all(0 <= item.msg_size < 10**18 and 0 <= item.count < 10**18 for item in items)


def read_times(path: Path) -> None:
    assert all(0 <= time < MOST_US * 10**4 for time in aiob_times_ns(read_aiob(path)).values())


def read_bandwidths(path: Path) -> None:
    read: BusBandwidths = read_busbw(path)
    assert all(0 < value < 2**21 for value in read.groups.values())
    assert all(isinstance(group, SimaiGroup) for group, _ in read.groups)


def read_network(path: Path) -> None:
    topology, findings = read_topology(path)
    if topology is None:
        assert any(each.severity is Severity.BROKEN for each in findings)
    else:
        assert topology.num_nodes < 1000
        assert all(0 < bandwidth_bits(link.wire.bandwidth) < 1e22 for link in topology.links)


FORMATS: dict[str, tuple[Callable[[Path], bytes], Callable[[Path], None]]] = {
    "general": (general_bytes, read_general_rows),
    "aiob": (aiob_bytes, read_times),
    "busbw": (busbw_bytes, read_bandwidths),
    "topology": (topology_bytes, read_network),
}


@pytest.mark.parametrize("name", FORMATS)
def test_hurt_files_are_refused_or_in_bounds(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    write, read = FORMATS[name]
    folder = tmp_path_factory.mktemp(name)
    whole = write(folder)
    path = folder / "hurt"

    @settings(max_examples=2 * settings.default.max_examples)
    @given(kind=st.sampled_from(HURTS), seed=st.integers(0, 10**6))
    def check(kind: str, seed: int) -> None:
        path.write_bytes(hurt(whole, kind, seed))
        # Anything but an error of our own fails the test.
        with suppress(UserError):
            read(path)

    check()


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_no_file_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent", Path("/dev/null")):
        with pytest.raises(UserError, match=str(path)):
            FORMATS[name][1](path)


@pytest.mark.parametrize("name", FORMATS)
def test_line_ends_do_not_matter(name: str, tmp_path: Path) -> None:
    write, read = FORMATS[name]
    path = tmp_path / "dos"
    path.write_bytes(hurt(write(tmp_path), "crlf", 0))
    read(path)
    if name == "topology":
        assert read_topology(path)[1] == []


# Damaged SimAI files: every command answers with a finding or an error, in time, and never in silence.

OP_TIMER = question().op_timer
NETWORK = SimaiNetwork(gpus_per_server=8, nics_per_server=8, nvlink_gib=300.0, nic_gib=48.0)


def whole_file() -> bytes:
    result = made("--model_size 7 --num_layers 2 --world_size 16 --tp_num 4 --pp_num 2 --global_batch 8")
    work = result.works[0]
    header = header_of(result.plan, work)
    rows = [row.line() for row in rows_of(work, header, result.plan)]
    return "\n".join([header.line(), str(len(rows)), *rows, ""]).encode()


GOOD = whole_file()


@settings(max_examples=2 * settings.default.max_examples)
@given(kind=st.sampled_from(HURTS), seed=st.integers(0, 10**6))
def test_a_damaged_workload_is_named_or_priced(kind: str, seed: int) -> None:
    with suppress(UserError):
        file = parse_simai(hurt(GOOD, kind, seed))
        findings = check_simai(file)
        assert all(line.isprintable() for line in summary_of(findings))
        workload = usable_workload(file)
        if not findings:
            # The writer agrees that nothing is wrong.
            check_header(workload.header)
            for index, row in enumerate(workload.rows):
                check_row(row, workload.header, index=index)
        # Whatever can be priced had no finding that says it cannot be told.
        assert all(each.severity is not Severity.BROKEN for each in file.findings)
        for total in (
            replay_simai(workload, OP_TIMER).step_s,
            price_simai(workload, AnalyticalOptions(network=NETWORK)).total_s,
        ):
            assert total >= 0
            assert total < float("inf")


@pytest.mark.parametrize("end", range(0, len(GOOD) - 1, 997))
def test_a_truncated_file_is_never_taken_for_whole(end: int) -> None:
    with pytest.raises(UserError):
        usable_workload(parse_simai(GOOD[:end]))


def test_line_ends_move_no_price() -> None:
    unix, dos = (usable_workload(parse_simai(text)) for text in (GOOD, GOOD.replace(b"\n", b"\r\n")))
    assert replay_simai(unix, OP_TIMER).step_s == replay_simai(dos, OP_TIMER).step_s
