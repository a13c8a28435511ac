"""The attention kernel of packed sequences, and the gate on its output (Qwen3-Next)."""

from dataclasses import replace

import pytest

from ops.cpu_overhead import cpu_overhead
from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import Attention, BatchedGemm, MemoryBound, Pass, Phase
from ops.roles import Role
from spec.frameworks import framework_preset
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.mixers.mixer import mixer_parameters
from spec.model import BlockRun, BlockSpec, ModelSpec, PositionKind
from tests.ops.layouts import job, written
from tests.solver.questions import small_model

SEQ = 2048
HIDDEN, HEADS, KV, HEAD = 1024, 8, 2, 96
PLAIN = AttentionSpec(kind=AttentionKind.GQA, num_heads=HEADS, num_kv_heads=KV, qk_dim=HEAD, v_dim=HEAD)
GATED = replace(PLAIN, output_gate=True)


def cores(layout: Layout, **changes: object) -> list[Attention]:
    asked = job(seq_len=SEQ, world_size=layout.world_size, **changes)
    (block,) = written(small_model(), asked, "mtp", layout).blocks
    return [op for op in (*block.forward, *block.backward) if isinstance(op, Attention)]


@pytest.mark.parametrize("micro_batch", [1, 4])
def test_packed_documents_attend_to_themselves_alone(micro_batch: int) -> None:
    layout = Layout.of(1, micro_batch=micro_batch)
    packed, whole = cores(layout, document_tokens=512), cores(layout)
    assert [(op.batch.tolist(), op.q_len.tolist(), op.kv_len.tolist(), op.mask) for op in packed] == [
        ([4 * micro_batch], [512], [512], "varlen")
    ] * 2
    assert [4.0 * op.flops[0] for op in packed] == [op.flops[0] for op in whole]
    assert [op.saved_bytes.tolist() for op in packed] == [op.saved_bytes.tolist() for op in whole]


def test_a_last_document_may_be_shorter() -> None:
    (forward, _) = cores(Layout.of(1), document_tokens=600)
    assert (forward.batch.tolist(), forward.q_len.tolist()) == ([4], [600])


@pytest.mark.parametrize("tokens", [0, SEQ, 10 * SEQ])
def test_a_document_of_a_whole_sequence_is_one(tokens: int) -> None:
    packed, whole = cores(Layout.of(1), document_tokens=tokens), cores(Layout.of(1))
    assert [(op.mask, op.q_len.tolist()) for op in packed] == [(op.mask, op.q_len.tolist()) for op in whole]


