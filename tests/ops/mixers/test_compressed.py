"""DeepSeek-V4's attention by hand: n heads of d channels that read one key of a window, and entries of r tokens."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.mixers.indexer import mean_keys
from ops.op import Attention, BatchedGemm, MemoryBound, Pass, Phase
from spec.errors import ConfigError
from spec.mixers.compressed import CompressedAttentionSpec
from spec.mixers.mixer import mixer_parameters
from spec.section import Section
from tests.ops.layouts import job, saved_bytes, written
from tests.solver.questions import small_model, with_block

HIDDEN, SEQ, BATCH = 512, 4096, 3
TOKENS = SEQ * BATCH
N, D, ROPE, RANK, GROUPS, OUT = 16, 64, 8, 96, 4, 32
WIDTH = N * D
WINDOW = CompressedAttentionSpec(
    num_heads=N, head_dim=D, rope_dim=ROPE, q_lora_rank=RANK, window=128, out_groups=GROUPS, out_rank=OUT
)
COMPRESSED = replace(WINDOW, rate=128)
SELECTED = replace(WINDOW, rate=4, index_topk=100, index_heads=6, index_dim=20)


def layer(mixer: CompressedAttentionSpec, strategy: str = "mtp", precision: str = "") -> Pass:
    model = with_block(small_model(hidden=HIDDEN), mixer=mixer, mlp=None)
    return written(model, job(seq_len=SEQ, world_size=1), strategy, Layout.of(1, micro_batch=BATCH)).blocks[0]


@given(length=st.integers(1, 300), rate=st.sampled_from([1, 2, 4, 7, 128]), most=st.none() | st.integers(1, 90))
def test_keys_of_a_query_are_counted_one_by_one(length: int, rate: int, most: int | None) -> None:
    """A query reads an entry that ends before or with it (transformers modeling_deepseek_v4.py, causal_threshold)."""
    pairs = sum(min(position // rate, most or length) for position in range(1, length + 1))
    assert mean_keys(np.array([length]), rate, most)[0] == max(-(-pairs // length), 1)


def test_heads_read_a_window_and_all_entries_or_the_selected_ones() -> None:
    def keys(mixer: CompressedAttentionSpec, role: str) -> list[int]:
        return [int(op.kv_len[0]) for op in layer(mixer).forward if isinstance(op, Attention) and op.role == role]

    def pairs(rate: int, most: int) -> float:
        return sum(min(position // rate, most) for position in range(1, SEQ + 1)) / SEQ

    window = np.ceil(pairs(1, 128))
    assert keys(WINDOW, "core") == [window]
    assert keys(COMPRESSED, "core") == [window + np.ceil(pairs(128, SEQ))]
    assert keys(SELECTED, "core") == [window + np.ceil(pairs(4, 100))]
    assert (keys(SELECTED, "index_scores"), keys(SELECTED, "index_loss")) == (
        [np.ceil(pairs(4, SEQ))],
        [np.ceil(pairs(4, 100))],
    )
    (core,) = (op for op in layer(SELECTED).forward if isinstance(op, Attention) and op.role == "core")
    assert [int(size[0]) for size in (core.heads, core.kv_heads, core.qk_dim, core.v_dim)] == [N, 1, D, D]
    (target,) = (op for op in layer(SELECTED).forward if isinstance(op, Attention) and op.role == "index_loss")
    assert [int(size[0]) for size in (target.heads, target.qk_dim + target.v_dim)] == [N, D]


@pytest.mark.parametrize("mixer", [WINDOW, COMPRESSED, SELECTED])
def test_a_rank_holds_the_weights_of_the_layer(mixer: CompressedAttentionSpec) -> None:
    owned = sum(int(op.parameters[0]) for op in layer(mixer).forward)
    # and of the norm before it
    assert owned == mixer_parameters(mixer, HIDDEN) + HIDDEN


def test_weights_by_hand() -> None:
    plain = (
        HIDDEN * RANK
        + RANK
        + RANK * WIDTH
        + HIDDEN * D
        + D
        + N
        + WIDTH // GROUPS * GROUPS * OUT
        + GROUPS * OUT * HIDDEN
    )
    assert mixer_parameters(WINDOW, HIDDEN) == plain
    assert mixer_parameters(COMPRESSED, HIDDEN) == plain + 2 * HIDDEN * D + 128 * D + D
    twice = 2 * (D + 20)
    index = RANK * 6 * 20 + HIDDEN * 6
    assert mixer_parameters(SELECTED, HIDDEN) == plain + 2 * HIDDEN * twice + 4 * twice + D + 20 + index


def test_products() -> None:
    """(batch, m, k, n) of each, forward; twice their FLOPs backward, of the indexer's once: its input gets no gradient."""
    piece = layer(SELECTED)
    products = {op.name.removeprefix("attention."): op for op in piece.forward if isinstance(op, BatchedGemm)}
    assert {name: tuple(int(size[0]) for size in (op.batch, op.m, op.k, op.n)) for name, op in products.items()} == {
        "q_down": (1, TOKENS, HIDDEN, RANK),
        "q_up": (1, TOKENS, RANK, WIDTH),
        "kv_down": (1, TOKENS, HIDDEN, D),
        "compress": (1, TOKENS, HIDDEN, 4 * D),
        "index_q": (1, TOKENS, RANK, 6 * 20),
        "index_k": (1, TOKENS, HIDDEN, 4 * 20 + 6),
        "out_down": (GROUPS, TOKENS, WIDTH // GROUPS, OUT),
        "out": (1, TOKENS, GROUPS * OUT, HIDDEN),
    }
    for name, op in products.items():
        backward = [each for each in piece.backward if isinstance(each, BatchedGemm) and each.key == op.key]
        times = 1 if name.startswith("index") else 2
        assert sum(float(each.flops[0]) for each in backward) == times * float(op.flops[0]), name


def test_entries_are_made_by_one_kernel_that_keeps_what_it_reads() -> None:
    """Channels and weights of both series read, an entry written; backward both and their gradients."""
    piece = layer(SELECTED)

    def moved(phase: Phase, name: str) -> float:
        ops = (*piece.forward, *piece.backward)
        return sum(
            float(bytes_moved(op)[0])
            for op in ops
            if isinstance(op, MemoryBound) and (op.phase, op.name) == (phase, name)
        )

    read, entry = 2 * TOKENS * 4 * D, 2 * TOKENS // 4 * D
    assert moved(Phase.FORWARD, "attention.compress_pool") == read + entry
    assert moved(Phase.INPUT_GRAD, "attention.compress_pool") == 2 * (read + entry)
    assert moved(Phase.FORWARD, "attention.rotary") == 2 * 2 * TOKENS * (N + 1) * ROPE
    assert moved(Phase.FORWARD, "attention.index_rotary") == 2 * 2 * TOKENS * 6 * ROPE
    assert moved(Phase.FORWARD, "attention.compress_rotary") == 2 * 2 * TOKENS // 4 * ROPE
    assert moved(Phase.FORWARD, "attention.out_rotary") == 2 * 2 * TOKENS * WIDTH


def test_saved_of_a_window() -> None:
    """Of a token: the norm's input and result; the latent before and after its norm; queries before their norm and rotated, key
    before its norm and rotated; the output as the kernel keeps it and rotated back; a statistic a head and the numbers of 128
    keys; what the last product reads."""
    numbers = 2 * HIDDEN + 2 * RANK + 2 * WIDTH + 2 * D + 2 * WIDTH + GROUPS * OUT
    assert saved_bytes(layer(WINDOW)) == TOKENS * (2 * numbers + 4 * N + 4 * 128)


def test_saved_of_entries_and_of_their_selection() -> None:
    """More than a window: both series of channels and weights, entries before and after their norm, their numbers."""
    more = saved_bytes(layer(COMPRESSED)) - saved_bytes(layer(WINDOW))
    assert more == TOKENS * (2 * 2 * D + 4 * SEQ // 128) + TOKENS // 128 * 2 * 2 * D
    index = 2 * 4 * 20 + 2 * 20 // 4  # its channels and weights, its entries before their norm
    scores = 2 * (6 * 20 + 20 + 6) + 4 * 100  # what is scored, and the gradient of each selected score
    of_window = saved_bytes(layer(SELECTED)) - saved_bytes(layer(WINDOW))
    assert of_window == TOKENS * (2 * 4 * D + 2 * 2 * D // 4 + 4 * 100 + index + scores)


def test_products_in_fp8_keep_their_own_inputs() -> None:
    """In one byte each; those of the compressor in two, as csa.py runs them in 16 bits."""
    model, settings = with_block(small_model(hidden=HIDDEN), mixer=COMPRESSED, mlp=None), job(seq_len=SEQ, world_size=1)
    settings = replace(settings, precision=replace(settings.precision, linear="fp8", scaling="current"))
    piece = written(model, settings, "mtp", Layout.of(1, micro_batch=BATCH)).blocks[0]
    products = [op for op in piece.forward if isinstance(op, BatchedGemm)]
    kept = {op.name.removeprefix("attention."): (op.dtype, float(op.saved_bytes[0]) / TOKENS) for op in products}
    expected = {
        "q_down": ("fp8", HIDDEN),
        "q_up": ("fp8", RANK),
        "kv_down": ("fp8", HIDDEN),
        "compress": ("bf16", 2 * HIDDEN),
        "out_down": ("bf16", 2 * WIDTH),
        "out": ("fp8", GROUPS * OUT),
    }
    assert kept == expected


def test_no_rank_has_a_part_of_the_heads() -> None:
    assert (WINDOW.cut_heads, WINDOW.repeatable_heads) == ((1,), ())


def test_a_config_names_its_sizes() -> None:
    sizes = {
        "num_heads": 8,
        "head_dim": 64,
        "rope_dim": 8,
        "q_lora_rank": 32,
        "window": 128,
        "out_groups": 2,
        "out_rank": 16,
    }

    def read(**more: int) -> CompressedAttentionSpec:
        return CompressedAttentionSpec.read(Section(where="test", name="attention", values={**sizes, **more}), HIDDEN)

    assert read(rate=4) == CompressedAttentionSpec(**sizes, rate=4)
    with pytest.raises(ConfigError, match="out_groups"):
        read(out_groups=3)
    with pytest.raises(ConfigError, match="index_heads"):
        read(rate=4, index_heads=2)
    with pytest.raises(ConfigError, match="index_heads"):
        read(index_heads=2, index_dim=8, index_topk=16)
