"""What a layer keeps, trains and moves, against published closed forms."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.context import LayerContext
from ops.embedding_and_head import padded_vocab
from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import Axis, BatchedGemm, Comm, Lane, MemoryBound, Op, Phase
from spec.collectives import Collective
from spec.frameworks import framework_preset
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec, NormKind, NormPlace, PositionKind
from spec.parameters import block_parameters, num_parameters
from spec.readers.read_config import read_config
from tests.ops.layouts import job, saved_bytes, written
from tests.solver.questions import ROOT, experts_model, small_model, with_block, with_part
from workload.aicb.data_parallel import block_modules, model_units

HIDDEN, HEADS, SEQ = 1024, 16, 2048


def gpt() -> ModelSpec:
    """The transformer of Korthikanti et al. 2022: LayerNorm, GELU, 4h, 16-bit."""
    attention = AttentionSpec(
        kind=AttentionKind.MHA, num_heads=HEADS, num_kv_heads=HEADS, qk_dim=HIDDEN // HEADS, v_dim=HIDDEN // HEADS
    )
    block = BlockSpec(
        mixer=attention, mlp=MlpSpec(ffn_hidden=4 * HIDDEN, gated=False, activation="gelu"), norm=NormKind.LAYER
    )
    return ModelSpec(
        name="gpt",
        hidden=HIDDEN,
        vocab=51200,
        blocks=(BlockRun(block=block, count=24),),
        norm=NormKind.LAYER,
        position=PositionKind.LEARNED,
        max_positions=SEQ,
        source="arXiv 2205.05198 fig. 2",
    )


@pytest.mark.published
@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("micro_batch", [1, 4])
def test_activation_bytes_are_korthikanti_table_2(tp: int, micro_batch: int) -> None:
    """arXiv 2205.05198 table 2: sbh (10 + 24/t + 5as/(ht)) with tp; sbh/t (34 + 5as/h) with sequence
    parallelism too; sbh (10 + 24/t) and sbh 34/t with selective recomputation."""
    asked = job(seq_len=SEQ, world_size=tp, flash_attention=False, dropout=True)
    layout = Layout.of(tp, tp=tp, micro_batch=micro_batch)
    sbh = SEQ * micro_batch * HIDDEN
    scores = 5 * HEADS * SEQ / HIDDEN
    mtp = written(gpt(), asked, "mtp", layout).blocks[0]
    assert saved_bytes(mtp) == pytest.approx(sbh * (10 + 24 / tp + scores / tp), rel=1e-12)
    fsp = written(gpt(), asked, "fsp", layout).blocks[0]
    assert saved_bytes(fsp) == pytest.approx(sbh / tp * (34 + scores), rel=1e-12)
    selective = written(gpt(), asked, "mtp", layout, "selective").blocks[0]
    assert saved_bytes(selective) == pytest.approx(sbh * (10 + 24 / tp), rel=1e-12)
    full = written(gpt(), asked, "fsp", layout, "full").blocks[0]
    assert saved_bytes(full) == pytest.approx(2 * sbh / tp, rel=1e-12)


def test_msp_keeps_the_gathered_inputs() -> None:
    """InternEvo's msp: the two entering linears keep 2sbh each whole instead of a shard."""
    asked = job(seq_len=SEQ, world_size=4, flash_attention=False, dropout=True)
    layout = Layout.of(4, tp=4)
    msp = saved_bytes(written(gpt(), asked, "msp", layout).blocks[0])
    fsp = saved_bytes(written(gpt(), asked, "fsp", layout).blocks[0])
    assert msp - fsp == pytest.approx(2 * 2 * SEQ * HIDDEN * (1 - 1 / 4))


def over_tp(ops: tuple[Op, ...]) -> Counter[str]:
    return Counter(op.collective.value for op in ops if isinstance(op, Comm) and op.axis is Axis.TP)