@pytest.mark.parametrize(("chunk", "document", "span"), [(512, 0, 512), (512, 256, 256), (SEQ, 0, SEQ)])
def test_chunks_are_documents_of_their_length(chunk: int, document: int, span: int) -> None:
    """Llama 4's chunked layers; a packed document that is shorter counts."""
    model = small_model()
    chunked = replace(model.blocks[0].block, mixer=replace(model.blocks[0].block.mixer, chunk=chunk))
    model = replace(model, blocks=(BlockRun(block=chunked, count=1),))
    asked = job(seq_len=SEQ, world_size=1, document_tokens=document)
    (block,) = written(model, asked, "mtp", Layout.of(1)).blocks
    seen = {(op.batch[0], op.q_len[0], op.mask) for op in block.forward if isinstance(op, Attention)}
    assert seen == {(SEQ // span, span, "varlen" if span < SEQ else "causal")}


def test_soft_capped_scores_cost_where_they_are_written_out() -> None:
    """A flash kernel caps them in passing; without one three kernels run over the score matrix."""
    model = small_model()
    capped = replace(model.blocks[0].block, mixer=replace(model.blocks[0].block.mixer, softcap=True))
    for flash, added in ((True, 0), (False, 3)):
        asked = job(seq_len=SEQ, world_size=1, flash_attention=flash)
        (plain,) = written(model, asked, "mtp", Layout.of(1)).blocks
        (block,) = written(
            replace(model, blocks=(BlockRun(block=capped, count=4),)), asked, "mtp", Layout.of(1)
        ).blocks
        assert len(block.forward) - len(plain.forward) == added


@pytest.mark.parametrize(("tp", "recompute"), [(1, "none"), (2, "selective")])
def test_biases_of_keys_are_spread_over_the_queries_where_scores_are_written_out(
    tp: int, recompute: str
) -> None:
    """torch.baddbmm adds to an array as large as the scores; the forward alone, and again with the core
    (BLOOM's fork of Megatron-DeepSpeed, transformer.py). A flash kernel adds a slope in passing."""
    model = small_model()
    biased = replace(model.blocks[0].block, mixer=replace(model.blocks[0].block.mixer, alibi=True))
    told = replace(model, blocks=(BlockRun(block=biased, count=4),))

    def spread(flash: bool) -> list[tuple[int, int]]:
        asked = job(seq_len=SEQ, world_size=tp, flash_attention=flash)
        layout = Layout.of(tp, tp=tp)
        (plain,), (block,) = (written(one, asked, "mtp", layout, recompute).blocks for one in (model, told))
        had = [op for op in (*plain.forward, *plain.backward) if isinstance(op, MemoryBound)]
        has = [op for op in (*block.forward, *block.backward) if isinstance(op, MemoryBound)]
        added = [op for op in has if op.name == "attention.alibi"]
        assert len(has) - len(had) == len(added)
        assert all(op.kernel == "spread_unfused" and not op.backward for op in added)
        return [(int(op.rows[0]), int(op.width[0])) for op in added]

    heads = model.blocks[0].block.mixer.num_heads // tp
    assert spread(flash=False) == [(SEQ * heads, SEQ)] * (2 if recompute == "selective" else 1)
    assert spread(flash=True) == []


def test_a_ring_attends_to_all_and_an_exchange_within_documents() -> None:
    layout = Layout.of(2, cp=2)
    assert cores(layout, document_tokens=128)[0].q_len.tolist() == [SEQ // 2]
    exchanged = cores(layout, document_tokens=128, context_parallel="all_to_all")
    assert {op.q_len.tolist()[0] for op in exchanged} == {128}


def test_unfused_scores_are_whole() -> None:
    assert {op.mask for op in cores(Layout.of(1), document_tokens=128, flash_attention=False)} <= {"causal"}


@pytest.mark.parametrize("exchange", ["ring", "all_to_all"])
def test_scores_stand_beside_what_flash_keeps_but_its_statistics(exchange: str) -> None:
    """Per head and row 2 bytes of each of SEQ scores, against 4; queries, keys, values and, where they are
    exchanged, the output alike.
    """
    layout = Layout.of(2, cp=2)
    flash, written_out = (
        sum(op.saved_bytes[0] for op in cores(layout, context_parallel=exchange, flash_attention=kernel))
        for kernel in (True, False)
    )
    rows = SEQ if exchange == "all_to_all" else SEQ // 2
    heads = HEADS // 2 if exchange == "all_to_all" else HEADS
    assert written_out - flash == rows * heads * (2 * SEQ - 4)


def layer(attention: AttentionSpec, tp: int = 1) -> Pass:
    run = BlockRun(block=BlockSpec(mixer=attention), count=2)
    model = ModelSpec(name="gated", hidden=HIDDEN, vocab=4096, blocks=(run,), source="made for tests")
    return written(model, job(seq_len=SEQ, world_size=tp), "mtp", Layout.of(tp, tp=tp)).blocks[0]


def saved(piece: Pass) -> float:
    return float(sum(op.saved_bytes[0] for op in piece.forward))


def test_queries_bring_a_gate_for_each_channel_of_the_output() -> None:
    assert mixer_parameters(GATED, HIDDEN) - mixer_parameters(PLAIN, HIDDEN) == HIDDEN * HEADS * HEAD
    (wide,) = (op for op in layer(GATED, tp=2).forward if op.name == "attention.qkv")
    assert isinstance(wide, BatchedGemm)
    assert wide.n[0] == (2 * HEADS + 2 * KV) * HEAD // 2


def test_the_gate_reads_two_tensors_and_keeps_them() -> None:
    gated = layer(GATED)
    forward, backward = (
        next(op for op in ops if isinstance(op, MemoryBound) and op.name == "attention.output_gate")
        for ops in (gated.forward, gated.backward)
    )
    a_tensor = 2 * SEQ * HEADS * HEAD
    assert (bytes_moved(forward)[0], bytes_moved(backward)[0]) == (3 * a_tensor, 5 * a_tensor)
    assert saved(gated) - saved(layer(PLAIN)) == 2 * a_tensor
    order = [op.name for op in gated.forward]
    assert order.index("attention.output_gate") + 1 == order.index("attention.out")


def test_a_host_that_reads_positions_waits_before_each_rotation() -> None:
    """Forward and run again, never backward; in plain modules 4 calls for the rotation and 4 for what is read back."""
    model = replace(small_model(), position=PositionKind.ROTARY)
    for name, waits in (("internevo", True), ("megatron", False)):
        asked = job(seq_len=SEQ, preset=framework_preset(name))
        (block,) = written(model, asked, "mtp", Layout.of(1), "full").blocks
        rotations = [op for op in (*block.forward, *block.backward) if op.role is Role.ROTARY]
        assert [(op.phase, op.synchronises) for op in rotations] == [
            (Phase.FORWARD, waits),
            (Phase.RECOMPUTE, waits),
            (Phase.INPUT_GRAD, False),
        ]
        assert not waits or [float(cpu_overhead(op, asked).calls[0]) for op in rotations] == [8, 8, 4]
