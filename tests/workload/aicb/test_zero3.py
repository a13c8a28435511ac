"""DeepSpeed's buckets, prefetch groups and persistence, and FSDP's units, on models small enough to count."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spec.mixers.mixer import LeafModule, Tensor
from spec.model import NormKind
from spec.parameters import num_parameters
from spec.readers.read_config import read_config
from tests.workload.generator import ROOT
from workload.aicb.csv_workload import GeneralItem
from workload.aicb.data_parallel import Unit, ZeroOptions, fsdp_items, model_units, zero12_items
from workload.aicb.zero3 import hook_order, zero3_items


def modules(*sizes: int) -> tuple[LeafModule, ...]:
    """One module a size, each with one tensor."""
    return tuple(
        LeafModule(name=f"m{i}", tensors=(Tensor(name=f"m{i}.weight", shape=(size,)),)) for i, size in enumerate(sizes)
    )


def zero(stage: int, *, ranks: int = 2, num_micro: int = 1, **changes: Any) -> ZeroOptions:
    """A training of one token a micro-batch."""
    return ZeroOptions(ranks=ranks, stage=stage, num_micro=num_micro, tokens=1, **changes)


def predicted(items: list[GeneralItem], kind: str, stage: str = "") -> list[int]:
    """Elements (two bytes each) of the rows of a kind."""
    return [item.msg_size // 2 for item in items if item.comm_type == kind and item.stage.startswith(stage)]


# One of each kind of layers; of the others sizes differ.
DAILY = frozenset(
    {"7B_gpt.toml", "7B_internlm2.py", "72B_qwen2.py", "8x7B_mixtral.py", "7B_MoE4_sft.py", "671B_deepseek_v3.toml"}
    | {"2.7B_mamba2.toml", "27B_gemma3.json", "80B_qwen3_next.json", "120B_gpt_oss.json", "30B_nemotron3_nano.json"}
)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[] if path.name in DAILY else pytest.mark.nightly)
        for path in sorted((ROOT / "configs").glob("*.*"))
    ],
)
def test_tensors_sum_to_the_models_parameters(path: Path) -> None:
    model = read_config(path).model
    tensors = sum(module.elements for unit in model_units(model) for module in unit.modules)
    assert tensors == num_parameters(model).total


@pytest.mark.parametrize("norm", NormKind)
def test_norms_have_the_tensors_of_their_kind(norm: NormKind) -> None:
    model = read_config(ROOT / "configs" / "7B_gpt.toml").model
    runs = tuple(replace(run, block=replace(run.block, norm=norm)) for run in model.blocks)
    model = replace(model, norm=norm, blocks=runs)
    tensors = sum(module.elements for unit in model_units(model) for module in unit.modules)
    assert tensors == num_parameters(model).total


def test_a_bucket_is_reduced_when_the_next_gradient_would_not_fit() -> None:
    options = zero(2, num_micro=2, reduce_bucket_size=10)
    items = list(zero12_items(modules(4, 5, 6, 3, 20), options))
    # backward order 20 | 3 + 6 | 5 + 4, after every micro-batch
    assert predicted(items, "all_reduce", "backward") == [20, 9, 9] * 2


def test_stage_1_reduces_once_a_step() -> None:
    options = zero(1, num_micro=3, epochs=2, reduce_bucket_size=10)
    assert predicted(list(zero12_items(modules(4, 5), options)), "all_reduce", "backward") == [9, 9]


def test_stage_1_reduces_in_forward_order_and_stage_2_in_backward_order() -> None:
    def sizes(stage: int) -> list[int]:
        options = zero(stage, reduce_bucket_size=9)
        return predicted(list(zero12_items(modules(4, 5, 6), options)), "all_reduce", "backward")

    assert sizes(1) == [9, 6]
    assert sizes(2) == [6, 9]


def test_without_multi_rank_buckets_each_owner_gets_its_part() -> None:
    options = zero(2, reduce_bucket_size=12, use_multi_rank_bucket_allreduce=False)
    items = [item for item in zero12_items(modules(4, 4, 4), options) if item.comm_type == "reduce"]
    # 12 elements, 6 an owner; the bucket holds 8-12 of rank 1, 4-6 of 0, 6-8 of 1, 0-4 of 0
    assert [(item.dst, item.msg_size // 2) for item in items] == [(1, 6), (0, 6)]


def test_a_gradient_above_the_bucket_goes_in_the_pieces_of_its_owners() -> None:
    options = zero(2, ranks=4, reduce_bucket_size=4)
    # 20 elements are 24 with padding to 2 a rank, 6 an owner: each piece passes the bucket
    assert predicted(list(zero12_items(modules(20), options)), "all_reduce", "backward") == [6, 6, 6, 2]


def test_only_fp16_asks_for_overflow() -> None:
    def scalars(stage: int, fp16: bool) -> list[int]:
        options = zero(stage, fp16=fp16)
        make = zero3_items if stage == 3 else zero12_items
        items = list(make(modules(8), options))
        return [item.msg_size for item in items if item.stage.startswith(("step.has", "step.get"))]

    assert [scalars(stage, False) for stage in (1, 2, 3)] == [[4], [4], [8]]
    assert [scalars(stage, True) for stage in (1, 2, 3)] == [[4], [1, 4], [1, 8]]


def test_the_gradient_norm_is_taken_by_sub_group() -> None:
    options = zero(3)
    items = zero3_items(modules(2 * 10**9, 10**9, 10**9), options)
    # a rank's shard of 2e9 elements, sub-groups close once they hold 1e9
    assert sum(item.stage == "step.get_grad_norm_direct" for item in items) == 2


def test_parameters_return_at_once_or_in_shards_of_the_gather_bucket() -> None:
    def gathers(bucket: int | None) -> list[int]:
        options = zero(1, ranks=4, allgather_bucket_size=bucket)
        return predicted(list(zero12_items(modules(20), options)), "all_gather", "step")

    # 20 elements padded to 2 a rank are 24, 6 a rank; 24 // 8 = 3 shards of 2 a rank
    assert gathers(None) == [24]
    assert gathers(8) == [8, 8, 8]
    # 24 // 10 = 2 shards of 3 a rank, rounded down to 2
    assert gathers(10) == [8, 16]


def test_first_micro_batch_gathers_module_by_module_and_later_ones_prefetch() -> None:
    options = zero(3, num_micro=2, prefetch_bucket_size=8, param_persistence_threshold=0, max_reuse_distance=0)
    items = list(zero3_items(modules(4, 4, 4, 4), options))
    assert predicted(items, "all_gather", "init") == [4] * 4
    # m0 + m1 before the model starts, m2 + m3 beside m0. Beside m1 the backward's m3, m2, m1 are passed over
    # because they are here, and stay for it; m0 is fetched again.
    assert predicted(items, "all_gather", "forward")[:4] == [4] * 4
    assert predicted(items, "all_gather", "backward") == [4] * 4
    assert predicted(items, "all_gather", "forward")[4:] == [8, 8, 4]


def test_small_parameters_stay_and_return_once_a_step() -> None:
    options = zero(3, num_micro=2, param_persistence_threshold=2, epochs=2)
    items = list(zero3_items(modules(100, 2, 1), options))
    # each on its own at each step; in the pass that records they go like all others
    assert predicted(items, "all_gather", "step") == [2, 2] * 2
    assert predicted(items, "all_gather", "forward.m1") == predicted(items, "all_gather", "backward.m1") == [2]
    # then once with m0; in the second iteration they are there
    assert predicted(items, "all_gather", "forward.prefetch") == [104, 100, 100]


def test_model_persistence_threshold_bounds_what_stays() -> None:
    options = zero(3, model_persistence_threshold=3)
    assert predicted(list(zero3_items(modules(2, 2), options)), "all_gather", "step") == [2]


def test_live_parameters_bound_the_prefetch() -> None:
    def largest(limit: int) -> int:
        options = zero(3, num_micro=2, param_persistence_threshold=0, max_live_parameters=limit, max_reuse_distance=0)
        return max(predicted(list(zero3_items(modules(*[4] * 10), options)), "all_gather"))

    assert largest(8) == 8
    assert largest(20) == 20


def test_what_stays_is_live_only_in_the_pass_that_gathered_it() -> None:
    options = zero(3, num_micro=3, param_persistence_threshold=2, max_live_parameters=8, max_reuse_distance=0)
    first = [
        items[0].msg_size // 2
        for items in passes(list(zero3_items(modules(2, 6, 6, 6, 6), options)))
        if items[0].stage == "forward.prefetch"
    ]
    # the small one and the next; then, with the small one here and not counted, two of the others
    assert first == [8, 12]


def passes(items: list[GeneralItem]) -> list[list[GeneralItem]]:
    """The gathers of each micro-batch."""
    found: list[list[GeneralItem]] = []
    ahead = True
    for item in items:
        if item.comm_type == "all_gather" and item.stage.startswith(("forward", "backward")):
            if item.stage.startswith("forward") and ahead:
                found.append([])
            ahead = item.stage.startswith("backward")
            found[-1].append(item)
        elif item.comm_type == "reduce_scatter":
            ahead = True
    return found


def test_what_is_needed_again_soon_stays() -> None:
    def backward(distance: int) -> int:
        options = zero(
            3, num_micro=2, param_persistence_threshold=0, prefetch_bucket_size=1, max_reuse_distance=distance
        )
        return len(predicted(list(zero3_items(modules(4, 4, 4, 4), options)), "all_gather", "backward"))

    # four in the first micro-batch; with a long reuse distance none in the second, else m1 and m0
    assert (backward(10**9), backward(0)) == (4, 4 + 2)


def test_modules_around_others_have_hooks_before_them_both_ways() -> None:
    names = ("embed", "layers.0.norm", "layers.0.mlp.up", "layers.0.mlp.down", "head")
    leaves = tuple(LeafModule(name=name, tensors=()) for name in names)
    order = [(module.name, direction) for module, direction in hook_order(leaves)]
    assert [name for name, direction in order if direction == "forward"] == [
        *("model", "embed", "layers.0", "layers.0.norm", "layers.0.mlp", "layers.0.mlp.up", "layers.0.mlp.down"),
        "head",
    ]
    assert [name for name, direction in order if direction == "backward"] == [
        *("model", "head", "layers.0", "layers.0.mlp", "layers.0.mlp.down", "layers.0.mlp.up", "layers.0.norm"),
        "embed",
    ]


def test_gradients_are_scattered_whole_and_padded() -> None:
    options = zero(3, ranks=4, num_micro=3, reduce_bucket_size=1)
    assert predicted(list(zero3_items(modules(5, 8), options)), "reduce_scatter") == [8, 8] * 3


@pytest.mark.parametrize(("stage", "gathers"), [(3, 2 * 2 + 1), (2, 2 + 1), (0, 0)])
def test_fsdp_units(stage: int, gathers: int) -> None:
    units = (
        Unit(name="embedding", modules=modules(10)),
        Unit(name="layers.0", modules=modules(4, 4)),
        Unit(name="layers.1", modules=modules(4, 4)),
        Unit(name="head", modules=modules(2)),
    )
    options = zero(stage)
    kinds = Counter(item.comm_type for item in fsdp_items(units, options))
    assert kinds["all_gather"] == gathers
    assert kinds["reduce_scatter" if stage else "all_reduce"] == 3 + (0 if stage else 1)


def test_one_rank_moves_nothing() -> None:
    for stage, made in ((1, zero12_items), (3, zero3_items)):
        options = zero(stage, ranks=1, num_micro=2)
        assert {item.comm_type for item in made(modules(3), options)} == {"epoch_end"}