@pytest.mark.parametrize(
    ("strategy", "forward", "backward"),
    [
        # arXiv 1909.08053 sec. 3: two all-reduces each way.
        ("mtp", {"all_reduce": 2}, {"all_reduce": 2}),
        # arXiv 2205.05198 sec. 4.2: gathers and scatters instead; fsp gathers twice more.
        ("msp", {"all_gather": 2, "reduce_scatter": 2}, {"all_gather": 2, "reduce_scatter": 2}),
        ("fsp", {"all_gather": 2, "reduce_scatter": 2}, {"all_gather": 4, "reduce_scatter": 2}),
        # arXiv 2309.14509 sec. 3: four all-to-alls a layer each way.
        ("isp", {"all2all": 4}, {"all2all": 4}),
    ],
)
def test_collectives_per_layer(strategy: str, forward: dict[str, int], backward: dict[str, int]) -> None:
    block = written(gpt(), job(world_size=8), strategy, Layout.of(8, tp=8)).blocks[0]
    assert (over_tp(block.forward), over_tp(block.backward)) == (forward, backward)


@pytest.mark.parametrize("strategy", ["mtp", "msp", "fsp", "isp"])
def test_full_recompute_repeats_every_forward_op_with_its_communication(strategy: str) -> None:
    layout = Layout.of(8, tp=4, wp=2 if strategy == "isp" else 1)
    none = written(gpt(), job(world_size=8), strategy, layout).blocks[0]
    full = written(gpt(), job(world_size=8), strategy, layout, "full").blocks[0]
    again = [op for op in full.backward if op.phase is Phase.RECOMPUTE]
    assert [op.name for op in again] == [op.name for op in none.forward]
    assert [type(op) for op in again] == [type(op) for op in none.forward]
    # InternEvo keeps the weights that the repeated forward gathered: isp gathers twice, not three times.
    kept = [op for op in none.backward if isinstance(op, Comm) and op.axis is Axis.WP]
    spared = [op for op in kept if op.collective is Collective.ALL_GATHER]
    assert len(full.backward) == len(none.backward) + len(none.forward) - len(spared)
    assert bool(spared) is (strategy == "isp")


@pytest.mark.parametrize(("name", "whole"), [("megatron", 50432), ("nanotron", 50258), ("picotron", 50258)])
def test_a_vocabulary_is_padded_to_the_framework_s_multiple_in_each_part(name: str, whole: int) -> None:
    """GPT-2's 50,257 words over two ranks: to 2 x 128 by Megatron-LM, to 2 by others."""
    asked = job(world_size=2, preset=framework_preset(name))
    context = LayerContext(model=replace(gpt(), vocab=50257), job=asked, layout=Layout.of(2, tp=2))
    assert padded_vocab(context).tolist() == [whole]


def op_parameters(model: ModelSpec) -> int:
    unpadded = job().preset.changed({"tensor_parallel.vocab_pad_multiple": 1})
    asked = replace(job(world_size=1), preset=unpadded)
    ops = written(model, asked, "mtp", Layout.of(1))
    blocks = sum(
        run.count * sum(int(op.parameters[0]) for op in piece.forward)
        for run, piece in zip(model.blocks, ops.blocks, strict=True)
    )
    edges = sum(int(op.parameters[0]) for op in (*ops.embedding.forward, *ops.head.forward))
    return blocks + edges


@pytest.mark.parametrize(
    "name",
    [
        "7B_internlm2.py",
        "8x7B_mixtral.py",
        "175B_gpt.toml",
        "671B_deepseek_v3.toml",
        "405B_llama3.py",
        "8B_nemotron_h.json",
        "30B_nemotron3_nano.json",
        "80B_qwen3_next.json",
    ],
)
def test_op_list_and_parameter_count_agree(name: str) -> None:
    """Two independent counts, the operations' and spec.parameters', of the same model. Router
    correction biases follow no gradient (arXiv 2412.19437 sec. 2.1.2), so no operation trains them."""
    model = read_config(ROOT / "configs" / name).model
    count = num_parameters(model)
    untrained = sum(
        run.count * run.block.moe.num_experts
        for run in model.blocks
        if run.block.moe is not None and run.block.moe.router_bias
    )
    assert op_parameters(model) == count.total + count.mtp - untrained


