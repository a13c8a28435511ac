"""DeepSpeed's buckets, prefetch groups and persistence, and FSDP's units, on models small enough to count."""

from collections import Counter
from pathlib import Path

import pytest

from spec.parameters import num_parameters
from spec.read_config import read_config
from tests.workload.generating import ROOT
from workload.general import GeneralItem
from workload.general_fsdp import fsdp_items
from workload.general_zero3 import zero3_items
from workload.general_zero12 import zero12_items
from workload.model_parameters import Module, Tensor, Unit, model_units
from workload.zero_options import ZeroOptions


def modules(*sizes: int) -> tuple[Module, ...]:
    """One module a size, each with one tensor."""
    return tuple(
        Module(name=f"m{i}", tensors=(Tensor(name=f"m{i}.weight", shape=(size,)),))
        for i, size in enumerate(sizes)
    )


def told(items: list[GeneralItem], kind: str, stage: str = "") -> list[int]:
    """Elements (two bytes each) of the rows of a kind."""
    return [item.msg_size // 2 for item in items if item.comm_type == kind and item.stage.startswith(stage)]


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.*")), ids=lambda path: path.stem)
def test_tensors_sum_to_the_models_parameters(path: Path) -> None:
    model = read_config(path).model
    tensors = sum(module.elements for unit in model_units(model) for module in unit.modules)
    assert tensors == num_parameters(model).total


def test_a_bucket_is_reduced_when_the_next_gradient_would_not_fit() -> None:
    options = ZeroOptions(ranks=2, stage=2, num_micro=2, tokens=1, reduce_bucket_size=10)
    items = list(zero12_items(modules(4, 5, 6, 3, 20), options))
    # backward order 20 | 3 + 6 | 5 + 4, after every micro-batch
    assert told(items, "all_reduce", "backward") == [20, 9, 9] * 2


def test_stage_1_reduces_once_a_step() -> None:
    options = ZeroOptions(ranks=2, stage=1, num_micro=3, tokens=1, epochs=2, reduce_bucket_size=10)
    assert told(list(zero12_items(modules(4, 5), options)), "all_reduce", "backward") == [9, 9]


def test_contiguous_gradients_go_to_their_owners() -> None:
    options = ZeroOptions(
        ranks=2, stage=2, num_micro=1, tokens=1, reduce_bucket_size=6, contiguous_gradients=True
    )
    items = [item for item in zero12_items(modules(3, 3, 4), options) if item.comm_type == "reduce"]
    # 10 elements, 5 an owner: the last 4 to rank 1; the first 6 are 5 of rank 0 and 1 of rank 1
    assert [(item.dst, item.msg_size // 2) for item in items] == [(1, 4), (0, 5), (1, 1)]


def test_parameters_return_in_shards_of_the_gather_bucket() -> None:
    options = ZeroOptions(ranks=4, stage=1, num_micro=1, tokens=1, allgather_bucket_size=7)
    # 20 elements: 5 a rank, 20 // 7 = 2 shards, of 2 and 3 elements a rank
    assert told(list(zero12_items(modules(20), options)), "all_gather", "step") == [8, 12]


def test_first_micro_batch_gathers_module_by_module_and_later_ones_prefetch() -> None:
    options = ZeroOptions(
        ranks=2,
        stage=3,
        num_micro=2,
        tokens=1,
        prefetch_bucket_size=8,
        param_persistence_threshold=0,
        max_reuse_distance=0,
    )
    items = list(zero3_items(modules(4, 4, 4, 4), options))
    gathered = told(items, "all_gather")
    # the first: four modules forward, four backward; then m0, m1 + m2 ahead, and as room opens the next
    assert gathered[:8] == [4] * 8
    assert gathered[8:10] == [4, 8]
    assert sum(gathered[8:]) >= 4 * 7
    assert len(gathered[8:]) < 8


def test_small_parameters_stay_and_return_once_a_step() -> None:
    options = ZeroOptions(ranks=2, stage=3, num_micro=2, tokens=1, param_persistence_threshold=2, epochs=2)
    items = list(zero3_items(modules(100, 2, 1), options))
    # the two small ones (padded to 2 + 2) are gathered once each, then at each step
    assert told(items, "all_gather", "step") == [4, 4]
    assert told(items, "all_gather", "forward.m1") == [2]


def test_model_persistence_threshold_bounds_what_stays() -> None:
    options = ZeroOptions(ranks=2, stage=3, num_micro=1, tokens=1, model_persistence_threshold=3)
    assert told(list(zero3_items(modules(2, 2), options)), "all_gather", "step") == [2]


def test_live_parameters_bound_the_prefetch() -> None:
    def largest(limit: int) -> int:
        options = ZeroOptions(
            ranks=2,
            stage=3,
            num_micro=2,
            tokens=1,
            param_persistence_threshold=0,
            max_live_parameters=limit,
            max_reuse_distance=0,
        )
        return max(told(list(zero3_items(modules(*[4] * 10), options)), "all_gather"))

    assert largest(8) == 4
    assert largest(20) == 16


def test_what_is_needed_again_soon_stays() -> None:
    def backward(distance: int) -> int:
        options = ZeroOptions(
            ranks=2,
            stage=3,
            num_micro=2,
            tokens=1,
            param_persistence_threshold=0,
            prefetch_bucket_size=1,
            max_reuse_distance=distance,
        )
        return len(told(list(zero3_items(modules(4, 4, 4, 4), options)), "all_gather", "backward"))

    # four in the first micro-batch; with a long reuse distance none in the second
    assert (backward(10**9), backward(0)) == (4, 4 + 3)


def test_gradients_are_scattered_whole_and_padded() -> None:
    options = ZeroOptions(ranks=4, stage=3, num_micro=3, tokens=1, reduce_bucket_size=1)
    assert told(list(zero3_items(modules(5, 8), options)), "reduce_scatter") == [8, 8] * 3


@pytest.mark.parametrize(("stage", "gathers"), [(3, 2 * 2 + 1), (2, 2 + 1), (0, 0)])
def test_fsdp_units(stage: int, gathers: int) -> None:
    units = (
        Unit(name="embedding", modules=modules(10)),
        Unit(name="layers.0", modules=modules(4, 4)),
        Unit(name="layers.1", modules=modules(4, 4)),
        Unit(name="head", modules=modules(2)),
    )
    options = ZeroOptions(ranks=2, stage=stage, num_micro=1, tokens=1)
    kinds = Counter(item.comm_type for item in fsdp_items(units, options))
    assert kinds["all_gather"] == gathers
    assert kinds["reduce_scatter" if stage else "all_reduce"] == 3 + (0 if stage else 1)


def test_one_rank_moves_nothing() -> None:
    for stage, made in ((1, zero12_items), (3, zero3_items)):
        options = ZeroOptions(ranks=1, stage=stage, num_micro=2, tokens=1)
        assert {item.comm_type for item in made(modules(3), options)} == {"epoch_end"}
