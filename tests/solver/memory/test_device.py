"""What NCCL and the driver keep of a device, counted by hand."""

from dataclasses import replace
from typing import Any

import pytest

from ops.context import LayerContext
from ops.layout import Layout
from ops.op import Axis
from ops.strategies import STRATEGIES
from solver.estimate import estimate_memory
from solver.memory.device import (
    LOCAL_CONNECTION_BYTES,
    NETWORK_CONNECTION_BYTES,
    communicator_bytes,
    dispatcher_bytes,
    exchanging_axes,
    likelihood_words,
    needs_words,
    retries_words,
    transformer_engine_bytes,
    usable_bytes,
    user_buffer_bytes,
)
from solver.memory.stage import TERMS
from solver.memory.terms import Tables, stages_of
from solver.plans.plan_table import Plan, PlanTable
from spec.cluster.cluster import ClusterSpec
from spec.cluster.reader import read_architecture
from spec.frameworks import framework_preset
from spec.model import ModelSpec
from spec.units import GIB, MIB
from tests.ops.layouts import job
from tests.solver.plans.test_rules import DENSE, EXPERTS
from tests.solver.questions import ROOT, cluster, question, small_model

# 24 channels, in each a ring and a tree's way up and down.
INSIDE = 3 * 24 * 12 * MIB


def test_a_hundredth_of_the_capacity_is_the_drivers() -> None:
    assert usable_bytes(cluster(memory_gib=100.0)) == pytest.approx(99.0 * GIB)


def nccl_bytes(
    layout: Layout, hardware: ClusterSpec | None = None, model: ModelSpec = DENSE, strategy: str = "mtp"
) -> list[float]:
    context = LayerContext(sharding=STRATEGIES[strategy], model=model, job=job(), layout=layout)
    return communicator_bytes(context, hardware or cluster()).tolist()


@pytest.mark.parametrize(
    ("world_size", "degrees", "groups"),
    [
        (1, {}, 0),
        (8, {}, 1),  # the gradients' group is that of the world
        (8, {"tp": 8}, 1),
        (8, {"tp": 2}, 3),  # tp, dp and the world
        (8, {"tp": 2, "pp": 2}, 4),
        (8, {"ep": 8}, 1),  # one copy of an expert: no gradients to reduce
        (8, {"ep": 4}, 3),  # ep, the world, and two copies of each expert
        (8, {"tp": 2, "ep": 2, "etp": 2}, 5),  # tp (also etp), ep, dp, the world, and two copies of each expert
        (8, {"wp": 2}, 3),  # isp: weights, those of other weights, and the world
    ],
)
def test_a_rank_has_a_communicator_for_every_group_of_its_own(
    world_size: int, degrees: dict[str, int], groups: int
) -> None:
    """NCCL: 24 channels of 3 connections inside a node, 12 MiB each (issue 1685 lists 10 + 2 MiB)."""
    assert nccl_bytes(Layout.of(world_size, **degrees)) == [groups * INSIDE]


def test_between_nodes_two_of_a_nodes_ranks_talk_to_the_network() -> None:
    """16 ranks on two nodes: 16 channels, of whose 8 ranks in a node two use the network: 20 MiB (LL, LL128
    and Simple on both ends) instead of 12; dp of one rank a node has two channels over the network."""
    each = 2 / 8 * NETWORK_CONNECTION_BYTES + 6 / 8 * LOCAL_CONNECTION_BYTES
    world, between = 3 * 16 * each, 2 * 3 * NETWORK_CONNECTION_BYTES
    assert nccl_bytes(Layout.of(16, tp=[1, 8])) == [world, INSIDE + between + world]
    assert (NETWORK_CONNECTION_BYTES, LOCAL_CONNECTION_BYTES) == (20 * MIB, 12 * MIB)


def test_exchanging_ranks_are_connected_with_all_others() -> None:
    """32 channels to each peer of a node, 10 + 2 MiB each; two where some are reached over the network, with pools of
    32 channels x 16 chunks x 128 KiB to send and to receive; and two over PCIe (paths.cc, ncclTopoGetNchannels)."""

    def more(world_size: int, ep: int, hardware: ClusterSpec) -> float:
        layout = Layout.of(world_size, ep=ep)
        return nccl_bytes(layout, hardware, EXPERTS)[0] - nccl_bytes(layout, hardware)[0]

    nvlink = cluster()
    pcie = replace(nvlink, domains=(replace(nvlink.domains[0], link="pcie"), *nvlink.domains[1:]))
    for ep in (1, 2, 4, 8):
        assert more(8, ep, nvlink) == 32 * (ep - 1) * 12 * MIB
    assert more(16, 8, nvlink) == 32 * 7 * 12 * MIB
    assert more(16, 16, nvlink) == (2 * 7 * 12 + 2 * 64) * MIB
    assert more(8, 8, pcie) == 2 * 7 * 12 * MIB


