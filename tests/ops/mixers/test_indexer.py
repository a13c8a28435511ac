"""Sparse attention by hand: DeepSeek-V3.2's numbers (its config.json; arXiv 2512.02556 sec. 2.1): 128 heads over latents
of 512 channels and 64 rotated ones, 64 heads of 128 channels that select 2048 keys."""

from dataclasses import replace

import pytest

from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.mixers.registry import MIXERS
from ops.op import Attention, BatchedGemm, Comm, MemoryBound, Op, Pass, Phase
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.mixers.mixer import mixer_parameters
from spec.model import BlockRun, BlockSpec
from spec.parameters import block_parameters
from spec.readers.read_config import read_config
from tests.ops.layouts import job, saved_bytes, written
from tests.solver.questions import ROOT, small_model, with_block

SEQ, HIDDEN, TOPK = 8192, 7168, 2048
MODEL = read_config(ROOT / "configs" / "671B_deepseek_v3.toml").model
DENSE = MODEL.blocks[0].block.mixer
assert isinstance(DENSE, AttentionSpec)
SPARSE = replace(DENSE, index_topk=TOPK, index_heads=64, index_dim=128)
BORROWING = replace(DENSE, index_topk=TOPK)


def layer(attention: AttentionSpec, tp: int = 1, seq_len: int = SEQ, strategy: str = "fsp") -> Pass:
    model = replace(MODEL, blocks=(BlockRun(block=BlockSpec(mixer=attention), count=1),))
    return written(model, job(seq_len=seq_len, world_size=tp), strategy, Layout.of(tp, tp=tp)).blocks[0]


def flops(piece: Pass) -> dict[tuple[str, str], float]:
    return {
        (op.name.removeprefix("attention."), op.direction): float(op.flops[0])
        for op in (*piece.forward, *piece.backward)
        if isinstance(op, Attention)
    }


@pytest.mark.parametrize("tp", [1, 8])
def test_every_rank_scores_all_keys_and_attends_to_the_selected_ones_with_its_heads(tp: int) -> None:
    pairs, selected = 2 * SEQ * SEQ, 2 * SEQ * TOPK
    assert flops(layer(SPARSE, tp)) == {
        ("index_scores", "forward"): pairs * 64 * 128,
        ("index_loss", "forward"): 2 * selected * 128 // tp * (512 + 64),
        ("core", "forward"): selected * 128 // tp * (512 + 64 + 512),
        ("core", "backward"): 2 * selected * 128 // tp * (512 + 64 + 512),
        ("index_scores", "backward"): 2 * selected * 64 * 128,
    }


def test_short_sequences_have_no_more_keys_than_tokens() -> None:
    assert flops(layer(SPARSE, seq_len=1024))["core", "forward"] == 2 * 1024 * 1024 * 128 * (512 + 64 + 512)


@pytest.mark.parametrize("tp", [1, 8])
def test_projections_are_whole_on_every_rank_and_pass_nothing_back(tp: int) -> None:
    piece = layer(SPARSE, tp)
    products = [op for op in (*piece.forward, *piece.backward) if isinstance(op, BatchedGemm) and "index" in op.name]
    assert [(op.name, op.phase, int(op.m[0]), int(op.k[0]), int(op.n[0])) for op in products] == [
        ("attention.index_q", Phase.FORWARD, SEQ, 1536, 64 * 128),
        ("attention.index_k", Phase.FORWARD, SEQ, HIDDEN, 128 + 64),
        ("attention.index_k", Phase.WEIGHT_GRAD, 128 + 64, SEQ, HIDDEN),
        ("attention.index_q", Phase.WEIGHT_GRAD, 64 * 128, SEQ, 1536),
    ]
    gathered = [float(op.size_bytes[0]) for op in piece.forward if isinstance(op, Comm) and "index_k" in op.name]
    assert gathered == [2 * SEQ * (HIDDEN + 1536)]
    (summed,) = [op for op in piece.forward if isinstance(op, Comm) and "index_loss" in op.name]
    assert float(summed.size_bytes[0]) == 4 * SEQ * TOPK


def test_parameters_are_those_of_the_indexer() -> None:
    more = 1536 * 64 * 128 + HIDDEN * (128 + 64) + 2 * 128
    assert mixer_parameters(SPARSE, HIDDEN) - mixer_parameters(DENSE, HIDDEN) == more
    assert mixer_parameters(BORROWING, HIDDEN) == mixer_parameters(DENSE, HIDDEN)
    held = [sum(int(op.parameters[0]) for op in layer(one).forward) for one in (SPARSE, DENSE)]
    assert held[0] - held[1] == more


