"""Griffin's recurrent block by hand: n blocks of b channels, w in all."""

import pytest

from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import Axis, BatchedGemm, Comm, MemoryBound, Op, Pass
from spec.errors import ConfigError
from spec.mixers.rg_lru import RgLruSpec
from spec.section import Section
from tests.ops.layouts import job, saved_bytes, written
from tests.solver.questions import small_model, with_block

HIDDEN, BLOCKS, BLOCK = 512, 8, 80
SEQ, BATCH = 2048, 3
TOKENS, WIDTH = SEQ * BATCH, BLOCKS * BLOCK
MIXER = RgLruSpec(num_blocks=BLOCKS, block_width=BLOCK)


def layer(strategy: str = "mtp", **degrees: int) -> Pass:
    ranks = degrees.get("tp", 1) * degrees.get("cp", 1)
    settings = job(seq_len=SEQ, world_size=ranks, context_parallel="all_to_all")
    model = with_block(small_model(hidden=HIDDEN), mixer=MIXER, mlp=None)
    return written(model, settings, strategy, Layout.of(ranks, micro_batch=BATCH, **degrees)).blocks[0]


@pytest.mark.parametrize("tp", [1, 4])
def test_weights_are_cut_by_blocks(tp: int) -> None:
    """Two products in and one out, four taps, two square matrices a block, a rate a channel; biases of all but the rate. The norm
    and the last bias are whole on every rank."""
    weights = 3 * HIDDEN * WIDTH + 4 * WIDTH + 2 * BLOCKS * BLOCK * BLOCK + WIDTH + (2 + 1 + 2) * WIDTH + HIDDEN
    assert sum(module.elements for module in MIXER.modules(HIDDEN, "")) == weights
    owned = sum(int(op.parameters[0]) for op in layer(tp=tp).forward)
    assert owned == (weights - HIDDEN) // tp + 2 * HIDDEN


def test_gates_are_products_within_blocks() -> None:
    """2 b w FLOPs a token and gate; twice that backward."""

    def flops(ops: tuple[Op, ...]) -> float:
        return sum(float(op.flops[0]) for op in ops if isinstance(op, BatchedGemm) and op.name == "rg_lru.gate")

    assert flops(layer().forward) == 2 * 2 * TOKENS * BLOCK * WIDTH
    assert flops(layer().backward) == 2 * flops(layer().forward)
    assert 4 * flops(layer(tp=4).forward) == flops(layer().forward)


def test_the_recurrence_reads_three_tensors_and_writes_one() -> None:
    """Backward five and three. Of w channels are kept: the convolution's input, the gates', both gates, the recurrence's result
    and the other branch, and what the last product reads."""
    piece, a_tensor = layer(), 2 * TOKENS * WIDTH

    def moved(ops: tuple[Op, ...], word: str) -> float:
        return (
            sum(float(bytes_moved(op)[0]) for op in ops if isinstance(op, MemoryBound) and word in op.name) / a_tensor
        )

    assert moved(piece.forward, "scan") == 3 + 1
    assert moved(piece.backward, "d_scan") == 5 + 3
    assert (moved(piece.forward, "rg_lru.convolution"), moved(piece.forward, "rg_lru.output_gate")) == (2, 3)
    assert saved_bytes(piece) == 2 * TOKENS * (2 * HIDDEN + (1 + 1 + 2 + 2 + 1) * WIDTH)


def test_the_input_gradients_of_both_products_in_are_added_once() -> None:
    sums = [op for op in layer().backward if isinstance(op, MemoryBound) and op.name.endswith("add_gradients")]
    assert [float(bytes_moved(op)[0]) for op in sums] == [3 * 2 * TOKENS * HIDDEN]


def test_context_parallelism_exchanges_blocks() -> None:
    part = layer("fsp", cp=4)
    moved = {op.name: int(op.size_bytes[0]) for op in part.forward if isinstance(op, Comm) and op.axis is Axis.CP}
    assert moved == {f"rg_lru.{name}_context": 2 * TOKENS // 4 * WIDTH for name in ("x", "y", "out")}


def test_blocks_of_a_config_share_the_hidden_size() -> None:
    read = RgLruSpec.read(Section(where="test", name="rg_lru", values={"num_blocks": 4, "conv_kernel": 2}), 96)
    assert read == RgLruSpec(num_blocks=4, block_width=24, conv_kernel=2)
    assert (read.cut_heads, read.repeatable_heads) == ((4,), ())
    with pytest.raises(ConfigError, match="num_blocks"):
        RgLruSpec.read(Section(where="test", name="rg_lru", values={}), 96)
