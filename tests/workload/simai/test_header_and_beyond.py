"""The header says the plan's degrees, the side file's figures count every micro-batch, groups have their names."""

from dataclasses import replace

import pytest

from spec.errors import ExportError
from tests.workload.generating import made
from workload.simai.export import beyond_of, header_of
from workload.simai.format import SimaiHeader
from workload.simai.rules import check_header
from workload.traffic.ranks import RankOrder, named_groups

PLAN = "--model_size 7 --num_layers 8 --world_size 16 --tp_num 2 --pp_num 2 --num_query_groups 32"


def test_the_header_says_the_plan() -> None:
    result = made(
        f"{PLAN} --virtual_pipeline_model_parallel_size 2 --global_batch 16 --enable_sequence_parallel"
    )
    header = header_of(result.plan, result.works[0])
    assert (header.tp, header.pp, header.vpp, header.ga, header.all_gpus) == (2, 2, 2, 4, 16)
    assert header.pp_comm_bytes == 2 * 2048 * 4096 // 2


def test_transfers_between_stages_count_every_micro_batch() -> None:
    for batch in (16, 32):
        result = made(f"{PLAN} --global_batch {batch} --enable_sequence_parallel")
        work = result.works[0]
        header = header_of(result.plan, work)
        (hops,) = (one for one in beyond_of(work, header, result.plan) if one.collective == "p2p")
        assert hops.count == 2 * batch // 4
        assert hops.total_bytes == hops.count * header.pp_comm_bytes
        assert hops.seconds == pytest.approx(hops.count * work.hop_s)


def test_a_segment_ends_behind_its_first_row() -> None:
    one = SimaiHeader(tp=1, all_gpus=1, checkpoints=(3,), checkpoint_initiates=(4,))
    check_header(one)
    # the binary runs past its last row when the row that initiates is the checkpoint itself
    with pytest.raises(ExportError, match="does not lie behind"):
        check_header(replace(one, checkpoint_initiates=(3,)))


def test_expert_groups_with_tensor_parallelism_hold_both_axes() -> None:
    groups = named_groups(RankOrder(tp=2, ep=2, dp=4, pp=2))
    assert groups["expert_tp_ep"][0] == (0, 1, 2, 3)
    assert groups["ep"][0] == (0, 2)


def test_what_no_row_holds_lasts_as_long_as_all_its_micro_batches() -> None:
    taken = []
    for batch in (16, 32):
        result = made(
            f"--model_size 7 --num_layers 4 --world_size 16 --context_parallel_size 2 --global_batch {batch} "
            "--cluster h200 --aiob_enable"
        )
        beyond = beyond_of(result.works[0], header_of(result.plan, result.works[0]), result.plan)
        taken.append({one.what: one.seconds for one in beyond if one.axis == "cp"})
    assert taken[0]
    assert taken[1] == pytest.approx({what: 2 * seconds for what, seconds in taken[0].items()})
    assert all(seconds > 0 for seconds in taken[0].values())