def test_numbers_of_an_activation_are_owned() -> None:
    """xIELU learns two in each layer (arXiv 2411.13010 eq. 8)."""
    model = read_config(ROOT / "configs" / "7B_llama2.py").model
    apertus = with_part(model, "mlp", activation="xielu")
    assert op_parameters(apertus) - op_parameters(model) == 2 * model.num_layers
    assert num_parameters(apertus).total - num_parameters(model).total == 2 * model.num_layers
    assert sum(module.elements for unit in model_units(apertus) for module in unit.modules) == op_parameters(apertus)


def test_half_layers_do_what_the_halves_of_a_whole_one_do() -> None:
    """Nemotron-H counts a mixer and a feed-forward network as two layers."""
    model = read_config(ROOT / "configs" / "7B_llama2.py").model
    block = model.blocks[0].block
    halves = (replace(block, mlp=None), replace(block, mixer=None))
    runs = tuple(BlockRun(block=half, count=1) for half in halves)
    asked = job()
    whole = written(model, asked, "fsp", Layout.of(8, tp=4)).blocks[0]
    first, second = written(replace(model, blocks=runs), asked, "fsp", Layout.of(8, tp=4)).blocks
    for of_whole, of_halves in (
        (whole.forward, (*first.forward, *second.forward)),
        (whole.backward, (*second.backward, *first.backward)),
    ):
        assert [op.name for op in of_whole] == [op.name for op in of_halves]
    saved = [saved_bytes(piece) for piece in (whole, first, second)]
    assert saved[0] == saved[1] + saved[2]


def test_a_tied_head_owns_weights_only_on_another_stage() -> None:
    model = replace(gpt(), tied_embeddings=True)
    layout = Layout.of(8, pp=[1, 8])
    logits = next(op for op in written(model, job(), "mtp", layout).head.forward if op.name == "head.logits")
    assert logits.parameters.tolist() == [0, 51200 * HIDDEN]


@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    strategy=st.sampled_from(["mtp", "msp", "fsp", "isp"]),
    micro_batch=st.integers(1, 4),
)
def test_gemm_work_does_not_depend_on_how_it_is_cut(tp: int, strategy: str, micro_batch: int) -> None:
    """FLOPs of all ranks together equal those of one rank alone."""
    model = small_model(kv_heads=8)

    def flops(ranks: int) -> float:
        layout = Layout.of(ranks, tp=ranks, micro_batch=micro_batch)
        piece = written(model, job(world_size=ranks, seq_len=1024), strategy, layout).blocks[0]
        ops = (*piece.forward, *piece.backward)
        return ranks * float(sum(op.flops[0] for op in ops if isinstance(op, BatchedGemm)))

    assert flops(tp) == pytest.approx(flops(1), rel=1e-12)


def test_backward_gemms_have_their_own_shapes() -> None:
    block = written(gpt(), job(world_size=1), "mtp", Layout.of(1)).blocks[0]
    up = {op.phase: op for op in (*block.forward, *block.backward) if op.name == "mlp.up"}
    shape = lambda op: (int(op.m[0]), int(op.k[0]), int(op.n[0]), op.layout)  # noqa: E731
    assert shape(up[Phase.FORWARD]) == (SEQ, HIDDEN, 4 * HIDDEN, "NT")
    assert shape(up[Phase.INPUT_GRAD]) == (SEQ, 4 * HIDDEN, HIDDEN, "NN")
    assert shape(up[Phase.WEIGHT_GRAD]) == (4 * HIDDEN, SEQ, HIDDEN, "TN")


