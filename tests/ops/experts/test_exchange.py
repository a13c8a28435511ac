"""The order of what stands between tokens and their experts."""

from dataclasses import replace

import numpy as np
import pytest

from ops.context import LayerContext
from ops.cpu_overhead import NCCL_CALLS, cpu_overhead
from ops.experts.exchange import busiest_share
from ops.layout import Layout
from ops.op import Comm, MemoryBound, Phase
from ops.roles import Role
from spec.collectives import Collective
from spec.model import MoeSpec
from tests.ops.experts.test_moe_block import COPIES, EP, EXPERTS, HIDDEN, SEQ, layer, model, moved, named
from tests.ops.layouts import job, written


@pytest.mark.parametrize("ep", [4, 1])
def test_rows_are_sorted_after_they_were_gathered_over_etp(ep: int) -> None:
    """Megatron-LM core 0.12 token_dispatcher.py, token_permutation: all_to_all, gather over tp, then
    sort_chunks_by_idxs over all rows; token_unpermutation the other way round. So ``R etp`` rows are moved,
    whatever ep is."""
    layout = Layout.of(8, tp=2, ep=ep, etp=2)
    found = written(model(), job(seq_len=SEQ), "fsp", layout).blocks[0]
    assert moved(found, "moe.sort") == moved(found, "moe.unsort") == 2 * 2 * COPIES * HIDDEN * 2
    order = [op.name for op in found.forward]
    around = ["moe.expert_gather", "moe.sort", "moe.up", "moe.down", "moe.unsort", "moe.expert_scatter"]
    assert [name for name in order if name in around] == around


@pytest.mark.parametrize(("tp", "ep"), [(1, 8), (2, 4)])
def test_chunks_of_one_capacity_are_turned_by_the_kernel_for_strides(tp: int, ep: int) -> None:
    """Megatron-LM core 0.14 token_dispatcher.py, drop_and_pad: view, transpose(0, 1), contiguous on arrival
    and before the way back, each gradient by another copy; every row once in and once out, nothing kept.
    Chunks of any length are sorted."""
    padded, asked, layout = model(capacity_factor=1.5), job(seq_len=SEQ), Layout.of(8, tp=tp, ep=ep, etp=tp)
    found = written(padded, asked, "fsp" if tp > 1 else "mtp", layout).blocks[0]
    for name in ("moe.sort", "moe.unsort"):
        ops = named(found, name)
        assert [(op.kernel, op.phase) for op in ops if isinstance(op, MemoryBound)] == [
            ("strided_copy", Phase.FORWARD),
            ("strided_copy", Phase.INPUT_GRAD),
        ]
        assert moved(found, name) == 2 * 2 * COPIES * 3 // 2 * HIDDEN * 2
        assert [float(op.saved_bytes[0]) for op in ops] == [0.0, 0.0]


def test_chunks_of_any_length_and_of_releases_that_join_them_are_sorted() -> None:
    preset = job(seq_len=SEQ).preset.changed({"layers.transposes_chunks": False})
    for found in (layer(), layer(job(seq_len=SEQ, preset=preset), capacity_factor=1.5)):
        assert {op.kernel for op in named(found, "moe.sort") if isinstance(op, MemoryBound)} == {"permute"}


def test_an_all_to_all_sends_counts_before_its_tokens_and_probabilities_behind_them() -> None:
    """Megatron-Core 0.13 token_dispatcher.py: 8 bytes of every rank and expert gathered, forward alone, and
    to the host a collective like others; then 2 bytes a copy each way (4 under a router in fp32), whose host
    is in the tokens' calls."""
    (counted,) = named(layer(), "moe.dispatch.counts")
    assert isinstance(counted, Comm)
    assert (counted.collective, counted.phase) == (Collective.ALL_GATHER, Phase.FORWARD)
    assert (counted.size_bytes[0], cpu_overhead(counted, job()).calls[0]) == (EP * EXPERTS * 8, NCCL_CALLS)
    sent = named(layer(), "moe.dispatch.probabilities")
    assert [op.phase for op in sent] == [Phase.FORWARD, Phase.INPUT_GRAD]
    assert [op.size_bytes[0] for op in sent if isinstance(op, Comm)] == [COPIES * 2, COPIES * 2]
    assert [cpu_overhead(op, job()).calls[0] for op in sent] == [0.0, 0.0]
    wide = replace(job(seq_len=SEQ), precision=replace(job().precision, router="fp32"))
    assert [op.size_bytes[0] for op in named(layer(wide), sent[0].name) if isinstance(op, Comm)] == [COPIES * 4] * 2
    order = [op.name for op in layer().forward]
    assert order.index(counted.name) < order.index("moe.dispatch") < order.index(sent[0].name)


