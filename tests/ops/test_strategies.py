"""The registry and the presets know the same strategies."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ops.block import ModelOps
from ops.layout import Layout, group_of
from ops.op import Axis, BatchedGemm, Comm, MemoryBound, Op, Phase
from ops.roles import Role
from ops.strategies import STRATEGIES
from solver.estimate import Estimate, estimate_memory, step_operations
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.problem import Problem
from spec.collectives import Collective
from spec.frameworks import framework_preset
from spec.readers.read_config import read_config
from spec.settings.plan import STRATEGIES as WRITTEN
from tests.ops.layouts import job, written
from tests.solver.questions import question, small_model, with_part
from workload.launch_files import EXPORTERS as WRITERS
from workload.settings.launch_file import strategy_launch

EXPORTERS = {name for name, writer in WRITERS.items() if writer.of_any is None}


def test_every_strategy_is_run_by_some_framework_and_every_framework_s_is_there() -> None:
    assert set(STRATEGIES) == set(WRITTEN)
    assert all(name == one.name for name, one in STRATEGIES.items())


def test_plans_that_cut_nothing_are_those_of_one_strategy() -> None:
    assert sum(one.traits.uncut for one in STRATEGIES.values()) == 1


def test_every_strategy_can_be_launched_somewhere() -> None:
    for one in STRATEGIES.values():
        assert any(strategy_launch(name, one.name, 2) is not None for name in EXPORTERS), one.name
        assert strategy_launch("a framework nobody knows", one.name, 2) is None


# InternEvo's isp by hand: tokens cut over the sequence group, weights whole while they multiply.


SEQ, TP, HIDDEN, VOCAB = 2048, 4, 512, 4096


def test_the_head_multiplies_a_rank_s_tokens_by_the_whole_vocabulary() -> None:
    """arXiv 2401.09149: weights are gathered whole, so no rank has a part of the logits' columns."""
    head = written(small_model(), job(seq_len=SEQ), "isp", Layout.of(8, tp=TP, wp=2)).head
    (logits,) = [op for op in head.forward if isinstance(op, BatchedGemm) and op.role is Role.LOGITS]
    assert (logits.m.tolist(), logits.k.tolist(), logits.n.tolist()) == ([SEQ // TP], [HIDDEN], [VOCAB])
    (loss,) = [op for op in head.forward if isinstance(op, MemoryBound) and op.role is Role.CROSS_ENTROPY]
    assert (loss.rows.tolist(), loss.width.tolist()) == ([SEQ // TP], [VOCAB])


@pytest.mark.parametrize(
    ("recompute", "phases"), [("none", [Phase.FORWARD, Phase.INPUT_GRAD]), ("full", [Phase.FORWARD, Phase.RECOMPUTE])]
)
def test_weights_are_gathered_twice_also_where_a_layer_runs_again(recompute: str, phases: list[Phase]) -> None:
    """InternEvo keeps what the repeated forward gathered until the layer's backward is done."""
    asked = job(seq_len=SEQ, preset=framework_preset("internevo"))
    layer = written(small_model(), asked, "isp", Layout.of(8, tp=TP, wp=2), recompute).blocks[0]
    over_wp = [op for op in (*layer.forward, *layer.backward) if isinstance(op, Comm) and op.axis is Axis.WP]
    elements = sum(int(op.parameters[0]) for op in layer.forward if isinstance(op, BatchedGemm))
    for kind, during in ((Collective.ALL_GATHER, phases), (Collective.REDUCE_SCATTER, [Phase.WEIGHT_GRAD])):
        moved = {
            phase: sum(int(op.size_bytes[0]) for op in over_wp if (op.collective, op.phase) == (kind, phase))
            for phase in dict.fromkeys(op.phase for op in over_wp if op.collective is kind)
        }
        # 16 bits of both halves of every weight.
        assert moved == dict.fromkeys(during, 2 * 2 * elements)


# DeepSpeed-Ulysses by hand, on Llama-2-7B: hidden 4,096, 32 heads, vocabulary 32,000, 6,738,415,616 parameters.


LLAMA = read_config(Path(__file__).resolve().parents[2] / "configs" / "7B_llama2.py").model
PARAMETERS = 6_738_415_616
TOKENS, CHANNELS, WORDS, RANKS = 4096, 4096, 32_000, 4
ROWS = TOKENS // RANKS
DEEPSPEED = framework_preset("deepspeed")


def one_rank() -> ModelOps:
    """Of 8 ranks in two sequence groups of four."""
    asked = job(seq_len=TOKENS, world_size=8, preset=DEEPSPEED)
    return written(LLAMA, asked, "ulysses", Layout.of(8, tp=RANKS))


def of_role(ops: tuple[Op, ...], role: Role) -> Op:
    (found,) = (op for op in ops if op.role is role and op.serves is None)
    return found


def test_the_head_of_ulysses_multiplies_a_rank_s_tokens_by_the_whole_vocabulary() -> None:
    head = one_rank().head
    logits = of_role(head.forward, Role.LOGITS)
    assert (logits.m.tolist(), logits.k.tolist(), logits.n.tolist()) == ([ROWS], [CHANNELS], [WORDS])
    assert logits.parameters.tolist() == [CHANNELS * WORDS]
    loss = of_role(head.forward, Role.CROSS_ENTROPY)
    assert (loss.rows.tolist(), loss.width.tolist()) == ([ROWS], [WORDS])
    # The logits in bf16 and their softmax in fp32 (Megatron's loss, which DeepSpeed's preset runs).
    assert loss.saved_bytes.tolist() == [ROWS * WORDS * (2 + 4)]


def test_the_embedding_is_whole_and_looks_up_a_rank_s_tokens() -> None:
    table = of_role(one_rank().embedding.forward, Role.TABLE)
    assert (table.rows.tolist(), table.parameters.tolist()) == ([ROWS], [WORDS * CHANNELS])
    assert table.saved_bytes.tolist() == [8 * ROWS]


def test_only_the_exchange_around_attention_communicates() -> None:
    """Four all-to-alls a layer and pass, N h / P elements each (arXiv 2309.14509 sec. 3.2: 4 N h / P)."""
    ops = one_rank()
    for piece in (ops.embedding, ops.head):
        assert not any(isinstance(op, Comm) for op in (*piece.forward, *piece.backward))
    (layer,) = ops.blocks
    for passed in (layer.forward, layer.backward):
        moved = [op for op in passed if isinstance(op, Comm)]
        assert {(op.collective.value, op.axis.value) for op in moved} == {("all2all", "tp")}
        assert [op.size_bytes.tolist() for op in moved] == [[ROWS * CHANNELS * 2]] * 4


def test_the_vocabulary_is_padded_for_one_rank() -> None:
    """32,001 words to the next multiple of 128, not of 128 x 4."""
    odd = replace(LLAMA, vocab=32_001)
    head = written(odd, job(seq_len=TOKENS, preset=DEEPSPEED), "ulysses", Layout.of(8, tp=RANKS)).head
    assert of_role(head.forward, Role.LOGITS).n.tolist() == [32_128]


def asked(plan: Plan, **changes: object) -> Problem:
    base = question(
        model=LLAMA,
        world_size=plan.world_size,
        sequences=plan.dp * plan.micro_batch * plan.num_micro,
        seq_len=TOKENS,
        preset=framework_preset(plan.preset),
    )
    return replace(base, job=replace(base.job, **changes))


def plan(stage: int = 0, **degrees: int) -> Plan:
    size = {"zero_stage": stage, "zero_size": 8 if stage else 1}
    return Plan(strategy="ulysses", preset="deepspeed", num_micro=4, **{**size, **degrees})


def laid_out(one: Plan, asked_of: Problem) -> Estimate:
    return estimate_memory(asked_of.model, asked_of.job, PlanTable.of(one), asked_of.cluster)


def step_of(table: Estimate, asked_of: Problem) -> tuple[Op, ...]:
    """The operations of the optimizer step."""
    return step_operations(asked_of.model, asked_of.job, table)


@pytest.mark.parametrize(
    ("stage", "parameters", "gradients", "optimizer"), [(0, 1, 1, 1), (1, 1, 1, 8), (2, 1, 8, 8), (3, 8, 8, 8)]
)
def test_model_state_is_whole_or_cut_over_data_and_sequence_ranks(
    stage: int, parameters: int, gradients: int, optimizer: int
) -> None:
    """2 bytes of parameter and gradient, 12 of Adam's state (arXiv 1910.02054 sec. 3.1); tp cuts none of it."""
    one = plan(stage, tp=RANKS, dp=2)
    memory = laid_out(one, asked(one)).memory
    assert memory.parameters_bytes.tolist() == [2 * PARAMETERS / parameters]
    assert memory.gradients_bytes.tolist() == [2 * PARAMETERS / gradients]
    assert memory.optimizer_bytes.tolist() == [12 * PARAMETERS / optimizer]


def test_gradients_are_reduced_and_parameters_return_over_all_of_them() -> None:
    one = plan(1, tp=RANKS, dp=2)
    table = laid_out(one, asked(one))
    moved = {op.role: op for op in step_of(table, asked(one)) if isinstance(op, Comm) and op.size_bytes.any()}
    layout = table.plans.layout
    for role in (Role.GRADIENT_REDUCTION, Role.PARAMETER_GATHER):
        group = group_of(moved[role].axis, layout, domain_ranks=8)
        assert (group.ranks.tolist(), group.stride.tolist()) == ([8], [1])
    assert moved[Role.PARAMETER_GATHER].size_bytes.tolist() == [2 * PARAMETERS]
    # DeepSpeed sums in fp32 over the parts of a sequence (stage_1_and_2.py, allreduce_bucket).
    assert moved[Role.GRADIENT_REDUCTION].size_bytes.tolist() == [4 * PARAMETERS]
    (update,) = (op for op in step_of(table, asked(one)) if op.role is Role.UPDATE)
    assert update.elements.tolist() == [PARAMETERS // 8]


def what_runs(one: Plan) -> tuple[list[object], list[object], dict[str, list[float]]]:
    """Collectives with their groups, everything else with its sizes, and the memory of a plan."""
    alike = DEEPSPEED.changed({"data_parallel.sequence_gradient_dtype": ""})
    asked_of = asked(one, context_parallel="all_to_all", preset=alike)
    table = laid_out(one, asked_of)
    layout = table.plans.layout
    layers = [op for piece in table.layers.pieces for op in (*piece.forward, *piece.backward)]
    moved, other = [], []
    for op in (*layers, *step_of(table, asked_of)):
        if not isinstance(op, Comm):
            sizes = ("m", "k", "n", "rows", "width", "heads", "q_len", "elements", "saved_bytes", "parameters")
            columns = [np.ravel(getattr(op, size))[0] for size in sizes if hasattr(op, size)]
            other.append((op.module, op.role, op.phase, columns))
            continue
        group = group_of(op.axis, layout, domain_ranks=8)
        if group.ranks[0] > 1 and op.size_bytes[0]:
            where = (int(group.ranks[0]), int(group.stride[0]))
            moved.append((op.module, op.role, op.phase, op.collective, int(op.size_bytes[0]), where))
    memory = {name: getattr(table.memory, name).tolist() for name in table.memory.__dataclass_fields__}
    return moved, other, memory


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_gradients_are_cast_to_travel_and_back(stage: int) -> None:
    """Twice every gradient: once a step, or from stage 2 on as the backward makes it."""
    one = plan(stage, tp=RANKS, dp=2)
    table = laid_out(one, asked(one))
    passes = [op for op in step_of(table, asked(one)) if "gradients" in op.name and "arrow" in op.name]
    passes += [op for op in step_of(table, asked(one)) if op.name == "step.widen_gradients"]
    layers = [op for op in table.layers.ops.blocks[0].backward if op.role is Role.CAST]
    assert [op.rows.tolist() for op in passes] == [[PARAMETERS * (stage < 2)]] * 2
    weights = 4 * CHANNELS**2 + 3 * CHANNELS * 11008 + 2 * CHANNELS
    assert [op.rows.tolist() for op in layers] == [[weights]] * (2 if stage >= 2 else 0)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_over_n_ranks_it_is_all_to_all_context_parallelism_over_n(ranks: int, stage: int) -> None:
    """The same bytes over the same groups, the same products and kernels, the same memory; gradients travel in
    one format."""
    sequence = plan(stage, tp=ranks, dp=8 // ranks)
    context = replace(sequence, strategy="mtp", tp=1, cp=ranks)
    assert what_runs(sequence) == what_runs(context)
    assert sum(role is Role.HEAD_EXCHANGE for _, role, *_ in what_runs(sequence)[0]) == 8


@pytest.mark.parametrize(("kv_heads", "repeated"), [(8, 8), (2, 4)])
def test_fewer_kv_heads_than_ranks_are_repeated_before_they_travel(kv_heads: int, repeated: int) -> None:
    """DeepSpeed, ulysses_sp.py: kv_replication_factor = ranks / kv heads."""
    model = with_part(LLAMA, "mixer", num_kv_heads=kv_heads)
    (layer,) = written(model, job(seq_len=TOKENS, preset=DEEPSPEED), "ulysses", Layout.of(8, tp=RANKS)).blocks
    keys = [op for op in layer.forward if op.role is Role.HEAD_EXCHANGE][1]
    assert keys.size_bytes.tolist() == [ROWS * repeated * 128 * 2]
    core = next(op for op in layer.forward if op.role is Role.CORE)
    assert (core.heads.tolist(), core.kv_heads.tolist()) == ([8], [repeated // 4])
