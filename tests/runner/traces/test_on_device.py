"""A GPU's trace as torch and Kineto write it, which says of some kernels nothing where they stand."""

import json
from collections import Counter

import pytest

from runner.traces.launches import Launches, launches
from runner.traces.trace_file import Key, Part, collective_key, product_key, read_trace
from tests.runner.traces.made_kineto import BYTES_OF_MESSAGE, STEP_US, trace


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Launches:
    path = tmp_path_factory.mktemp("kineto") / "rank1.json"
    path.write_text(json.dumps(trace()))
    held = read_trace(path)
    assert (held.rank, held.world_size) == (1, 4)
    return launches(held)


def seconds_of(found: Launches, key: Key) -> list[float]:
    return [round(one.seconds * 1e6, 3) for one in found.ran if one.key == key]


def test_every_kernel_of_both_steps_is_there_once(found: Launches) -> None:
    counts = Counter(one.key.part for one in found.ran)
    assert counts == {Part.COLLECTIVE: 8, Part.PRODUCT: 6, Part.ATTENTION: 4, Part.KERNEL: 6}
    whole_us = 80 + 12 + 44 + 60 + 100 + 50 + 45 + 2 + 30 + 1 + 20
    assert sum(one.seconds for one in found.ran) == pytest.approx(2 * whole_us * 1e-6)
    assert found.num_steps == 2


def test_a_linked_collective_says_its_bytes_and_group(found: Launches) -> None:
    key = collective_key("all_gather", 2 * 2 * 2048 * 4096, 2)
    assert seconds_of(found, key) == [80.0, 80.0]


def test_a_kernel_that_ends_a_group_is_the_calls_of_the_group(found: Launches) -> None:
    """A send and a receipt share its 100 us; that of the first step runs on into the second. Calls of
    one rank, of another thread and of another kind are none of it."""
    key = collective_key("p2p", BYTES_OF_MESSAGE, 2)
    assert seconds_of(found, key) == [50.0] * 4
    one, other = [one for one in found.ran if one.key == key][:2]
    assert other.start_s == pytest.approx(one.start_s + 50e-6)


def test_gathers_in_one_call_are_as_long_as_all_of_them(found: Launches) -> None:
    assert seconds_of(found, collective_key("all_gather", 2600 * 2, None)) == [30.0, 30.0]


def test_what_follows_a_work_that_never_ends_is_no_part_of_it(found: Launches) -> None:
    for direction, took_us in (("backward", 50.0), ("forward", 45.0)):
        assert seconds_of(found, product_key(1, 4096, 2048, 4096, direction)) == [took_us] * 2


def test_a_product_past_torch_has_its_sum_and_an_attention_its_pairs(found: Launches) -> None:
    unsaid = Key(part=Part.PRODUCT, what="product", direction="forward")
    assert seconds_of(found, unsaid) == [44.0, 44.0]
    pairs = {one.pairs for one in found.ran if one.name.startswith("aten::_flash")}
    assert pairs == {16 * 4096 * 4097 / 2}


def test_three_kernels_of_cudnn_are_one_backward(found: Launches) -> None:
    key = Key(part=Part.ATTENTION, what="attention", direction="backward")
    assert seconds_of(found, key) == [20.0, 20.0]


def test_idle_is_what_neither_stream_covers(found: Launches) -> None:
    """343 us of a step beside its messages and what comes late, which runs beside the next step's gather and messages;
    70 us of the first step's messages run beside that gather."""
    whole_us = 2 * (STEP_US - 50)
    covered_us = 2 * (80 + 12 + 44 + 60 + 50 + 45 + 2 + 30 + 20) + 100 + 30
    assert found.idle_s == pytest.approx((whole_us - covered_us) / 2 * 1e-6)