def test_experts_exchange_by_all_to_all_and_heads_for_tokens() -> None:
    """A dispatcher of its own and a ring do not."""

    def axes(model: ModelSpec, strategy: str = "mtp", **changes: Any) -> list[Axis]:
        context = LayerContext(
            sharding=STRATEGIES[strategy], model=model, job=replace(job(), **changes), layout=Layout.of(8)
        )
        return exchanging_axes(context)

    assert axes(EXPERTS) == [Axis.EP]
    assert axes(EXPERTS, moe_dispatcher="hybridep") == axes(DENSE) == []
    assert axes(DENSE, context_parallel="all_to_all") == [Axis.CP]
    assert axes(DENSE, "ulysses") == [Axis.TP]


def test_a_device_shows_a_context_beside_what_is_reserved() -> None:
    """Hugging Face Transformers documentation, "Model training anatomy": 1343 MB used by a process with one tensor."""
    asked = question(world_size=8, sequences=16, preset=framework_preset("megatron"))
    plan = PlanTable.of(Plan(strategy="mtp", preset="megatron", dp=8, num_micro=2))
    held = estimate_memory(asked.model, asked.job, plan, asked.cluster).memory
    beside = held.device_bytes - held.reserved_bytes - held.nccl_bytes
    assert beside == pytest.approx(1343 * MIB)
    assert held.nccl_bytes[0] >= INSIDE


# Device memory of DeepEP and HybridEP, held against their allocations written out.

TOKENS, HIDDEN, NUM_EXPERTS, EP = 256, 512, 8, 8
PROBABILITIES, SCALES = 4 * NUM_EXPERTS, 4 * HIDDEN // 128


def dispatched(
    dispatcher: str, *, domain_ranks: int = 8, model=EXPERTS, strategy: str = "mtp", **degrees: int
) -> float:
    asked = replace(job(seq_len=TOKENS), moe_dispatcher=dispatcher)
    layout = Layout.of(degrees.get("ep", EP), **({"ep": EP} | degrees))
    sharding = STRATEGIES[strategy]
    context = LayerContext(sharding=sharding, model=model, job=asked, layout=layout)
    return float(dispatcher_bytes(context, cluster(gpus_per_node=domain_ranks))[0])


def test_hybridep_has_room_for_every_token_of_the_group() -> None:
    """intranode.cu: max_num_of_tokens x (hidden x 2 + experts x 4 + hidden / 128 x 4), shared by dispatch and
    combine.
    """
    a_token = 2 * HIDDEN + PROBABILITIES + SCALES
    assert dispatched("hybridep") == 8 * TOKENS * a_token
    assert dispatched("hybridep", ep=4) == 4 * TOKENS * a_token
    assert dispatched("hybridep", strategy="fsp", tp=2) == 8 * TOKENS // 2 * a_token


def test_hybridep_holds_more_between_domains() -> None:
    """internode_nixl.cu: attn_input; rdma_inter_node_group of dispatch and combine, and rdma_intra_node_red."""
    domain = PROBABILITIES // 2  # of the four experts that a domain of four ranks has
    inside = 8 * TOKENS * (2 * HIDDEN + domain + SCALES)
    attn_input = TOKENS * (2 * HIDDEN + PROBABILITIES + SCALES)
    sent = TOKENS * (2 * HIDDEN + domain + SCALES)
    combined = 2 * TOKENS * (2 * HIDDEN + domain)
    assert dispatched("hybridep", domain_ranks=4) == inside + attn_input + sent + combined


