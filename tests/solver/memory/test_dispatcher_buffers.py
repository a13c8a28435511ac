"""Device memory of DeepEP and HybridEP, held against their allocations written out."""

from dataclasses import replace

import pytest

from ops.layout import Layout
from ops.strategies import STRATEGIES
from solver.estimate import estimate_memory
from solver.memory.device_memory import LOCAL_CONNECTION_BYTES
from solver.memory.dispatcher_buffers import dispatcher_bytes
from solver.plans.plan_table import PlanTable
from solver.typed_plan import parse_plan, plan_of
from spec.frameworks import framework_preset
from tests.ops.layouts import job
from tests.solver.plans.test_rules import DENSE, EXPERTS
from tests.solver.questions import question

TOKENS, HIDDEN, NUM_EXPERTS, EP = 256, 512, 8, 8
PROBABILITIES, SCALES = 4 * NUM_EXPERTS, 4 * HIDDEN // 128


def held(
    dispatcher: str, *, domain_ranks: int = 8, model=EXPERTS, strategy: str = "mtp", **degrees: int
) -> float:
    asked = replace(job(seq_len=TOKENS), moe_dispatcher=dispatcher)
    layout = Layout.of(8, **({"ep": EP} | degrees))
    return float(dispatcher_bytes(model, asked, STRATEGIES[strategy], layout, domain_ranks)[0])


def test_hybridep_has_room_for_every_token_of_the_group() -> None:
    """intranode.cu: max_num_of_tokens x (hidden x 2 + experts x 4 + hidden / 128 x 4), shared by dispatch and
    combine.
    """
    a_token = 2 * HIDDEN + PROBABILITIES + SCALES
    assert held("hybridep") == 8 * TOKENS * a_token
    assert held("hybridep", ep=4) == 4 * TOKENS * a_token
    assert held("hybridep", strategy="fsp", tp=2) == 8 * TOKENS // 2 * a_token


def test_hybridep_holds_more_between_domains() -> None:
    """internode_nixl.cu: attn_input; rdma_inter_node_group of dispatch and combine, and rdma_intra_node_red."""
    domain = PROBABILITIES // 2  # of the four experts that a domain of four ranks has
    inside = 8 * TOKENS * (2 * HIDDEN + domain + SCALES)
    attn_input = TOKENS * (2 * HIDDEN + PROBABILITIES + SCALES)
    dispatched = TOKENS * (2 * HIDDEN + domain + SCALES)
    combined = 2 * TOKENS * (2 * HIDDEN + domain)
    assert held("hybridep", domain_ranks=4) == inside + attn_input + dispatched + combined


@pytest.mark.parametrize(
    ("ep", "chunk", "queue"),
    [(8, 256, 0), (16, 288, 140), (32, 288, 128), (96, 480, 132), (128, 560, 132), (144, 720, 132)],
)
def test_deepep_holds_queues(ep: int, chunk: int, queue: int) -> None:
    """config.hpp: channels x peers x chunk x (token + source + 128 x (8 + 4 + 4)); between nodes twice, with
    16 bytes more.
    """
    asked = replace(job(seq_len=TOKENS), moe_dispatcher="deepep")
    place = 2 * HIDDEN + 8 + 128 * 16
    told = dispatcher_bytes(EXPERTS, asked, STRATEGIES["mtp"], Layout.of(ep, ep=ep), 8)[0]
    assert told == 10 * 8 * chunk * place + 10 * (ep // 8) * queue * 2 * (place + 16)


def test_others_hold_nothing() -> None:
    assert held("all_to_all") == held("hybridep", ep=1) == held("hybridep", model=DENSE) == 0.0


def test_a_device_needs_it_beside_what_the_allocator_holds() -> None:
    asked = question(model=EXPERTS, world_size=8, preset=framework_preset("megatron"))
    plan = PlanTable.of(plan_of(parse_plan("strategy=mtp,ep=8"), asked, "--plan"))
    told = {
        name: estimate_memory(
            asked.model, replace(asked.job, moe_dispatcher=name), plan, asked.cluster
        ).memory
        for name in ("all_to_all", "hybridep")
    }
    more = told["hybridep"].device_bytes - told["hybridep"].reserved_bytes
    less = told["all_to_all"].device_bytes - told["all_to_all"].reserved_bytes
    tokens = 8 * asked.job.seq_len
    less = less - 7 * 32 * LOCAL_CONNECTION_BYTES  # NCCL's between all eight ranks
    assert (more - less)[0] == pytest.approx(tokens * (2 * asked.model.hidden + PROBABILITIES + SCALES))
