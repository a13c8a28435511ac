"""Memory of nanotron's first stage: its own logs of July 2024, and what shards return in."""

from dataclasses import replace

import pytest

from ops.recompute import Recompute
from solver.estimate import estimate_memory
from solver.memory.memory_cost import MemoryCost
from solver.plans.plan_table import Plan, PlanTable
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec
from spec.settings.job import AskedJob, job_of
from spec.units import GIB

ATTENTION = AttentionSpec(kind=AttentionKind.MHA, num_heads=32, num_kv_heads=32, qk_dim=64, v_dim=64)
BLOCK = BlockSpec(mixer=ATTENTION, mlp=MlpSpec(ffn_hidden=4096, gated=True))
LLAMA_1B = ModelSpec(
    name="llama-1.1B",
    hidden=2048,
    vocab=50257,
    blocks=(BlockRun(block=BLOCK, count=24),),
    source="huggingface/bench_cluster, template/base_config.py",
    tied_embeddings=True,
)
PLAIN = {"tensor_parallel.overlap_backward": False, "tensor_parallel.strategies": ("mtp", "msp")}


def first_stage(settings: dict[str, object], plan: Plan, num_micro: int) -> MemoryCost:
    asked = AskedJob(
        world_size=plan.tp * plan.pp * plan.dp,
        seq_len=4096,
        global_batch_tokens=4096 * plan.dp * plan.micro_batch * num_micro,
        framework="nanotron",
        settings={"flash_attention": True, **settings},
    )
    table = estimate_memory(LLAMA_1B, job_of(asked), PlanTable.of(plan))
    return table.bytes.cost.take(table.stages.starts)


def plan(tp: int, pp: int, dp: int, micro_batch: int, num_micro: int) -> Plan:
    return Plan(
        strategy="msp" if tp > 1 else "mtp",
        preset="nanotron",
        tp=tp,
        pp=pp,
        dp=dp,
        zero_stage=1 if dp > 1 else 0,
        zero_size=dp,
        micro_batch=micro_batch,
        num_micro=num_micro,
    )


@pytest.mark.published
@pytest.mark.parametrize(
    ("tp", "pp", "dp", "micro_batch", "measured_gib"),
    [(1, 4, 2, 4, 38.141), (2, 8, 1, 8, 44.727), (4, 1, 16, 4, 12.845), (8, 1, 1, 32, 58.687)],
)
def test_a_first_stage_holds_what_the_allocator_counted(
    tp: int, pp: int, dp: int, micro_batch: int, measured_gib: float
) -> None:
    """huggingface.co/nanotron/old_bench, log_metrics.csv: peak of what PyTorch has allocated."""
    num_micro = 1024 // dp // micro_batch
    cost = first_stage(PLAIN, plan(tp, pp, dp, micro_batch, num_micro), num_micro)
    assert cost.allocated_bytes[0] / GIB == pytest.approx(measured_gib, rel=0.01)


@pytest.mark.parametrize(("pp", "dp", "micro_batch", "copies"), [(1, 8, 1, 1), (2, 2, 1, 2), (2, 32, 1, 1)])
def test_shards_return_through_two_flat_copies_of_the_parameters(
    pp: int, dp: int, micro_batch: int, copies: int
) -> None:
    """distributed.py, all_gather_coalesced: a buffer a rank; ProcessGroupNCCL, allgather of a list: one for
    all. Of 1.17 billion parameters in one stage each of 8 ranks' pieces (277 MiB) lies where logits in fp32
    (785 MiB) were; of the first of two stages those of 2 ranks (500 MiB) are larger than gate and up together
    (64 MiB), those of 32 (31 MiB) are not."""
    one = plan(1, pp, dp, micro_batch, 4)
    lists, whole = (
        first_stage({"data_parallel.lists_of_slices": is_list}, one, 4) for is_list in (True, False)
    )
    assert lists.segment_bytes[0] - whole.segment_bytes[0] == pytest.approx(
        copies * lists.parameters_bytes[0]
    )


def test_alone_nothing_returns() -> None:
    alone = first_stage({}, plan(8, 1, 1, 1, 32), 32).segment_bytes[0]
    assert alone < first_stage({}, plan(1, 1, 8, 1, 4), 4).segment_bytes[0] / 8


def test_buckets_that_stay_are_all_gradients_in_the_parameters_format() -> None:
    """torch's reducer.cpp, initialize_buckets: two bytes a parameter beside the fp32 sum; none on one
    replica, nor where all gradients leave as one buffer."""

    def kept_bytes(dp: int, *, overlaps: bool) -> float:
        replicas = replace(plan(1, 1, dp, 1, 4), zero_stage=0, zero_size=1)
        cost = first_stage({"data_parallel.overlap_grad_reduce": overlaps}, replicas, 4)
        return float((cost.bucket_bytes / cost.parameters_bytes)[0])

    assert kept_bytes(8, overlaps=True) == 1.0
    assert kept_bytes(1, overlaps=True) == kept_bytes(8, overlaps=False) == 0.0


def test_both_copies_that_shards_return_through_stand_at_once() -> None:
    """Of 16-bit parameters; what they take beyond activations and logits, which are gone by then."""
    returns = replace(plan(1, 1, 8, 1, 8), recompute=Recompute.FULL)
    cost = first_stage({}, returns, 8)
    passes = cost.activations_bytes[0] + cost.logits_bytes[0] + cost.working_bytes[0] + cost.bucket_bytes[0]
    assert cost.step_bytes[0] == 2 * cost.parameters_bytes[0] - passes > 0