def test_what_is_kept() -> None:
    """In 16 bits: the indexer's queries, key (before and after its norm) and weights; queries of 576 channels a head and one
    key of 576 + 512 in place of heads of 192, 192 and 128, with the queries' 128 and outputs of 512 around the up
    projection; in 32 bits two numbers of each selected key."""

    def saved(attention: AttentionSpec) -> float:
        return saved_bytes(layer(attention))

    latents = 2 * SEQ * (128 * 576 + 576 + 512 + 128 * (128 + 512) - 128 * (192 + 192 + 128))
    assert saved(BORROWING) - saved(DENSE) == latents
    assert saved(SPARSE) - saved(BORROWING) == 2 * SEQ * (64 * 128 + 2 * 128 + 64) + 2 * 4 * SEQ * TOPK
    cut = layer(SPARSE, tp=8)
    kept = [float(op.saved_bytes[0]) for op in cut.forward if op.name in ("attention.index_q", "attention.index_k")]
    assert kept == [2 * SEQ * 1536, 2 * SEQ * HIDDEN]


def test_selecting_writes_and_reads_every_score_once() -> None:
    (best,) = [op for op in layer(SPARSE).forward if op.name == "attention.topk"]
    assert isinstance(best, MemoryBound)
    assert float(bytes_moved(best)[0]) == 2 * 4 * SEQ * SEQ


def test_scores_exist_for_a_block_of_queries_at_a_time() -> None:
    """8192 queries, in fp32; nothing of the backward."""
    for length, queries in ((SEQ, SEQ), (2 * SEQ, 8192)):
        calls = [op for op in layer(SPARSE, seq_len=length).forward if op.name == "attention.index_scores"]
        assert [float(op.transient_bytes[0]) for op in calls] == [4.0 * queries * length]


def test_a_layer_that_borrows_a_selection_runs_no_indexer() -> None:
    assert set(flops(layer(BORROWING))) == {("core", "forward"), ("core", "backward")}


@pytest.mark.parametrize("way", ["ring", "all_gather", "all_to_all"])
def test_no_context_parallelism_cuts_a_selection(way: str) -> None:
    row = MIXERS[AttentionSpec]
    assert not row.cuts_sequences(SPARSE, way)
    assert row.cuts_sequences(DENSE, way)


def test_an_indexer_without_a_latent_of_queries_norms_the_hidden_states() -> None:
    """Mistral Large 4 (transformers modeling_mistral_large4.py, MistralLarge4TextIndexer: q_input_norm with a bias, wq_b of the hidden
    states) whose queries pass a scale and a bias a head of their position, the indexer's too; a layer without rotation has none."""
    plain = AttentionSpec(
        kind=AttentionKind.MLA, num_heads=8, num_kv_heads=8, qk_dim=96, v_dim=64, rope_dim=32, kv_lora_rank=128
    )
    indexed = replace(plain, index_topk=256, index_heads=4, index_dim=64)
    hidden, tokens = 512, 2048
    weights = 2 * hidden + 4 * 64 * hidden + 64 * hidden + 2 * 64 + 4 * hidden
    assert mixer_parameters(indexed, hidden) - mixer_parameters(plain, hidden) == weights
    scaled = replace(indexed, position_scale=True)
    assert mixer_parameters(scaled, hidden) - mixer_parameters(indexed, hidden) == 2 * (8 + 4)
    still = replace(scaled, rope_dim=0)

    def ops(mixer: AttentionSpec) -> dict[str, Op]:
        model = with_block(small_model(hidden=hidden), mixer=mixer)
        piece = written(model, job(seq_len=tokens, world_size=1), "mtp", Layout.of(1)).blocks[0]
        owned = sum(int(op.parameters[0]) for op in piece.forward)
        assert owned == block_parameters(model.blocks[0].block, hidden)
        return {op.name: op for op in piece.forward}

    listed = ops(scaled)
    product, normed, times = (listed[f"attention.{name}"] for name in ("index_q", "index_q_norm", "position_scale"))
    assert isinstance(product, BatchedGemm)
    assert (product.k[0], product.n[0]) == (hidden, 4 * 64)
    assert isinstance(normed, MemoryBound)
    assert bytes_moved(normed)[0] == 2 * 2 * tokens * hidden
    # its input, and what the product reads
    assert normed.saved_bytes[0] == 2 * 2 * tokens * hidden
    rotated = listed["attention.index_rotary"]
    assert isinstance(rotated, MemoryBound)
    assert bytes_moved(rotated)[0] == 2 * 2 * tokens * (4 + 1) * 32
    assert isinstance(times, MemoryBound)
    assert bytes_moved(times)[0] == 2 * 2 * tokens * (8 * 96 + 4 * 64)
    assert not any("rotary" in name for name in ops(still))