def test_isp_weights_travel_whole_and_are_held_cut() -> None:
    layout = Layout.of(16, tp=2, wp=8)
    block = written(gpt(), job(world_size=16, preset=replace(job().preset)), "isp", layout).blocks[0]
    gathers = [op for op in block.forward if isinstance(op, Comm) and op.axis is Axis.WP]
    assert {op.collective for op in gathers} == {Collective.ALL_GATHER}
    assert {op.lane for op in gathers} == {Lane.PREFETCH}
    # Linear weights of a GPT block: 12 h^2, in bf16; each rank holds an eighth (arXiv 2401.09149 sec. 3).
    assert sum(int(op.size_bytes[0]) for op in gathers) == 2 * 12 * HIDDEN**2
    held = sum(int(op.parameters[0]) for op in block.forward if isinstance(op, BatchedGemm))
    assert held == 12 * HIDDEN**2 // 8


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("kind", ["ring", "all_gather", "all_to_all"])
def test_context_parallel_layers_can_be_recomputed(recompute: str, kind: str) -> None:
    """Every collective that runs beside something finds it in its own pass."""
    asked = job(world_size=4, seq_len=2048, context_parallel=kind)
    block = written(gpt(), asked, "fsp", Layout.of(4, cp=4), recompute).blocks[0]
    for ops in (block.forward, block.backward):
        present = {(op.key, op.phase) for op in ops}
        beside = [op for op in ops if op.lane is Lane.OVERLAP]
        assert all((op.overlaps, op.overlap_phase) in present for op in beside)


def test_a_ring_does_the_work_of_the_whole_sequence() -> None:
    """Causal pairs of a rank: half its own block, then half a block per step: s^2 / (2 cp) in all."""
    asked = job(world_size=4, seq_len=4096)
    block = written(gpt(), asked, "mtp", Layout.of(4, cp=4)).blocks[0]
    own = next(op for op in block.forward if op.name == "attention.core")
    ring = next(op for op in block.forward if op.name == "attention.ring")
    pairs = own.q_len[0] * own.kv_len[0] / 2 + ring.repeat[0] * ring.q_len[0] * ring.kv_len[0]
    assert pairs == 4096**2 / (2 * 4)


def test_mla_gathers_its_latents_and_not_the_hidden_states() -> None:
    """DeepSeek-V3 (arXiv 2412.19437 sec. 4.2): latents of 1536 and 512 + 64 channels."""
    model = read_config(ROOT / "configs" / "671B_deepseek_v3.toml").model
    block = written(model, job(world_size=8, seq_len=4096), "fsp", Layout.of(8, tp=8)).blocks[0]
    entering = {op.name: int(op.size_bytes[0]) for op in block.forward if isinstance(op, Comm) and "enter" in op.name}
    assert entering["attention.q_up.enter"] == 2 * 4096 * 1536
    assert entering["attention.kv_up.enter"] == 2 * 4096 * (512 + 64)


def test_values_that_are_a_view_keep_the_joined_product() -> None:
    """Unrotated queries and keys stay beside the rotated ones: 2 bytes of h + h/2 channels a token (4 of 8 heads are
    keys')."""
    plain = framework_preset("megatron")
    kept = [
        sum(
            float(op.saved_bytes[0])
            for op in written(small_model(), job(preset=one), "mtp", Layout.of(8)).blocks[0].forward
        )
        for one in (plain, plain.changed({"layers.keeps_joined_qkv": True}))
    ]
    assert kept[1] - kept[0] == 2 * 2048 * (512 + 256)
    assert framework_preset("aleph-alpha").layers.keeps_joined_qkv


def test_norms_inside_and_behind_a_second_half() -> None:
    """BitNet's before the last matrix, of the MLP's width (modeling_bitnet.py, ffn_sub_norm); A.X K1's behind all experts
    (modeling_axk1.py, post_mlp_layernorm). Each read and written in 2 bytes, its input kept."""
    dense, routed = small_model(), experts_model()
    for plain, normed, name, width in (
        (dense, with_part(dense, "mlp", inner_norm=1), "mlp.inner_norm", 2048),
        (routed, with_part(routed, "moe", output_norm=True), "moe.output_norm", 512),
    ):
        one, other = (written(model, job(world_size=1), "mtp", Layout.of(1)).blocks[0] for model in (normed, plain))
        (op,) = (op for op in one.forward if op.name == name)
        assert isinstance(op, MemoryBound)
        assert (bytes_moved(op)[0], op.parameters[0]) == (2 * 2 * 2048 * width, width)
        assert saved_bytes(one) - saved_bytes(other) == 2 * 2048 * width
        blocks = [model.blocks[0].block for model in (normed, plain)]
        assert block_parameters(blocks[0], 512) - block_parameters(blocks[1], 512) == width
        elements = [sum(unit.elements for unit in block_modules(block, 512, "")) for block in blocks]
        assert elements[0] - elements[1] == width
        assert normed.rare_parts


