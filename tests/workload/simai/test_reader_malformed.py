"""Damaged SimAI files: every command answers with a finding or an error, in time, and never in silence."""

import random
import string
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec.errors import UserError
from tests.solver.questions import question
from tests.workload.generating import made
from workload.findings import Severity
from workload.simai.busbw import SimaiNetwork
from workload.simai.check import check_simai
from workload.simai.closed_form import AnalyticalOptions, price_simai
from workload.simai.export import header_of, rows_of
from workload.simai.reader import parse_simai, usable_workload
from workload.simai.replay import replay_simai

PRICER = question().pricer
NETWORK = SimaiNetwork(gpus_per_server=8, nics_per_server=8, nvlink_gib=300.0, nic_gib=48.0)


def whole_file() -> bytes:
    result = made("--model_size 7 --num_layers 2 --world_size 16 --tp_num 4 --pp_num 2 --global_batch 8")
    work = result.works[0]
    header = header_of(result.plan, work)
    rows = [row.line() for row in rows_of(work, header, result.plan)]
    return "\n".join([header.line(), str(len(rows)), *rows, ""]).encode()


GOOD = whole_file()
HURTS = (
    "cut",
    "shuffle lines",
    "shuffle words",
    "huge",
    "unicode",
    "crlf",
    "zeros",
    "negative",
    "swap",
    "noise",
)


def hurt(kind: str, seed: int) -> bytes:
    draw = random.Random(seed)
    lines = GOOD.decode().splitlines()
    words = [line.split() for line in lines]
    row = draw.randrange(len(words))
    place = draw.randrange(len(words[row]))
    changed = {
        "huge": "9" * draw.randrange(10, 400),
        "unicode": draw.choice(["ÅLLREDUCE", "٣", "\u202e", "𝟜", "\ufeff"]),
        "zeros": "0",
        "negative": f"-{draw.randrange(10**12)}",
        "noise": "".join(draw.choices(string.printable.strip(), k=draw.randrange(1, 30))),
    }
    if kind == "cut":
        return GOOD[: draw.randrange(len(GOOD))]
    if kind == "crlf":
        return GOOD.replace(b"\n", b"\r\n")
    if kind == "shuffle lines":
        draw.shuffle(lines)
    elif kind == "shuffle words":
        draw.shuffle(words[row])
        lines = [" ".join(each) for each in words]
    elif kind == "swap":
        other = draw.randrange(len(words))
        words[row], words[other] = words[other], words[row]
        lines = [" ".join(each) for each in words]
    else:
        words[row][place] = changed[kind]
        lines = [" ".join(each) for each in words]
    return "\n".join(lines).encode()


@settings(max_examples=400, deadline=2000)
@given(kind=st.sampled_from(HURTS), seed=st.integers(0, 10**6))
def test_a_damaged_file_is_named_or_priced(kind: str, seed: int) -> None:
    with suppress(UserError):
        file = parse_simai(hurt(kind, seed))
        findings = check_simai(file)
        workload = usable_workload(file)
        # Whatever can be priced had no finding that says it cannot be told.
        assert all(each.severity is not Severity.BROKEN for each in file.findings)
        for total in (
            replay_simai(workload, PRICER).step_s,
            price_simai(workload, AnalyticalOptions(network=NETWORK)).total_s,
        ):
            assert total >= 0
            assert total < float("inf")
        assert isinstance(findings, list)


@pytest.mark.parametrize("end", range(0, len(GOOD) - 1, 997))
def test_a_truncated_file_is_never_taken_for_whole(end: int) -> None:
    with pytest.raises(UserError):
        usable_workload(parse_simai(GOOD[:end]))


def test_line_ends_do_not_matter() -> None:
    unix, dos = (usable_workload(parse_simai(text)) for text in (GOOD, GOOD.replace(b"\n", b"\r\n")))
    assert replay_simai(unix, PRICER).step_s == replay_simai(dos, PRICER).step_s
