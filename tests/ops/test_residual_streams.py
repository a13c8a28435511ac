"""Hyper-connections by hand: n streams of h channels, mixed before a half and added to behind it (transformers modeling_hy_v4.py)."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ops.block import ModelOps
from ops.context import LayerContext
from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import MemoryBound, Op, Pass
from ops.recompute import Recompute
from ops.strategies import STRATEGIES
from solver.memory.peak import layer_backward_bytes
from solver.memory.stage import stage_output_bytes
from solver.plans.plan_table import Plan, PlanTable
from solver.times.stage_times import p2p_bytes
from spec.frameworks import framework_preset
from spec.model import ModelSpec
from spec.parameters import num_parameters
from tests.ops.layouts import job, saved_bytes, written
from tests.solver.questions import question, small_model
from workload.aicb.data_parallel import model_units

HIDDEN, TOKENS, N = 512, 2048, 4
STREAM = 2 * TOKENS * HIDDEN
PLAIN = small_model()
STREAMS = replace(PLAIN, residual_streams=N)


def ops(model: ModelSpec, recompute: Recompute = Recompute.NONE, **degrees: int) -> ModelOps:
    ranks = degrees.get("tp", 1)
    return written(model, job(world_size=ranks), "mtp", Layout.of(ranks, **degrees), recompute)


def moved(piece: tuple[Op, ...], word: str) -> float:
    return sum(float(bytes_moved(op)[0]) for op in piece if isinstance(op, MemoryBound) and word in op.name) / STREAM


def owned(piece: Pass) -> int:
    return sum(int(op.parameters[0]) for op in piece.forward)


def test_weights_of_mixes_are_whole_on_every_rank() -> None:
    """fn (2n, n h), base (2n), scale (2) for each half; hc_head's fn (n, n h), base (n), scale (1)."""
    half, head = 2 * N * N * HIDDEN + 2 * N + 2, N * N * HIDDEN + N + 1
    more = num_parameters(STREAMS).total - num_parameters(PLAIN).total
    assert more == 8 * 2 * half + head
    units = [sum(each.elements for unit in model_units(model) for each in unit.modules) for model in (STREAMS, PLAIN)]
    assert units[0] - units[1] == more
    for tp in (1, 2):
        streams, plain = ops(STREAMS, tp=tp), ops(PLAIN, tp=tp)
        assert owned(streams.blocks[0]) - owned(plain.blocks[0]) == 2 * half
        assert owned(streams.head) - owned(plain.head) == head
    assert STREAMS.rare_parts == ("residual_streams",)


@pytest.mark.parametrize("module", ["attention", "mlp"])
def test_streams_are_read_and_written_once_a_pass(module: str) -> None:
    """Mixed: n read, 1 written; back 1 and n read, n read and written. Added: n and 1 read, n written; back n and 1 read, 1 written."""
    block = ops(STREAMS).blocks[0]
    assert moved(block.forward, f"{module}.mix_streams") == N + 1
    assert moved(block.backward, f"{module}.mix_streams") == 1 + 3 * N
    assert moved(block.forward, f"{module}.add_to_streams") == 2 * N + 1
    assert moved(block.backward, f"{module}.add_to_streams") == N + 2
    assert not any(op.name == f"{module}.residual" for op in block.forward)


def test_streams_begin_as_copies_and_end_in_a_mix() -> None:
    streams = ops(STREAMS)
    assert moved(streams.embedding.forward, "spread") == moved(streams.embedding.backward, "spread") == N
    assert moved(streams.head.forward, "head.mix_streams") == N + 1


def test_a_half_keeps_all_streams_and_its_output() -> None:
    streams, plain = ops(STREAMS), ops(PLAIN)
    assert saved_bytes(streams.blocks[0]) - saved_bytes(plain.blocks[0]) == 2 * (N + 1) * STREAM
    again = [saved_bytes(ops(model, Recompute.FULL).blocks[0]) for model in (STREAMS, PLAIN)]
    assert again[0] - again[1] == (N - 1) * STREAM


def test_stages_send_all_streams() -> None:
    one = Plan(strategy="mtp", preset="megatron", pp=2, num_micro=4)
    asked = question(world_size=2, sequences=4, preset=framework_preset("megatron"))
    sent = [p2p_bytes(model, asked.job, PlanTable.of(one)) for model in (STREAMS, PLAIN)]
    assert sent[0].tolist() == (N * sent[1]).tolist()


def test_outputs_and_their_gradients_are_of_all_streams() -> None:
    """Two tensors wait in a layer's backward; of a first stage with two micro-batches in flight four outputs and buffers are kept."""
    contexts = [
        LayerContext(model=model, job=job(world_size=2), layout=Layout.of(2, pp=2), sharding=STRATEGIES["mtp"])
        for model in (STREAMS, PLAIN)
    ]
    first, other = (layer_backward_bytes(context, [], np.asarray([0])) for context in contexts)
    assert (first - other).tolist() == [2 * (N - 1) * STREAM]

    def outputs(context: LayerContext) -> list[float]:
        plans = SimpleNamespace(sharding=context.sharding)
        tables = SimpleNamespace(plans=plans, stages=SimpleNamespace(head=np.asarray([False])))
        return stage_output_bytes(SimpleNamespace(context=context, tables=tables, in_flight=np.asarray([2.0]))).tolist()

    assert [outputs(context) for context in contexts] == [[4.0 * N * STREAM], [4.0 * STREAM]]
