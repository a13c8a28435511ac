import pytest

from runner.groups.degrees import Degrees, degrees_of
from spec.errors import ConfigError

ARGUMENTS = {"tensor_model_parallel_size": 2, "pipeline_model_parallel": 2, "world_size": 16}


def test_typed_degrees_beat_those_of_the_file_and_dp_is_the_rest() -> None:
    found = degrees_of(ARGUMENTS, {"tp": 4, "cp": None}, 16, "tp-cp-ep-dp-pp")
    assert (found.tp, found.cp, found.pp, found.dp, found.world_size) == (4, 1, 2, 2, 16)


def test_experts_are_cut_by_tp_unless_said() -> None:
    experts = {**ARGUMENTS, "expert_model_parallel_size": 4, "expert_tensor_parallel_size": None}
    assert degrees_of(experts, {}, 16, "tp-cp-ep-dp-pp").etp == 2
    assert degrees_of({**experts, "expert_tensor_parallel_size": 1}, {}, 16, "tp-cp-ep-dp-pp").etp == 1
    assert degrees_of(ARGUMENTS, {}, 16, "tp-cp-ep-dp-pp").etp == 1


@pytest.mark.parametrize(
    ("arguments", "world", "said"),
    [
        (ARGUMENTS, 8, "processes = 8: 16, the ranks of the workload: start as many"),
        ({"nnodes": 2, "nproc_per_node": 2}, 8, "processes = 8: 4, the ranks of the workload: start no more"),
        ({"tensor_model_parallel_size": 3}, 8, "a multiple of tp 3 x cp 1 x pp 1 = 3"),
    ],
)
def test_a_world_that_does_not_fit_is_refused(arguments: dict[str, int], world: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        degrees_of(dict(arguments), {}, world, "tp-cp-ep-dp-pp")


def test_stages_are_the_slowest_axis_unless_the_order_says_otherwise() -> None:
    usual = Degrees(tp=2, dp=2, pp=2)
    assert [usual.stage_of(rank) for rank in range(8)] == [0] * 4 + [1] * 4
    turned = Degrees(tp=2, dp=2, pp=2, order="tp-pp-dp")
    assert [turned.stage_of(rank) for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]


def test_experts_that_do_not_divide_a_stage_are_refused() -> None:
    with pytest.raises(ConfigError, match="a divisor of the 8 ranks of a stage"):
        _ = Degrees(dp=8, ep=3).expert