@pytest.mark.parametrize(
    ("ep", "chunk", "queue"),
    [(8, 256, 0), (16, 288, 140), (32, 288, 128), (96, 480, 132), (128, 560, 132), (144, 720, 132)],
)
def test_deepep_holds_queues(ep: int, chunk: int, queue: int) -> None:
    """config.hpp: channels x peers x chunk x (token + source + 128 x (8 + 4 + 4)); between nodes twice, with
    16 bytes more.
    """
    place = 2 * HIDDEN + 8 + 128 * 16
    assert dispatched("deepep", ep=ep) == 10 * 8 * chunk * place + 10 * (ep // 8) * queue * 2 * (place + 16)


def test_others_hold_nothing() -> None:
    assert dispatched("hybridep", ep=1) == dispatched("hybridep", model=DENSE) == 0.0


@pytest.mark.parametrize(
    ("preset", "dispatcher", "world_size", "expected"),
    [
        ("fsdp", "all_to_all", 1, set()),
        ("fsdp", "all_to_all", 8, {"communicator_bytes"}),
        ("megatron-bridge", "hybridep", 8, {"communicator_bytes", "dispatcher_bytes", "transformer_engine_bytes"}),
        ("megatron-bridge", "all_to_all", 1, {"transformer_engine_bytes"}),
        ("megatron-2021", "all_to_all", 1, set()),  # before Transformer Engine
        ("deepspeed-2021", "all_to_all", 1, set()),
    ],
)
def test_buffers_are_those_of_what_a_job_uses(
    preset: str, dispatcher: str, world_size: int, expected: set[str]
) -> None:
    problem = question(world_size=world_size, preset=framework_preset(preset), model=EXPERTS)
    plan = PlanTable.of(Plan(strategy="mtp", preset=preset, dp=world_size))
    table = estimate_memory(problem.model, problem.job, plan)
    tables = Tables(
        plans=plan, kinds=table.layers.bytes, row=table.layers.row, stages=table.stages, cluster=problem.cluster
    )
    stages = stages_of(problem.model, replace(problem.job, moe_dispatcher=dispatcher), tables)
    buffers = {term.bytes_of.__name__ for term in TERMS if term.name == "nccl_bytes" and term.applies(stages)}
    assert buffers == expected


# What Transformer Engine holds all the time, held against its allocations written out.

TP = 4
ONE = TOKENS * HIDDEN
BRIDGE = framework_preset("megatron-bridge")


def overlapped(strategy: str = "fsp", linear: str = "bf16", tp: int = TP, **choices: Any) -> float:
    preset = BRIDGE.changed({f"tensor_parallel.{key}": value for key, value in choices.items()})
    asked = job(seq_len=TOKENS, preset=preset)
    asked = replace(asked, precision=replace(asked.precision, linear=linear))
    sharding = STRATEGIES[strategy]
    context = LayerContext(sharding=sharding, model=small_model(), job=asked, layout=Layout.of(tp, tp=tp))
    return float(user_buffer_bytes(context)[0])


def test_a_buffer_for_every_overlapped_product() -> None:
    """initialize_ub: eight gather and four reduce, tokens x hidden in 16 bits; a byte where fp8 is gathered."""
    assert overlapped() == overlapped(tp=2) == (8 + 4) * 2 * ONE
    assert overlapped(tp=1) == 0.0
    assert overlapped(linear="fp8") == (8 * 1 + 4 * 2) * ONE
    # Input gradients reduced in place of being gathered for: the weight gradients' two stay.
    assert overlapped(linear="fp8", overlap_rs_dgrad=True) == (6 * 1 + 6 * 2) * ONE


def test_a_ring_exchange_that_reduces_has_room_for_what_all_send() -> None:
    """CommOverlapP2PBase: buffer / tp x (2 tp - 1)."""
    assert overlapped(overlap_rs_method="ring_exchange") == (10 + 2 * (2 * TP - 1) / TP) * 2 * ONE


def test_no_buffers_without_sequences_cut() -> None:
    assert overlapped("mtp") == 0.0


@pytest.mark.parametrize(("model", "tp", "count"), [(small_model(), 1, 1), (EXPERTS, 1, 5), (small_model(), TP, 4)])
def test_workspaces(model: ModelSpec, tp: int, count: int) -> None:
    """get_cublas_workspace: one, four for grouped products, three for overlapped ones; 32 MiB on Hopper, 4 before."""
    sharding = STRATEGIES["fsp"]
    context = LayerContext(sharding=sharding, model=model, job=job(preset=BRIDGE), layout=Layout.of(tp, tp=tp))
    buffers = user_buffer_bytes(context)[0]
    for name, each in (("hopper", 32), ("blackwell", 32), ("ampere", 4)):
        gpu = replace(cluster().gpu, architecture=read_architecture(name, root=ROOT))
        told = transformer_engine_bytes(context, replace(cluster(), gpu=gpu))[0]
        assert told == buffers + count * each * MIB


# What a plan needs and what there is are told apart, and nearly all of it is warned of.


@pytest.mark.parametrize(
    ("needed_gib", "limit_gib", "said"),
    [
        (140.7, 139.6, "needs 140.7 GiB of 139.6"),
        (79.246, 79.234, "needs 79.25 GiB of 79.23"),
        (79.20004, 79.2, "needs 79.20004 GiB of 79.20000"),
    ],
)
def test_a_miss_has_the_digits_that_show_it(needed_gib: float, limit_gib: float, said: str) -> None:
    assert needs_words(needed_gib * GIB, limit_gib * GIB) == said


@pytest.mark.parametrize(
    ("needed_gib", "words"),
    [
        (83.5, "fits for sure"),  # 100 exp(-1.2816 * 0.14) is 83.57
        (83.7, "probably fits"),
        (100.0, "probably fits"),
        (100.1, "probably does not fit"),
        (119.6, "probably does not fit"),
        (119.7, "does not fit"),
    ],
)
def test_nine_times_in_ten_a_plan_fits_for_sure_or_does_not(needed_gib: float, words: str) -> None:
    assert likelihood_words(needed_gib * GIB, 100 * GIB) == words


@pytest.mark.parametrize(
    ("needed_gib", "device_gib", "retries"), [(70, 79, False), (70, 79.5, True), (79, 90, True), (79.3, 90, False)]
)
def test_cached_segments_that_do_not_fit_are_no_miss_but_retries(
    needed_gib: float, device_gib: float, retries: bool
) -> None:
    assert bool(retries_words(needed_gib * GIB, device_gib * GIB, 79.2 * GIB)) is retries