def test_norms_behind_the_residual_adds_and_a_scale_by_a_condition() -> None:
    """GPT-1 (modeling_openai.py, Block): as many norms as before the halves, each behind a residual add, and none before the head.
    Voxtral Realtime (ada_rms_norm): 2 r h weights, the second half's input read, written and kept once more."""
    plain = small_model()
    behind = replace(with_block(plain, norm_place=NormPlace.BEHIND), final_norm=False)
    counts = [num_parameters(model).total for model in (plain, behind)]
    assert counts[0] - counts[1] == 512
    ops = written(behind, job(world_size=1), "mtp", Layout.of(1))
    names = [op.name for op in ops.blocks[0].forward]
    for half in ("attention", "mlp"):
        assert names.index(f"{half}.closing_norm") == names.index(f"{half}.residual") + 1
    assert sum(name.endswith("norm") for name in names) == 2
    assert not any(op.name == "head.norm" for op in ops.head.forward)
    scaled = with_block(plain, condition_rank=32)
    one, other = (written(model, job(world_size=1), "mtp", Layout.of(1)).blocks[0] for model in (scaled, plain))
    (op,) = (op for op in one.forward if op.name == "mlp.condition")
    assert isinstance(op, MemoryBound)
    assert (bytes_moved(op)[0], op.parameters[0]) == (2 * 2 * 2048 * 512, 2 * 32 * 512)
    assert saved_bytes(one) - saved_bytes(other) == 2 * 2048 * 512
    for model in (scaled, behind):
        assert sum(each.elements for unit in model_units(model) for each in unit.modules) == num_parameters(model).total
    assert scaled.rare_parts == ("condition_rank",)


def test_norms_are_gated_through_a_few_channels() -> None:
    """A.X K2 (modeling_axk2.py, AXK2GatedRMSNorm): 2 r h weights a norm, whole on every rank; products h -> r -> h of a rank's own
    tokens, then two tensors read and one written. Kept: the gate's two, and r channels before SiLU and behind it."""
    plain = small_model()
    first, both = with_block(plain, first_gate_rank=16), with_block(plain, first_gate_rank=16, second_gate_rank=16)
    for model, count in ((first, 1), (both, 2)):
        for tp in (1, 2):
            one, other = (
                written(each, job(world_size=tp), "mtp", Layout.of(tp, tp=tp)).blocks[0] for each in (model, plain)
            )
            owned = [sum(int(op.parameters[0]) for op in piece.forward) for piece in (one, other)]
            assert owned[0] - owned[1] == count * 2 * 16 * 512
        assert num_parameters(model).total - num_parameters(plain).total == 8 * count * 2 * 16 * 512
        assert sum(each.elements for unit in model_units(model) for each in unit.modules) == num_parameters(model).total
    one, other = (written(model, job(world_size=1), "mtp", Layout.of(1)).blocks[0] for model in (first, plain))
    (gate,) = (op for op in one.forward if op.name == "attention.norm_gate")
    assert isinstance(gate, MemoryBound)
    assert bytes_moved(gate)[0] == 2 * 3 * 2048 * 512
    assert saved_bytes(one) - saved_bytes(other) == 2 * 2048 * (2 * 512 + 2 * 16)
    names = [op.name for op in one.forward]
    assert names.index("attention.norm") < names.index("attention.norm_gate") < names.index("attention.qkv")