def test_a_capacity_needs_no_counts_and_releases_before_013_send_no_probabilities() -> None:
    assert not named(layer(capacity_factor=1.5), "moe.dispatch.counts")
    before = job(seq_len=SEQ, preset=job().preset.changed({"layers.sends_probabilities": False}))
    assert not named(layer(before), "moe.dispatch.probabilities")
    beside = job(seq_len=SEQ, overlap_expert_a2a=True)
    assert not named(layer(beside), "moe.dispatch.probabilities")
    for dispatcher in ("deepep", "all_gather"):
        found = layer(job(seq_len=SEQ, moe_dispatcher=dispatcher))
        assert not [op for op in found.forward if op.serves is Role.DISPATCH and isinstance(op, Comm)]


def test_hybridep_gathers_which_experts_every_token_takes_before_it_sends_them() -> None:
    """executor.cu, allgather_routing_map: a byte for each token of the group and expert, forward alone; a
    collective like others to the host, and a pass over what arrived."""
    asked = job(seq_len=SEQ, moe_dispatcher="hybridep")
    (gathered,) = named(layer(asked), "moe.dispatch.routes")
    assert isinstance(gathered, Comm)
    assert (gathered.collective, gathered.phase) == (Collective.ALL_GATHER, Phase.FORWARD)
    assert gathered.size_bytes[0] == moved(layer(asked), "moe.dispatch.places") == SEQ * EP * EXPERTS
    assert cpu_overhead(gathered, asked).calls[0] == NCCL_CALLS
    order = [op.name for op in layer(asked).forward]
    assert order.index(gathered.name) < order.index("moe.dispatch")
    assert not named(layer(job(seq_len=SEQ, moe_dispatcher="deepep")), gathered.name)


@pytest.mark.parametrize(("experts", "sorted_rows"), [(EP, 0), (2 * EP, COPIES), (EXPERTS, COPIES)])
def test_rows_of_several_experts_are_sorted_on_arrival(experts: int, sorted_rows: int) -> None:
    """There and back, forward and backward: a read and a write of 2 bytes each; one expert's rows need no order."""
    assert moved(layer(num_experts=experts), "moe.sort") == 2 * 2 * sorted_rows * HIDDEN * 2


def test_benchmarks_that_send_tokens_in_turn_reach_fewer_ranks() -> None:
    """Four of 32 experts, four a rank: every token goes to one rank instead of to 3.0; copies of all-to-all
    are as many as before.
    """

    def sent(dispatcher: str, routing: str) -> float:
        found = layer(job(seq_len=SEQ, moe_dispatcher=dispatcher, moe_routing=routing))
        return next(
            float(op.size_bytes[0]) for op in found.forward if isinstance(op, Comm) and op.role is Role.DISPATCH
        )

    assert sent("deepep", "in_turn") == SEQ * (HIDDEN * 2 + 12 * 4)
    assert sent("deepep", "uniform") > 2.5 * sent("deepep", "in_turn")
    assert sent("all_to_all", "in_turn") == sent("all_to_all", "uniform") == COPIES * HIDDEN * 2


# How far the busiest rank's tokens exceed the mean, where a closed form says it exactly.


EXPERTS = 32


def share(ep: list[int], spread: float, imbalance: float = 1.0) -> list[float]:
    """Tokens of the busiest of ``ep`` ranks over those of the mean one."""
    asked = job(world_size=32, moe_expert_spread=spread, moe_imbalance=imbalance)
    context = LayerContext(model=model(), job=asked, layout=Layout.of(32, ep=np.array(ep)))
    moe = MoeSpec(num_experts=EXPERTS, topk=4, expert_ffn_hidden=128)
    return [float(one) for one in busiest_share(context, moe)]


def test_of_two_ranks_the_busier_is_as_far_up_as_the_other_is_down() -> None:
    """Half the experts each: sums of 16 of 32 drawn without replacement, of variance s^2 / 16 x 16 / 31; the
    mean of what a normal number is off by, sqrt(2 / pi) of its deviation (Blom's approximation of the largest
    of two: 4.5 % above)."""
    expected = 0.4 * np.sqrt(1 / 31) * np.sqrt(2 / np.pi)
    assert share([2], 0.4)[0] - 1.0 == pytest.approx(1.045 * expected, rel=0.002)


def test_one_rank_has_all_tokens_and_even_experts_no_busiest_share() -> None:
    assert share([1], 0.4) == [1.0]
    assert share([1, 2, 32], 0.0) == [1.0] * 3
    assert share([1, 2], 0.0, imbalance=1.3) == [1.3] * 2
