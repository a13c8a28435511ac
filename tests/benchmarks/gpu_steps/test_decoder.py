"""What the decoder runs is what is priced of it, operation by operation: shapes of products, attention and passes."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from benchmarks import gpu_step
from benchmarks.gpu_steps.case import DecoderShape, StepCase
from benchmarks.gpu_steps.one_row import reference_cases
from benchmarks.gpu_steps.rows import cases_to_measure
from benchmarks.gpu_steps.training import PlainTrainer
from profdb.cases import AttentionCase, Case, GemmCase, MemoryBoundCase
from profiler.device import Device
from solver.problem.request import Request
from tests.profiler.fakes import Recorder

SHAPE = DecoderShape(hidden=32, layers=2, heads=4, kv_heads=2, ffn=48, vocab=96, seq_len=16)
CASE = StepCase(shape=SHAPE, micro_batch=2)


@cache
def priced() -> frozenset[Case]:
    request = Request(root=gpu_step.ROOT, cluster="cpu")
    return frozenset(one.case for one in cases_to_measure([CASE], 1, request))


@cache
def ran(case: StepCase = CASE) -> Recorder:
    step = PlainTrainer(case, Device(kind="cpu"))
    with Recorder() as noted:
        step.passes()
        step.update()
    return noted


def test_every_product_that_runs_is_priced_and_every_priced_one_runs() -> None:
    products = {(left.shape[0], left.shape[1], right.shape[1]) for left, right, *_ in ran().of("mm")}
    assert products == {(case.m, case.k, case.n) for case in priced() if isinstance(case, GemmCase)}
    # four in each of two layers and the head, forward and both gradients
    assert len(ran().of("mm")) == 3 * (2 * 4 + 1)


def test_attention_is_causal_on_the_heads_that_are_priced() -> None:
    (asked,) = {
        (case.batch, case.heads, case.q_len, case.qk_dim, case.mask)
        for case in priced()
        if isinstance(case, AttentionCase)
    }
    (query, *_), *others = ran().of("_scaled_dot_product_flash_attention_for_cpu")
    assert asked == (*query.shape, "causal")
    assert len(others) == SHAPE.layers - 1
    step = PlainTrainer(CASE, Device(kind="cpu"))
    words = step.words[0].clone()
    with torch.no_grad():
        before = step.model(words)
        words[:, -1] = (words[:, -1] + 1) % SHAPE.vocab
        after = step.model(words)
    assert torch.equal(before[:, :-1], after[:, :-1])  # the last word reaches no other
    assert not torch.equal(before[:, -1], after[:, -1])


@pytest.mark.parametrize(
    ("operation", "kernel", "calls"),
    [
        ("silu", "swiglu_halves_unfused", 1.0),  # one a layer
        ("neg", "rotary_unfused", 4.0),  # of queries and of keys, forward and backward
        ("rsqrt", "rmsnorm_torch", 2.5),  # two a layer and the last
    ],
)
def test_the_passes_of_a_layer_are_those_priced(operation: str, kernel: str, calls: float) -> None:
    assert len(ran().of(operation)) == calls * SHAPE.layers
    assert kernel in {case.kernel for case in priced() if isinstance(case, MemoryBoundCase)}


def test_recomputation_runs_every_layer_once_more_and_nothing_else() -> None:
    again, once = ran(replace(CASE, recompute=True)), ran()
    more = len(again.of("mm")) - len(once.of("mm"))
    assert more in (3 * SHAPE.layers, 4 * SHAPE.layers)  # torch stops early: the last product's result is not kept
    assert len(again.of("silu")) == 2 * SHAPE.layers
    assert len(again.of("_log_softmax")) == 1


def test_both_halves_of_a_layer_are_added_to_what_they_read() -> None:
    layer = PlainTrainer(CASE, Device(kind="cpu")).model.layers[0]
    tokens = torch.randn(2, SHAPE.seq_len, SHAPE.hidden).bfloat16()
    with torch.no_grad():
        for silenced in (layer.out, layer.down):
            silenced.weight.zero_()
        assert torch.equal(layer(tokens), tokens)


def test_gradients_are_clipped_by_the_norm_of_all() -> None:
    assert "norm_reduce" in {case.kernel for case in priced() if isinstance(case, MemoryBoundCase)}
    ((*gradients,),) = ran().of("_foreach_norm")
    assert {one.dtype for one in gradients} == {torch.float32}
    assert len(gradients) == len(PlainTrainer(CASE, Device(kind="cpu")).weights)


def test_the_loss_reads_logits_in_fp32() -> None:
    ((logits, *_),) = ran().of("_log_softmax")
    assert (tuple(logits.shape), logits.dtype) == ((2 * 16, SHAPE.vocab), torch.float32)


def test_kernels_between_the_steps_are_some_that_the_price_hangs_on() -> None:
    assert set(reference_cases(CASE)) <= priced()
