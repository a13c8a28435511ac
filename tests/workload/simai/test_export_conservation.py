"""Bytes written plus bytes listed are the bytes priced, for models and plans of every kind."""

from collections import Counter

import pytest
from hypothesis import given, settings

from ops.op import Axis
from solver.plans.plan_table import Plan
from tests.workload.random_plans import Case, cases, priced_bytes
from workload.aicb.plan_rows import COMM_NAMES, GROUP_NAMES, GeneralOptions, general_items
from workload.simai.export import beyond_of, fits_format, group_of_item, header_of, rows_of
from workload.simai.format import PREFIXES, Column, SimaiGroup, SimaiHeader, read_token
from workload.stage_work import StageWork, stage_works

COLLECTIVE_NAMES = {kind.value: name for kind, name in COMM_NAMES.items()}


def counts(work: StageWork) -> list[tuple[int, object]]:
    return [*((n * work.num_micro, item) for n, item in work.per_micro_batch()), *((1, i) for i in work.step)]


def exported_bytes(work: StageWork, header: SimaiHeader, plan: Plan) -> Counter[tuple[str, Column]]:
    """Bytes in the rows by word and column."""
    totals: Counter[tuple[str, Column]] = Counter()
    for row in rows_of(work, header, plan):
        for column in Column:
            token, size_bytes = row.comm(column)
            if size_bytes:
                totals[(token, column)] += size_bytes
    return totals


def simai_holds_every_byte(case: Case, work: StageWork, priced: dict[tuple[str, str], int]) -> None:
    header = header_of(case.plan, work)
    listed: Counter[tuple[str, str]] = Counter()
    for one in beyond_of(work, header, case.plan):
        if one.what != "pipeline transfers":
            listed[(one.collective, one.axis)] += one.total_bytes
    # What is not listed must lie in the file, under the word and group of its axis.
    expected: Counter[tuple[str, SimaiGroup]] = Counter()
    groups = {
        (item.collective.value, item.axis.value): group_of_item(item, header, case.plan)
        for _, item in counts(work)
        if item.collective and fits_format(item, header, case.plan)
    }
    for kind, size in priced.items():
        rest = size - listed.pop(kind, 0)
        assert rest >= 0
        if rest:
            expected[(kind[0], groups[kind])] += rest
    assert not listed
    written: Counter[tuple[str, SimaiGroup]] = Counter()
    for (token, column), size in exported_bytes(work, header, case.plan).items():
        collective, group = read_token(token, column)
        assert collective in PREFIXES.values()
        written[(collective.value, group)] += size
    assert written == expected


def general_holds_every_byte(case: Case, work: StageWork, priced: dict[tuple[str, str], int]) -> None:
    expected: Counter[tuple[str, str]] = Counter()
    for (collective, axis), size in priced.items():
        expected[(COLLECTIVE_NAMES[collective], GROUP_NAMES[Axis(axis)])] += size
    written: Counter[tuple[str, str]] = Counter()
    hops = 0
    for item in general_items(case.plan, work, GeneralOptions()):
        if item.additional:
            hops += item.msg_size
        elif item.stage != "init" and item.comm_group:
            written[(item.comm_type, item.comm_group)] += item.msg_size * item.count
    assert written == expected
    # A hop is sent by one stage and received by the next; every chunk has two neighbours but the
    # model's ends.
    ends = int(work.position == 0) + int(work.position == case.plan.pp - 1)
    links = 2 * case.plan.vpp - ends if case.plan.pp > 1 else 0
    assert hops == 2 * links * case.plan.num_micro * work.hop_bytes
    assert work.hops == 2 * links


@settings(max_examples=20, deadline=None)
@given(case=cases())
def test_every_byte_by_collective_and_group(case: Case) -> None:
    every_byte_is_written(case)


@pytest.mark.nightly
@settings(max_examples=400, deadline=None)
@given(case=cases())
def test_every_byte_of_many_plans(case: Case) -> None:
    every_byte_is_written(case)


def every_byte_is_written(case: Case) -> None:
    for work in stage_works(case.question, case.plan):
        priced = priced_bytes(case, work.position)
        simai_holds_every_byte(case, work, priced)
        general_holds_every_byte(case, work, priced)
