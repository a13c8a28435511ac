"""The attention kernel of packed sequences, and the gate on its output (Qwen3-Next)."""

from dataclasses import replace

import numpy as np
import pytest

from ops.cpu_overhead import cpu_overhead
from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.mixers.registry import MIXERS
from ops.mixers.registry import MIXERS as OPERATIONS
from ops.op import Attention, BatchedGemm, MemoryBound, Op, Pass, Phase
from ops.roles import Module, OpKey, Role
from spec.frameworks import framework_preset
from spec.job import JobSpec
from spec.mixers.attention import AttentionKind, AttentionSpec, QkNormWeights
from spec.mixers.mixer import mixer_parameters
from spec.mixers.registry import MIXERS as KINDS
from spec.model import PositionKind
from spec.readers.read_config import read_config
from tests.ops.layouts import job, saved_bytes, written
from tests.solver.questions import ROOT, small_model, with_block, with_part

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
    chunked = with_part(small_model(), "mixer", chunk=chunk)
    asked = job(seq_len=SEQ, world_size=1, document_tokens=document)
    (block,) = written(chunked, asked, "mtp", Layout.of(1)).blocks
    seen = {(op.batch[0], op.q_len[0], op.mask) for op in block.forward if isinstance(op, Attention)}
    assert seen == {(SEQ // span, span, "varlen" if span < SEQ else "causal")}


def test_soft_capped_scores_cost_where_they_are_written_out() -> None:
    """A flash kernel caps them in passing; without one three kernels run over the score matrix."""
    models = (small_model(), with_part(small_model(), "mixer", softcap=True))
    for flash, added in ((True, 0), (False, 3)):
        asked = job(seq_len=SEQ, world_size=1, flash_attention=flash)
        (plain,), (block,) = (written(model, asked, "mtp", Layout.of(1)).blocks for model in models)
        assert len(block.forward) - len(plain.forward) == added


@pytest.mark.parametrize(("tp", "recompute"), [(1, "none"), (2, "selective")])
def test_biases_of_keys_are_spread_over_the_queries_where_scores_are_written_out(tp: int, recompute: str) -> None:
    """torch.baddbmm adds to an array as large as the scores; the forward alone, and again with the core
    (BLOOM's fork of Megatron-DeepSpeed, transformer.py). A flash kernel adds a slope in passing."""
    model, told = small_model(), with_part(small_model(), "mixer", alibi=True)

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
    model = with_block(small_model(hidden=HIDDEN), mixer=attention, mlp=None)
    return written(model, job(seq_len=SEQ, world_size=tp), "mtp", Layout.of(tp, tp=tp)).blocks[0]


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
    assert saved_bytes(gated) - saved_bytes(layer(PLAIN)) == 2 * a_tensor
    order = [op.name for op in gated.forward]
    assert order.index("attention.output_gate") + 1 == order.index("attention.out")


def test_a_gate_of_each_head_is_one_more_channel_of_it() -> None:
    """Step 3.5 (transformers modeling_step3p5.py, g_proj): hidden x heads weights; outputs are read, scaled and written."""
    gated, plain = replace(PLAIN, head_gate=True), layer(PLAIN)
    assert mixer_parameters(gated, HIDDEN) - mixer_parameters(PLAIN, HIDDEN) == HIDDEN * HEADS
    (qkv,) = (op for op in layer(gated, tp=2).forward if op.name == "attention.qkv")
    assert isinstance(qkv, BatchedGemm)
    assert qkv.n[0] == ((HEADS + 2 * KV) * HEAD + HEADS) // 2
    (gate,) = (op for op in layer(gated).forward if op.name == "attention.output_gate")
    assert isinstance(gate, MemoryBound)
    assert bytes_moved(gate)[0] == 2 * 2 * SEQ * HEADS * HEAD
    assert saved_bytes(layer(gated)) - saved_bytes(plain) == 2 * SEQ * HEADS * (HEAD + 1)


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


# Widths of what stands before an attention core, by published models.


SHORT = 1024


def gated_layer(config: str, tp: int) -> Pass:
    model = read_config(ROOT / "configs" / config).model
    return written(model, job(seq_len=SHORT), "mtp", Layout.of(8, tp=tp)).blocks[0]


@pytest.mark.published
@pytest.mark.parametrize("tp", [1, 2, 8])
def test_latent_attention_of_deepseek_v3(tp: int) -> None:
    """arXiv 2412.19437 sec. 4.2: hidden 7168, 128 heads of 128 + 64 and 128, latents of 1536 and 512 + 64; the down
    projections are whole on every rank, the up projections cut over heads."""
    found = {
        op.name.removeprefix("attention."): (int(op.m[0]), int(op.k[0]), int(op.n[0]))
        for op in gated_layer("671B_deepseek_v3.toml", tp).forward
        if isinstance(op, BatchedGemm) and op.name.startswith("attention.")
    }
    heads = 128 // tp
    assert found == {
        "q_down": (SHORT, 7168, 1536),
        "q_up": (SHORT, 1536, heads * 192),
        "kv_down": (SHORT, 7168, 576),
        "kv_up": (SHORT, 512, heads * (128 + 128)),
        "out": (SHORT, heads * 128, 7168),
    }


@pytest.mark.parametrize("tp", [1, 4])
def test_norms_and_rotations_take_queries_and_keys_alone(tp: int) -> None:
    """Qwen3-8B (its config.json): 32 heads of 128, 8 of keys and of values; read and written in 2 bytes. Of
    DeepSeek-V3 64 channels of each head and of the one key that all share are rotated."""
    found = {
        op.name: float(bytes_moved(op)[0])
        for op in gated_layer("8B_qwen3.json", tp).forward
        if isinstance(op, MemoryBound)
    }
    both = 2 * 2 * SHORT * (32 + 8) // tp * 128
    assert found["attention.rotary"] == both
    assert found["attention.qk_norm"] == pytest.approx(both, rel=1e-3)
    (rotated,) = [op for op in gated_layer("671B_deepseek_v3.toml", tp).forward if op.name == "attention.rotary"]
    assert isinstance(rotated, MemoryBound)
    assert (rotated.rows * rotated.width).tolist() == [SHORT * (128 // tp + 1) * 64]


# What becomes of the joined product of queries, keys and values around a flash kernel.


TOKENS, COPIED, DIM = 256, 8, 64
MEGATRON = job(seq_len=TOKENS, preset=framework_preset("megatron"))


def copied(asked: JobSpec, kv_heads: int, tp: int = 1, position: PositionKind = PositionKind.ROTARY) -> list[float]:
    """Channels of a token that are copied forward and backward."""
    model = replace(small_model(kv_heads=kv_heads), position=position, max_positions=TOKENS)
    piece = written(model, asked, "fsp" if tp > 1 else "mtp", Layout.of(8, tp=tp), "none").blocks[0]

    def channels(ops: tuple[Op, ...], kernel: str) -> float:
        found = [op for op in ops if isinstance(op, MemoryBound) and op.role is Role.COPY]
        assert {op.kernel for op in found} <= {kernel}
        return sum(float(op.rows[0] * op.width[0]) for op in found) / TOKENS

    return [channels(piece.forward, "strided_copy"), channels(piece.backward, "copy")]


@pytest.mark.parametrize(
    ("kv_heads", "tp", "heads"),
    [(8, 1, (8, 24)), (2, 1, (8 + 2, 12)), (1, 1, (1, 10)), (2, 2, (1, 6)), (4, 2, (4 + 2, 8))],
)
def test_megatron_makes_tensors_of_views_and_one_of_their_gradients(
    kv_heads: int, tp: int, heads: tuple[int, int]
) -> None:
    """Queries are copied where a rank has several groups of them, values always, gradients of all three."""
    assert copied(MEGATRON, kv_heads, tp) == [DIM * count for count in heads]


def test_views_stay_views_without_rotation_and_in_other_frameworks() -> None:
    assert copied(MEGATRON, 2, position=PositionKind.LEARNED) == [0, 0]
    assert copied(replace(MEGATRON, preset=framework_preset("fsdp")), 2) == [0, 0]


def repeated(framework: str, kv_heads: int, tp: int = 1, **settings: object) -> tuple[list[tuple[str, float]], float]:
    """Kernels of the repeated heads with the bytes a token that they move, and bytes a token that the
    attention keeps.
    """
    asked = replace(job(seq_len=TOKENS, preset=framework_preset(framework)), **settings)
    piece = written(
        small_model(kv_heads=kv_heads), asked, "fsp" if tp > 1 else "mtp", Layout.of(8, tp=tp), "none"
    ).blocks[0]
    kernels = [
        (op.kernel, float((bytes_moved(op) + np.zeros(1))[0]) / TOKENS)
        for op in (*piece.forward, *piece.backward)
        if isinstance(op, MemoryBound) and op.name == "attention.repeated_heads"
    ]
    (core,) = [op for op in piece.forward if isinstance(op, Attention)]
    return kernels, float(core.input_bytes[0]) / TOKENS


@pytest.mark.parametrize(("kv_heads", "tp"), [(2, 1), (1, 1), (4, 2)])
def test_repeated_heads_are_read_once_written_often_and_kept(kv_heads: int, tp: int) -> None:
    """Keys and values: read of n_kv heads, written to n, 2 bytes a channel each; backward the other way round."""
    heads, keys = COPIED // tp, kv_heads // tp
    moved = 2 * (heads + keys) * 2 * DIM
    assert repeated("fsdp-compiled", kv_heads, tp) == ([("copy", moved), ("copy", moved)], 2 * 3 * heads * DIM)


def test_eager_code_repeats_heads_by_the_kernel_for_strides() -> None:
    """Which is bound by what it writes: n heads of keys and of values."""
    preset = replace(framework_preset("fsdp"), layers=replace(framework_preset("fsdp").layers, repeats_keys=True))
    kernels, _ = repeated("fsdp", 2, preset=preset)
    assert kernels == [("strided_copy", 2 * 2 * COPIED * 2 * DIM), ("copy", 2 * (COPIED + 2) * 2 * DIM)]


def test_nothing_is_repeated_where_heads_are_as_many_or_the_kernel_takes_groups() -> None:
    assert repeated("fsdp-compiled", COPIED) == ([], 2 * 3 * COPIED * DIM)
    assert repeated("torchtitan", 2) == ([], 2 * (COPIED + 2 * 2) * DIM)
    assert repeated("fsdp-compiled", 2, flash_attention=False)[0] == []


def test_a_rank_of_one_key_and_one_query_head_repeats_none() -> None:
    """8 heads of 4 pairs of keys on 8 ranks: each has one query head and a copy of its keys."""
    kernels, kept = repeated("fsdp-compiled", 4, tp=8)
    assert sum(moved for _, moved in kernels) == 0.0
    assert kept == 2 * 3 * DIM


# Attention sinks: a kernel and parameters beside a flash kernel, passes over the scores without one.


SINK_TOKENS = 512
MODEL = small_model()
WITHOUT_SINKS = MODEL.blocks[0].block.mixer
SUNK = replace(WITHOUT_SINKS, sinks=True)


def layer_with_sinks(*, sinks: bool, tp: int = 1, flash: bool = True) -> Pass:
    asked = job(seq_len=SINK_TOKENS, world_size=tp, flash_attention=flash)
    return written(with_part(MODEL, "mixer", sinks=sinks), asked, "mtp", Layout.of(tp, tp=tp)).blocks[0]


def added(plain: Pass, sunk: Pass) -> list[MemoryBound]:
    """Kernels of ``sunk`` that ``plain`` has not, by name."""
    had = {op.name for op in (*plain.forward, *plain.backward)}
    ops = (*sunk.forward, *sunk.backward)
    return [op for op in ops if isinstance(op, MemoryBound) and op.name not in had]


@pytest.mark.parametrize("tp", [1, 2])
def test_a_flash_kernel_leaves_the_sinks_gradient_to_one_more(tp: int) -> None:
    """cuDNN's dsink sums over two fp32 numbers of every row and head; the forward's kernels are the same."""
    plain, sunk = layer_with_sinks(sinks=False, tp=tp), layer_with_sinks(sinks=True, tp=tp)
    (gradient,) = added(plain, sunk)
    assert (gradient.phase, gradient.served) == (Phase.INPUT_GRAD, OpKey(Module.ATTENTION, Role.CORE))
    heads = WITHOUT_SINKS.num_heads // tp
    assert float(bytes_moved(gradient)[0]) == 2 * 4 * SINK_TOKENS * heads
    assert len(sunk.forward) == len(plain.forward)
    owned = [sum(int(op.parameters[0]) for op in one.forward) for one in (plain, sunk)]
    assert owned[1] - owned[0] == heads
    assert saved_bytes(sunk) == saved_bytes(plain)


def test_operations_train_as_many_sinks_as_the_model_has() -> None:
    hidden = MODEL.hidden
    assert mixer_parameters(SUNK, hidden) - mixer_parameters(WITHOUT_SINKS, hidden) == WITHOUT_SINKS.num_heads


def test_without_a_flash_kernel_sinks_are_put_beside_the_scores() -> None:
    """Megatron-Core SoftmaxOne: scores copied beside a column, back again backward, and PyTorch's softmax, which keeps
    itself in fp32 beside what the product reads."""
    plain, sunk = (layer_with_sinks(sinks=sinks, flash=False) for sinks in (False, True))
    scores = SINK_TOKENS * WITHOUT_SINKS.num_heads * SINK_TOKENS
    copies = [op for op in added(plain, sunk) if op.role is Role.SOFTMAX and op.kernel == "copy"]
    assert [float(bytes_moved(op)[0]) for op in copies] == [2 * 2 * scores] * 2
    kernels = [{op.kernel for op in one.forward if op.role is Role.SOFTMAX} for one in (plain, sunk)]
    assert kernels == [{"masked_softmax"}, {"copy", "masked_softmax_unfused"}]
    kept = [
        float(np.sum([op.saved_bytes[0] for op in one.forward if isinstance(op, Attention)])) for one in (plain, sunk)
    ]
    assert kept[1] - kept[0] == 4 * scores


def test_all_to_all_alone_cuts_sequences_of_layers_with_sinks() -> None:
    """Transformer Engine get_attention_backend: under context parallelism sinks need cp_comm_type a2a."""
    row = MIXERS[type(WITHOUT_SINKS)]
    ways = ("ring", "all_gather", "all_to_all")
    assert [row.cuts_sequences(SUNK, way) for way in ways] == [False, False, True]
    assert [row.cuts_sequences(WITHOUT_SINKS, way) for way in ways] == [True, True, True]


# Both sides of the table of mixers know the same kinds, each under one name.


def test_every_kind_says_what_it_is_and_what_it_runs() -> None:
    assert set(KINDS.values()) == set(OPERATIONS)
    assert all(kind.name == name for name, kind in KINDS.items())


@pytest.mark.parametrize(
    ("changes", "parameters", "passes"),
    [
        ({"gate_bias": True}, HEADS, 0),
        ({"value_norm": True}, 0, 2 * KV * HEAD),
        ({"keys_as_values": True}, -HIDDEN * KV * HEAD, 0),
        ({"inner_norm": 1}, HEADS * HEAD, 2 * HEADS * HEAD),
    ],
)
def test_parts_of_few_models(changes: dict[str, bool], parameters: int, passes: int) -> None:
    """Weights by hand, whole and on a rank of two; a norm reads and writes each channel in 2 bytes. transformers
    modeling_beam.py, BeamAttention; modeling_gemma4.py, Gemma4TextAttention; modeling_bitnet.py, attn_sub_norm."""
    base = replace(GATED, qk_norm=True)
    changed = replace(base, **changes)
    assert mixer_parameters(changed, HIDDEN) - mixer_parameters(base, HIDDEN) == parameters
    for tp in (1, 2):
        one, other = layer(changed, tp=tp), layer(base, tp=tp)
        owned = [sum(int(op.parameters[0]) for op in piece.forward) for piece in (one, other)]
        assert owned[0] - owned[1] == parameters // tp
        moved = [
            sum(float(bytes_moved(op)[0]) for op in piece.forward if isinstance(op, MemoryBound))
            for piece in (one, other)
        ]
        assert moved[0] - moved[1] == 2 * SEQ * passes // tp
    assert with_block(small_model(), mixer=changed).rare_parts == tuple(changes)


def test_values_that_are_keys_have_no_columns_of_their_own() -> None:
    same, plain = (
        next(op for op in layer(mixer).forward if op.name == "attention.qkv")
        for mixer in (replace(PLAIN, keys_as_values=True), PLAIN)
    )
    assert plain.n[0] - same.n[0] == KV * HEAD


LATENT = AttentionSpec(
    kind=AttentionKind.MLA, num_heads=HEADS, num_kv_heads=HEADS, qk_dim=192, v_dim=128, rope_dim=64, kv_lora_rank=512
)


def test_latent_attention_has_gates_and_a_norm_of_its_rotated_key() -> None:
    """transformers modeling_dots3_note.py, Dots3NoteTextAttention: g_proj gives a number a head, of the hidden states;
    k_rope_only_layernorm has a weight for each rotated channel."""
    special = replace(LATENT, head_gate=True, rope_key_norm=True)
    assert mixer_parameters(special, HIDDEN) - mixer_parameters(LATENT, HIDDEN) == HIDDEN * HEADS + 64
    for tp in (1, 2):
        one, other = layer(special, tp=tp), layer(LATENT, tp=tp)
        owned = [sum(int(op.parameters[0]) for op in piece.forward) for piece in (one, other)]
        assert owned[0] - owned[1] == HIDDEN * HEADS // tp + 64
    ops = {op.name: op for op in layer(special).forward}
    gate, normed = ops["attention.gate"], ops["attention.rope_key_norm"]
    assert isinstance(gate, BatchedGemm)
    assert (gate.m[0], gate.k[0], gate.n[0]) == (SEQ, HIDDEN, HEADS)
    assert isinstance(normed, MemoryBound)
    assert bytes_moved(normed)[0] == 2 * 2 * SEQ * 64
    assert saved_bytes(layer(special)) - saved_bytes(layer(LATENT)) == 2 * SEQ * (64 + HEADS * (128 + 1))


def test_latent_attention_without_positions_rotates_nothing() -> None:
    rotated = {
        position: any(
            op.role is Role.ROTARY
            for op in written(
                replace(with_block(small_model(hidden=HIDDEN), mixer=LATENT), position=position),
                job(seq_len=SEQ, world_size=1),
                "mtp",
                Layout.of(1),
            )
            .blocks[0]
            .forward
        )
        for position in (PositionKind.ROTARY, PositionKind.NONE)
    }
    assert rotated == {PositionKind.ROTARY: True, PositionKind.NONE: False}


def test_norms_of_queries_and_keys_may_have_weights_and_biases_of_every_head() -> None:
    """transformers modeling_chameleon.py, ChameleonLayerNorm: both of every channel of every head; LayerNorm's kernel, whose
    backward reads its inputs twice more than RMSNorm's does."""
    both = replace(PLAIN, qk_norm=True, qk_norm_weights=QkNormWeights.ALL_HEADS_WITH_BIAS)
    assert mixer_parameters(both, HIDDEN) - mixer_parameters(PLAIN, HIDDEN) == 2 * (HEADS + KV) * HEAD
    (normed,) = (op for op in layer(both).backward if op.name == "attention.qk_norm")
    assert isinstance(normed, MemoryBound)
    assert bytes_moved(normed)[0] == 2 * 5 * SEQ * (HEADS + KV) * HEAD


def test_differential_attention_calls_its_kernel_twice() -> None:
    """transformers modeling_diffllama.py: each call over all heads and half of the values, repeated for all keys; both outputs
    copied into one tensor, the difference of two halves, a norm of pairs of heads; four vectors of a head's width."""
    plain, twice = replace(PLAIN, qk_norm=False), replace(PLAIN, differential=True)
    assert mixer_parameters(twice, HIDDEN) - mixer_parameters(plain, HIDDEN) == 4 * HEAD
    one, other = layer(twice), layer(plain)
    for each, single in ((one.forward, other.forward), (one.backward, other.backward)):
        flops = [sum(float(op.flops[0]) for op in ops if isinstance(op, Attention)) for ops in (each, single)]
        assert flops[0] == 2 * flops[1]
    moved = {op.name: float(bytes_moved(op)[0]) for op in one.forward if isinstance(op, MemoryBound)}
    a_tensor = 2 * SEQ * HEADS * HEAD
    assert moved["attention.join_calls"] == 4 * a_tensor
    assert moved["attention.difference"] == 3 * a_tensor
    assert moved["attention.pair_norm"] == 2 * a_tensor
    more = 2 * a_tensor + 2 * SEQ * KV * HEAD + 4 * SEQ * HEADS
    assert saved_bytes(one) - saved_bytes(other) == more
    assert (
        sum(int(op.parameters[0]) for op in one.forward) - sum(int(op.parameters[0]) for op in other.forward)
        == 4 * HEAD
    )


@pytest.mark.parametrize("tp", [1, 2])
def test_gates_of_channels_may_come_with_the_queries_from_their_latent(tp: int) -> None:
    """transformers modeling_axk2.py, q_gate_proj: of the latent normed and not, side by side, to each head's query and gate."""
    plain = AttentionSpec(
        kind=AttentionKind.MLA,
        num_heads=HEADS,
        num_kv_heads=HEADS,
        qk_dim=96,
        v_dim=64,
        rope_dim=32,
        q_lora_rank=384,
        kv_lora_rank=128,
    )
    gated = replace(plain, output_gate=True, latent_gates=True)
    more = 2 * 384 * HEADS * (96 + 64) - 384 * HEADS * 96
    assert mixer_parameters(gated, HIDDEN) - mixer_parameters(plain, HIDDEN) == more
    one, other = layer(gated, tp=tp), layer(plain, tp=tp)
    owned = [sum(int(op.parameters[0]) for op in piece.forward) for piece in (one, other)]
    assert owned[0] - owned[1] == more // tp
    (product,) = (op for op in one.forward if op.name == "attention.q_up")
    assert isinstance(product, BatchedGemm)
    assert (product.k[0], product.n[0]) == (2 * 384, HEADS * (96 + 64) // tp)
    assert not any(op.name == "attention.gate" for op in one.forward)


def test_a_layernorm_inside_has_biases() -> None:
    """Kosmos-2 (modeling_kosmos2.py, inner_attn_ln): two vectors."""
    both = replace(PLAIN, inner_norm=2)
    assert mixer_parameters(both, HIDDEN) - mixer_parameters(PLAIN, HIDDEN) == 2 * HEADS * HEAD
    owned = [sum(int(op.parameters[0]) for op in layer(each).forward) for each in (both, PLAIN)]
    assert owned[0] - owned[1] == 2 * HEADS * HEAD
