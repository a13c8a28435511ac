"""Sparse attention by hand: DeepSeek-V3.2's numbers (its config.json; arXiv 2512.02556 sec. 2.1): 128 heads over latents
of 512 channels and 64 rotated ones, 64 heads of 128 channels that select 2048 keys."""

from dataclasses import replace

import pytest

from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.mixers.registry import MIXERS
from ops.op import Attention, BatchedGemm, Comm, MemoryBound, Pass, Phase
from spec.mixers.attention import AttentionSpec
from spec.mixers.mixer import mixer_parameters
from spec.model import BlockRun, BlockSpec
from spec.readers.read_config import read_config
from tests.ops.layouts import job, saved_bytes, written
from tests.solver.questions import ROOT

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


def test_a_layer_that_borrows_a_selection_runs_no_indexer() -> None:
    assert set(flops(layer(BORROWING))) == {("core", "forward"), ("core", "backward")}


@pytest.mark.parametrize("way", ["ring", "all_gather", "all_to_all"])
def test_no_context_parallelism_cuts_a_selection(way: str) -> None:
    row = MIXERS[AttentionSpec]
    assert not row.cuts_sequences(SPARSE, way)
    assert row.cuts_sequences(DENSE, way)
