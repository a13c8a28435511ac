"""Lightning attention's operations by hand: T tokens, n heads of d channels, chunks of C tokens."""

import pytest

from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import Axis, BatchedGemm, Comm, MemoryBound, Op, Pass, Phase
from ops.roles import Role
from spec.errors import ConfigError
from spec.mixers.lightning import LightningSpec
from spec.section import Section
from tests.ops.layouts import job, saved_bytes, written
from tests.solver.questions import small_model, with_block

HIDDEN, HEADS, D, C = 512, 8, 96, 256
SEQ, BATCH = 2048, 3
TOKENS, INNER = SEQ * BATCH, HEADS * D
MIXER = LightningSpec(num_heads=HEADS, head_dim=D)


def layer(strategy: str = "mtp", **degrees: int) -> Pass:
    ranks = degrees.get("tp", 1) * degrees.get("cp", 1)
    settings = job(seq_len=SEQ, world_size=ranks, context_parallel="all_to_all")
    model = with_block(small_model(hidden=HIDDEN), mixer=MIXER, mlp=None)
    return written(model, settings, strategy, Layout.of(ranks, micro_batch=BATCH, **degrees)).blocks[0]


def flops(ops: tuple[Op, ...], phase: Phase) -> float:
    return float(
        sum(op.flops[0] for op in ops if isinstance(op, BatchedGemm) and op.role is Role.CORE and op.phase is phase)
    )


def test_products_are_those_within_a_chunk_and_through_the_state() -> None:
    """modeling_minimax.py: q k^T and its product with v (C d each a token), q times the state and k^T v (d d each); backward
    (arXiv 2405.17381 algorithm 2) the gradients of q, k and v within a chunk, with the scores' (4 C d), those through states and
    their gradients (3 d d) and the state's gradient (d d), after scores and states again."""
    whole, each = layer(), 2 * TOKENS * HEADS
    assert flops(whole.forward, Phase.FORWARD) == each * (2 * C * D + 2 * D * D)
    assert flops(whole.backward, Phase.RECOMPUTE) == each * (C * D + D * D)
    assert flops(whole.backward, Phase.INPUT_GRAD) == each * (4 * C * D + 4 * D * D)


@pytest.mark.parametrize("tp", [1, 4])
def test_weights_are_cut_by_heads(tp: int) -> None:
    """Three matrices in, one for the gates, one out, and a norm of all heads."""
    weights = 5 * HIDDEN * INNER + INNER
    assert sum(module.elements for module in MIXER.modules(HIDDEN, "")) == weights
    part = layer(tp=tp)
    assert sum(int(op.parameters[0]) for op in part.forward) == weights // tp + HIDDEN
    assert tp * flops(part.forward, Phase.FORWARD) == flops(layer().forward, Phase.FORWARD)


def test_kernels_keep_what_they_read() -> None:
    """Of INNER channels a token: q, k and v before SiLU and behind it, the norm's input, the gate's two, the last product's."""
    piece = layer()
    assert saved_bytes(piece) == 2 * TOKENS * (2 * HIDDEN + (3 + 3 + 1 + 2 + 1) * INNER)
    moved = {op.name: float(bytes_moved(op)[0]) for op in piece.forward if isinstance(op, MemoryBound)}
    a_tensor = 2 * TOKENS * INNER
    assert moved["lightning.activation"] == 6 * a_tensor
    assert (moved["lightning.inner_norm"], moved["lightning.output_gate"]) == (2 * a_tensor, 3 * a_tensor)


def test_context_parallelism_exchanges_heads_but_not_gates() -> None:
    part = layer("fsp", cp=4)
    moved = {op.name: int(op.size_bytes[0]) for op in part.forward if isinstance(op, Comm) and op.axis is Axis.CP}
    assert moved == {f"lightning.{name}_context": 2 * TOKENS // 4 * INNER for name in ("q", "k", "v", "out")}


def test_heads_of_a_config_share_the_hidden_size() -> None:
    read = LightningSpec.read(Section(where="test", name="lightning", values={"num_heads": 4}), 96)
    assert read == LightningSpec(num_heads=4, head_dim=24)
    assert (read.cut_heads, read.repeatable_heads) == ((4,), ())
    with pytest.raises(ConfigError, match="num_heads"):
        LightningSpec.read(Section(where="test", name="lightning", values={}), 96)
