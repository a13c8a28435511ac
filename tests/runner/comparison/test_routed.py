"""Experts' exchanges and products are known again however the router deals the tokens."""

from collections.abc import Iterator
from dataclasses import replace

from runner.comparison.expected import Expected
from runner.comparison.matched import matched
from runner.traces.trace_file import BACKWARD, FORWARD, Key, Ran, collective_key, product_key

SENT = collective_key("all2all", 1000, 2)
# 128 rows of 64 to gate and up of 96 each, priced as one, and back; weights' gradients by rows, as they are priced.
UP, DOWN = product_key(1, 128, 64, 192, FORWARD), product_key(1, 128, 96, 64, FORWARD)


def routed(key: Key, label: str, weight: tuple[int, int] | None = None) -> Expected:
    return Expected(key=key, label=label, axis="ep", seconds=1.0, count=1, routed=True, weight=weight)


def ran(*keys: Key) -> Iterator[Ran]:
    for at, key in enumerate(keys):
        yield Ran(key=key, name="made", start_s=float(at), seconds=2.0)


def test_exchanges_of_other_sizes_are_paired_in_order() -> None:
    wanted = [routed(SENT, "dispatch"), routed(SENT, "combine")]
    sizes = [1000, 1750]
    found = matched(wanted, ran(*(collective_key("all2all", size, None) for size in sizes)), 1)
    assert [(pair.label, pair.how, pair.ratio) for pair in found.pairs] == [
        ("dispatch", "as the router dealt", 2.0),
        ("combine", "as the router dealt", 2.0),
    ]
    assert (list(found.only_expected), list(found.only_ran)) == ([], [])


def test_exchanges_of_what_no_rank_can_have_are_none() -> None:
    """Both ranks' rows are 2000 bytes; the counts of rows that go before them 32."""
    wanted = [routed(SENT, "dispatch"), routed(SENT, "combine")]
    found = matched(wanted, ran(*(collective_key("all2all", size, None) for size in (1000, 2001, 32))), 1)
    assert [pair.label for pair in found.pairs] == ["dispatch"]
    assert {one.key.size_bytes for one in found.only_ran} == {2001, 32}


def test_each_experts_products_are_those_of_all() -> None:
    wanted = [routed(UP, "up", (64, 192)), routed(DOWN, "down", (96, 64))]
    rows = (30, 66)
    apart = [
        product_key(1, each, *sides, FORWARD) for each in rows for sides in ((64, 96), (64, 96), (96, 64))
    ]
    other = product_key(1, 128, 64, 64, FORWARD)
    (pair,) = matched(wanted, ran(*apart), 1).pairs
    assert pair.how == "each expert's own, 0.75 x the rows"
    assert (pair.label, pair.expected_s, pair.ran_s, pair.ratio) == ("forward products of experts", 2, 12, 6)
    assert [one.key for one in matched(wanted, ran(*apart, other), 1).only_ran] == [other]
    backward = [replace(key, direction=BACKWARD) for key in apart]
    assert not matched(wanted, ran(*backward), 1).pairs
