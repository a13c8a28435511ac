"""The reference transformer against closed forms."""

import math
from dataclasses import replace

import pytest
import torch

from runner.reference.layers import FeedForward, Rotation, SelfAttention, WholeCore, chunks_of
from runner.reference.transformer import BlockContext, ModelSlice, RoutedFeedForward, stage_of
from spec.mixers.attention import AttentionKind, AttentionSpec, QkNormWeights, RopeSpec
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec, MoeSpec, NormKind
from spec.parameters import num_parameters

CPU = torch.device("cpu")
ATTENTION = AttentionSpec(kind=AttentionKind.GQA, num_heads=4, num_kv_heads=2, qk_dim=8, v_dim=8, qkv_bias=True)
BLOCKS = (
    BlockRun(block=BlockSpec(mixer=ATTENTION, mlp=MlpSpec(ffn_hidden=48, gated=True)), count=1),
    BlockRun(
        block=BlockSpec(mixer=ATTENTION, mlp=MlpSpec(ffn_hidden=48, gated=False, bias=True), norm=NormKind.LAYER),
        count=1,
    ),
    BlockRun(
        block=BlockSpec(
            mixer=ATTENTION, moe=MoeSpec(num_experts=4, topk=2, expert_ffn_hidden=16, shared_ffn_hidden=24)
        ),
        count=1,
    ),
)
MODEL = ModelSpec(name="tiny", hidden=32, vocab=64, blocks=BLOCKS, source="test")


def around(seq_len: int) -> BlockContext:
    return BlockContext(
        core=WholeCore(), experts=None, positions=torch.arange(seq_len), device=CPU, dtype=torch.float32
    )


def test_it_has_the_parameters_that_its_spec_counts() -> None:
    stage = stage_of(MODEL, ModelSlice(blocks=range(3)), around(8), lambda name, part: None)
    assert sum(each.numel() for each in stage.parameters()) == num_parameters(MODEL).total


def test_a_part_starts_with_the_weights_that_it_has_in_the_whole() -> None:
    whole = dict(stage_of(MODEL, ModelSlice(blocks=range(3)), around(8), lambda name, part: None).named_parameters())
    share = ModelSlice(blocks=[1], embedding=False, head=False)
    part = dict(stage_of(MODEL, share, around(8), lambda name, part: None).named_parameters())
    assert part
    assert all(torch.equal(each, whole[name]) for name, each in part.items())
    assert float(whole["head.weight"].detach().std()) == pytest.approx(0.02, rel=0.1)


def test_no_token_sees_one_behind_it() -> None:
    stage = stage_of(MODEL, ModelSlice(blocks=range(3)), around(8), lambda name, part: None)
    tokens = torch.randint(64, (2, 8), generator=torch.Generator().manual_seed(1))
    other = tokens.clone()
    other[:, 5:] = (other[:, 5:] + 1) % 64
    ours, theirs = stage(tokens), stage(other)
    torch.testing.assert_close(ours[:, :5], theirs[:, :5])
    assert not torch.allclose(ours[:, 5:], theirs[:, 5:])


def test_rotated_products_depend_on_distance_alone() -> None:
    """RoFormer, arXiv 2104.09864 eq. 16: <R_m q, R_n k> = g(q, k, m - n)."""
    query, key = torch.randn(2, 1, 1, 1, 16, generator=torch.Generator().manual_seed(3))

    def product(m: int, n: int) -> float:
        turned = [Rotation(RopeSpec(), 16, torch.tensor([place]))(heads) for place, heads in ((m, query), (n, key))]
        return float((turned[0] * turned[1]).sum())

    assert product(7, 3) == pytest.approx(product(104, 100), abs=1e-4)
    assert product(7, 3) != pytest.approx(product(7, 4), abs=1e-3)
    assert product(5, 5) == pytest.approx(float((query * key).sum()), abs=1e-5)


