"""Groups of Megatron-LM's RankGenerator, as its own examples and AICB's have them."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.layout import Layout, ranks_and_stride
from ops.op import Axis
from runner.groups.degrees import Degrees, degrees_of
from runner.groups.group_ranks import ranks_of_group
from spec.errors import ConfigError
from workload.aicb.csv_workload import COMM_GROUPS
from workload.aicb.plan_rows import GROUP_NAMES
from workload.diagnostics import WorkloadError
from workload.traffic.plan_traffic import groups_of

ARGUMENTS = {"tensor_model_parallel_size": 2, "pipeline_model_parallel": 2, "world_size": 16}


def test_typed_degrees_beat_those_of_the_file_and_dp_is_the_rest() -> None:
    result = degrees_of(ARGUMENTS, {"tp": 4, "cp": None}, 16, "tp-cp-ep-dp-pp")
    assert (result.tp, result.cp, result.pp, result.dp, result.world_size) == (4, 1, 2, 2, 16)


def test_experts_are_cut_by_tp_unless_said() -> None:
    experts = {**ARGUMENTS, "expert_model_parallel_size": 4, "expert_tensor_parallel_size": None}
    assert degrees_of(experts, {}, 16, "tp-cp-ep-dp-pp").etp == 2
    assert degrees_of({**experts, "expert_tensor_parallel_size": 1}, {}, 16, "tp-cp-ep-dp-pp").etp == 1
    assert degrees_of(ARGUMENTS, {}, 16, "tp-cp-ep-dp-pp").etp == 1


@pytest.mark.parametrize(
    ("arguments", "world", "error_text"),
    [
        (ARGUMENTS, 8, "processes = 8: 16, the ranks of the workload: start as many"),
        ({"nnodes": 2, "nproc_per_node": 2}, 8, "processes = 8: 4, the ranks of the workload: start no more"),
        ({"tensor_model_parallel_size": 3}, 8, "a multiple of tp 3 x cp 1 x pp 1 = 3"),
    ],
)
def test_a_world_that_does_not_fit_is_refused(arguments: dict[str, int], world: int, error_text: str) -> None:
    with pytest.raises(ConfigError, match=error_text):
        degrees_of(dict(arguments), {}, world, "tp-cp-ep-dp-pp")


def test_stages_are_the_slowest_axis_unless_the_order_says_otherwise() -> None:
    usual = Degrees(tp=2, dp=2, pp=2)
    assert [usual.stage_of(rank) for rank in range(8)] == [0] * 4 + [1] * 4
    turned = Degrees(tp=2, dp=2, pp=2, order="tp-pp-dp")
    assert [turned.stage_of(rank) for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]


def test_experts_that_do_not_divide_a_stage_are_refused() -> None:
    with pytest.raises(ConfigError, match="a divisor of the 8 ranks of a stage"):
        _ = Degrees(dp=8, ep=3).expert


# AICB's RankGenerator on 16 ranks: tp 2, ep 2, dp 4, pp 2, experts not cut by tp of their own grid.
SIXTEEN = Degrees(tp=2, ep=2, etp=2, dp=4, pp=2)


@pytest.mark.parametrize(
    ("group", "ranks", "first"),
    [
        ("tp_group", 2, ((0, 1), (2, 3))),
        ("ep_group", 2, ((0, 2), (1, 3), (4, 6))),
        ("ep_dp_group", 2, ((0, 4), (1, 5), (2, 6))),
        ("ep_tp_group", 4, ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("ep_tp_group", 2, ((0, 1), (2, 3))),
        ("dp_group", 4, ((0, 2, 4, 6), (1, 3, 5, 7), (8, 10, 12, 14))),
        ("pp_group", 2, ((0, 8), (1, 9))),
        ("embedding_group", 2, ((0, 8), (1, 9))),
        ("all", 16, (tuple(range(16)),)),
        ("dp_group", 2, ((0, 2), (4, 6), (1, 3), (5, 7))),
        ("zero_replicate_group", 2, ((0, 4), (2, 6))),
        ("dp_group", 0, ((0, 2, 4, 6),)),
    ],
)
def test_sixteen_ranks(group: str, ranks: int, first: tuple[tuple[int, ...], ...]) -> None:
    assert ranks_of_group(group, ranks, SIXTEEN)[: len(first)] == first


def test_context_parallel_ranks_hold_the_same_weights() -> None:
    degrees = Degrees(tp=2, cp=2, dp=2)
    assert ranks_of_group("dp_group", 4, degrees) == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert ranks_of_group("dp_group", 2, degrees)[0] == (0, 4)
    assert ranks_of_group("cp_group", 2, degrees)[0] == (0, 2)
    assert ranks_of_group("dp_group", 8, degrees) == (tuple(range(8)),)


def test_four_stages_share_an_embedding_at_their_ends() -> None:
    assert ranks_of_group("embedding_group", 2, Degrees(dp=2, pp=4)) == ((0, 6), (1, 7))


def test_weight_groups_of_isp() -> None:
    degrees = Degrees(tp=2, dp=4, wp=4)
    assert ranks_of_group("wp_group", 4, degrees) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert ranks_of_group("dp_group", 2, degrees)[0] == (0, 4)


def test_a_size_that_the_degrees_do_not_give_is_refused() -> None:
    with pytest.raises(WorkloadError, match="tp_group of 8 ranks: tp 2 x dp 4 x pp 2 has 2"):
        ranks_of_group("tp_group", 8, SIXTEEN)


degree = st.sampled_from([1, 2, 3, 4])


@given(tp=degree, cp=degree, dp=degree, pp=degree, data=st.data())
def test_groups_are_those_the_solver_prices(tp: int, cp: int, dp: int, pp: int, data: st.DataObject) -> None:
    stage = tp * cp * dp
    ep = data.draw(st.sampled_from([one for one in (1, 2, 3, 4) if stage % one == 0]))
    layout = Layout.of(stage * pp, tp=tp, cp=cp, pp=pp, ep=ep)
    degrees = Degrees(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep)
    axes = (Axis.TP, Axis.CP, Axis.DP_CP, Axis.DP, Axis.EP, Axis.EDP, Axis.PP)
    for axis in axes:
        size = int(ranks_and_stride(axis, layout)[0][0])
        starts = [range(stage * pp)] if axis is Axis.PP else [range(s * stage, (s + 1) * stage) for s in range(pp)]
        expected = sorted(tuple(one) for ranks in starts for one in groups_of(axis, layout, ranks))
        result = ranks_of_group(GROUP_NAMES[axis], size, degrees)
        if axis is Axis.DP and dp == 1 and cp > 1:
            continue  # groups of one rank, which nothing runs over
        assert sorted(result) == expected


@pytest.mark.parametrize("group", COMM_GROUPS)
def test_every_rank_is_in_at_most_one_group_of_a_kind(group: str) -> None:
    ranks = 2 if group == "zero_replicate_group" else 0
    listed = list(chain.from_iterable(ranks_of_group(group, ranks, SIXTEEN)))
    assert len(listed) == len(set(listed))