def test_equal_experts_are_one_dense_layer() -> None:
    """Normalised weights add up to one, so what every expert says alike is the answer, whoever is chosen."""
    generator = torch.Generator().manual_seed(5)
    routed = RoutedFeedForward(16, MoeSpec(num_experts=4, topk=2, expert_ffn_hidden=24), None)
    dense = FeedForward(16, MlpSpec(ffn_hidden=24, gated=True))
    gate = dense.gate
    assert gate is not None
    assert routed.experts.gate is not None
    with torch.no_grad():
        for stacked, linear in (
            (routed.experts.gate, gate),
            (routed.experts.up, dense.up),
            (routed.experts.down, dense.down),
        ):
            stacked.copy_(linear.weight.t())
    states = torch.randn(2, 6, 16, generator=generator)
    torch.testing.assert_close(routed(states), dense(states))


def test_grouped_queries_share_keys() -> None:
    """One query on one key: softmax of a single score is 1, so each head's output is its group's value."""
    query = torch.randn(1, 4, 1, 8)
    key, value = torch.randn(2, 1, 2, 1, 8)
    heads = WholeCore()(query, key, value)
    torch.testing.assert_close(heads, value.repeat_interleave(2, dim=1))
    assert math.prod(heads.shape) == 32


@pytest.mark.parametrize("weights", [QkNormWeights.HEAD, QkNormWeights.NONE])
def test_norms_of_heads_and_tied_ends_have_the_parameters_that_their_spec_counts(weights: QkNormWeights) -> None:
    mixer = replace(ATTENTION, qk_norm=True, qk_norm_weights=weights, window=3)
    blocks = (BlockRun(block=replace(BLOCKS[0].block, mixer=mixer), count=2),)
    model = replace(MODEL, blocks=blocks, tied_embeddings=True)
    stage = stage_of(model, ModelSlice(blocks=range(2)), around(8), lambda name, part: None)
    assert sum(each.numel() for each in stage.parameters()) == num_parameters(model).total
    tokens = torch.randint(64, (1, 8), generator=torch.Generator().manual_seed(1))
    stage(tokens).sum().backward()
    assert stage.embedding is not None
    assert stage.head is not None
    assert stage.head.weight is stage.embedding.weight


@pytest.mark.parametrize("window", [1, 3, 8])
def test_a_token_sees_the_last_of_its_window(window: int) -> None:
    """Softmax over the keys i - w < j <= i, written out (Mistral 7B, arXiv 2310.06825 sec. 2)."""
    query, key, value = torch.randn(3, 1, 2, 8, 4, generator=torch.Generator().manual_seed(2)).unbind(0)
    result = WholeCore()(query, key, value, window)
    for at in range(8):
        seen = slice(max(0, at - window + 1), at + 1)
        scores = (query[..., at : at + 1, :] @ key[..., seen, :].mT / 2).softmax(-1)
        torch.testing.assert_close(result[..., at : at + 1, :], scores @ value[..., seen, :])


def test_queries_and_keys_are_normed_before_they_are_turned() -> None:
    """A norm takes their length away: ten times the weights of q and k are the same attention."""
    mixer = replace(ATTENTION, qk_norm=True, qkv_bias=False)
    turned = Rotation(RopeSpec(), mixer.qk_dim, torch.arange(8))
    made = SelfAttention(32, mixer, WholeCore(), turned, 1e-12)
    states = torch.randn(1, 8, 32, generator=torch.Generator().manual_seed(4))
    before = made(states)
    with torch.no_grad():
        made.q.weight *= 10
        made.k.weight *= 10
    torch.testing.assert_close(made(states), before)


# How a sequence is dealt over cp; that it is put together again is tested with the trainer.


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_each_rank_holds_as_many_pairs_under_the_causal_mask(ranks: int) -> None:
    """Chunk i of size c sees i c^2 whole pairs and c (c + 1) / 2 of its own, so i + j must be the same for all."""
    held = [chunks_of(rank, ranks) for rank in range(ranks)]
    assert sorted(chunk for pair in held for chunk in pair) == list(range(2 * ranks))
    assert {sum(pair) for pair in held} == {2 * ranks - 1}
