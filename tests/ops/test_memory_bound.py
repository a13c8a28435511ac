"""Memory-bound kernels of a layer as frameworks write it: old attention, two entering linears, wide norms."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import Comm, MemoryBound, Op, Pass, Phase
from ops.roles import Module, OpKey, Role
from profdb.modelled.memory_bound import memory_bound_seconds
from spec.cluster.reader import read_cluster
from spec.collectives import Collective
from spec.frameworks import framework_preset
from spec.job import JobSpec
from spec.model import ModelSpec, NormKind, NormPlace
from spec.parameters import num_parameters
from spec.readers.read_config import read_config
from tests.ops.layouts import MEGATRON, job, saved_bytes, written
from tests.ops.test_block import op_parameters
from tests.solver.questions import ROOT, small_model, with_block, with_part

LLAMA = read_config(ROOT / "configs" / "7B_llama2.py").model
APART = framework_preset("megatron").changed({"layers.joined_gate": False})


def kernels(asked: JobSpec, recompute: str = "none", modules: tuple[str, ...] = ()) -> dict[str, float]:
    """Bytes moved by every memory-bound kernel of a layer, by name and phase."""
    layout = Layout.of(8, tp=2, micro_batch=2)
    layer = written(LLAMA, asked, "mtp", layout, recompute, modules).blocks[0]
    found: dict[str, float] = {}
    for op in (*layer.forward, *layer.backward):
        if isinstance(op, MemoryBound):
            key = f"{op.name} {op.phase.value}"
            found[key] = found.get(key, 0.0) + float(np.max(bytes_moved(op)))
    return found


def test_attention_without_flash_copies_its_output_and_joins_three_gradients() -> None:
    """Two sequences of 2048 tokens, 4096 / 2 channels of 2 bytes: read and written once each."""
    tokens, width = 2 * 2048, 4096 // 2
    old = kernels(job(flash_attention=False))
    assert old["attention.join_heads forward"] == 2 * 2.0 * tokens * width
    assert "attention.join_heads input_grad" not in old
    assert old["attention.qkv.join input_grad"] == 2 * 2.0 * tokens * 3 * width
    assert not [name for name in kernels(job(flash_attention=True)) if "join" in name]


def test_the_copy_is_part_of_the_core_that_runs_again() -> None:
    again = kernels(job(flash_attention=False), "selective")
    assert "attention.join_heads recompute" in again
    assert "attention.qkv.add_bias recompute" not in again


@pytest.mark.parametrize(("parts", "bytes_each"), [((), 2.0), (("softmax",), 6.0)])
def test_an_unfused_softmax_keeps_its_fp32_output(parts: tuple[str, ...], bytes_each: float) -> None:
    fused, other = (
        written(LLAMA, job(flash_attention=False, unfused=frozenset(names)), "mtp", Layout.of(8, tp=2)).blocks[0]
        for names in ((), parts)
    )
    scores = 2048 * 2048 * 16
    assert saved_bytes(other) - saved_bytes(fused) == pytest.approx((bytes_each - 2.0) * scores)


def reductions(asked: JobSpec, strategy: str) -> list[Op]:
    layer = written(LLAMA, asked, strategy, Layout.of(8, tp=2)).blocks[0]
    kinds = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER)
    return [
        op for op in layer.backward if isinstance(op, Comm) and op.collective in kinds and op.name.startswith("mlp.")
    ]


@pytest.mark.parametrize(("strategy", "count"), [("mtp", 2), ("msp", 1), ("fsp", 2)])
def test_two_entering_linears_reduce_their_gradients(strategy: str, count: int) -> None:
    assert len(reductions(job(preset=APART), strategy)) == count
    assert len(reductions(job(), strategy)) == 1


def test_gradients_of_two_entering_linears_are_added() -> None:
    names = kernels(job(preset=APART))
    assert names["mlp.up.add_gradients input_grad"] == 3 * 2.0 * 2 * 2048 * 4096
    assert not [name for name in kernels(job()) if "add_gradients" in name]


def test_a_bias_of_the_projection_is_a_kernel_of_its_own() -> None:
    model = with_part(small_model(), "mixer", qkv_bias=True)
    layer = written(model, job(flash_attention=False), "mtp", Layout.of(1)).blocks[0]
    added = [op for op in layer.forward if op.name == "attention.qkv.add_bias"]
    assert [op.phase for op in added] == [Phase.FORWARD]


def test_wide_norms_cast_their_input_and_keep_it_in_fp32() -> None:
    """An fp32 copy is read and written by the norm: 6 bytes for the copy and 8 for the norm, not 4."""
    plain, wide = kernels(job()), kernels(job(fp32_norms=True))
    elements = 2 * 2048 * 4096
    assert plain["mlp.norm forward"] == 4.0 * elements
    assert wide["mlp.norm.cast forward"] == wide["mlp.norm.cast input_grad"] == 6.0 * elements
    assert wide["mlp.norm forward"] == 8.0 * elements
    layer = written(LLAMA, job(fp32_norms=True), "mtp", Layout.of(8)).blocks[0]
    kept = [float(op.saved_bytes[0]) for op in layer.forward if op.name == "mlp.norm"]
    assert kept == [4.0 * 2048 * 4096]


def test_internevo_repeats_adds_and_norms_of_layers_it_keeps() -> None:
    told = kernels(job(fp32_norms=True), modules=("dropout_norm",))
    again = [name for name in told if name.endswith("recompute")]
    parts = ("attention.norm.cast", "attention.norm", "attention.residual", "mlp.norm.cast", "mlp.norm")
    assert again == [f"{part} recompute" for part in parts]


APEX = MEGATRON.changed({"layers.norm_kernel": "apex"})


@pytest.mark.parametrize("norm", [NormKind.RMS, NormKind.LAYER])
def test_apex_norms_move_three_tensors_forward_and_seven_backward(norm: NormKind) -> None:
    """layer_norm_cuda_kernel.cu: a row read twice and written, then input and gradient read three times, one
    written.
    """
    layer = written(replace(LLAMA, norm=norm), job(preset=APEX), "mtp", Layout.of(8)).blocks[0]

    def moved(ops: tuple[Op, ...]) -> float:
        norms = [op for op in ops if op.served == OpKey(Module.MLP, Role.NORM)]
        return float(np.sum([np.max(bytes_moved(op)) for op in norms if isinstance(op, MemoryBound)]))

    tensor = 2.0 * 2048 * 4096
    assert (moved(layer.forward), moved(layer.backward)) == (3 * tensor, 7 * tensor)


def test_apex_norms_take_what_was_measured() -> None:
    """apex pull request 1037 (GA100 of 40 GB; 32 x 512 rows of 1,024 in fp16): 75.1 us forward, 176.2 us backward."""
    gpu = read_cluster("a100-sxm-40g", root=ROOT).gpu
    model = replace(LLAMA, hidden=1024, norm=NormKind.LAYER)
    layer = written(model, job(preset=APEX, seq_len=512), "mtp", Layout.of(8, micro_batch=32)).blocks[0]

    def seconds(ops: tuple[Op, ...], direction: str) -> float:
        norms = [op for op in ops if op.served == OpKey(Module.MLP, Role.NORM)]
        return sum(
            op.repeat * float(memory_bound_seconds(gpu, op.kernel, direction, op.rows * op.width, "fp16")[0])
            for op in norms
            if isinstance(op, MemoryBound)
        )

    assert seconds(layer.forward, "forward") == pytest.approx(75.1e-6, rel=0.08)
    assert seconds(layer.backward, "backward") == pytest.approx(176.2e-6, rel=0.08)


def test_apex_norms_keep_no_more_than_others() -> None:
    apex, megatron = (written(LLAMA, job(preset=one), "mtp", Layout.of(8)).blocks[0] for one in (APEX, MEGATRON))
    assert saved_bytes(apex) == saved_bytes(megatron)


# Where a block's norms stand: what they own, keep and make again.


COUNTS = Path(__file__).parents[1] / "spec" / "readers" / "huggingface" / "counts.json"
ROWS: dict[str, dict[str, Any]] = {row["name"]: row for row in json.loads(COUNTS.read_text())["counts"]}
FAMILIES = (
    "gemma2, class defaults",
    "gemma3_text, class defaults",
    "glm4, class defaults",
    "olmo2, class defaults",
    "exaone4, class defaults",
    "Command R+",
    "llama4_text, class defaults",
    "phi, class defaults",
    "bloom, class defaults",
    "opt, class defaults",
    "Falcon 2 11B",
    "StableLM 2 12B",
    "granitemoehybrid, class defaults",
    "gemma4_text, class defaults",
    "bitnet, class defaults",
    "LFM2 1.2B",
    "lfm3, class defaults",
    "falcon_h1, class defaults",
    "minimax, class defaults",
    "diffllama, class defaults",
    "openai-gpt, class defaults",
    "chameleon, class defaults",
    "molmo2, class defaults",
    "voxtral_realtime, class defaults",
    "kosmos-2, class defaults",
    "kosmos-2.5, class defaults",
    "recurrent_gemma, class defaults",
    "mistral_large4, class defaults",
)
TOKENS, HIDDEN = 2048, 1024
NORMS = {NormPlace.BEFORE: 2, NormPlace.AFTER: 2, NormPlace.AROUND: 4, NormPlace.SHARED: 1, NormPlace.BEHIND: 2}


@pytest.mark.parametrize("name", FAMILIES)
def test_operations_own_the_parameters_of_the_model(name: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(ROWS[name]["says"]), encoding="utf-8")
    model = read_config(path).model
    assert op_parameters(model) == num_parameters(model).total == ROWS[name]["parameters"]


def model_with(place: NormPlace) -> ModelSpec:
    return replace(with_block(small_model(layers=1), norm_place=place), hidden=HIDDEN)


def block_of(place: NormPlace, recompute: str = "none", modules: tuple[str, ...] = ()) -> Pass:
    (piece,) = written(model_with(place), job(seq_len=TOKENS), "mtp", Layout.of(1), recompute, modules).blocks
    return piece


def norms(ops: tuple[Op, ...]) -> list[Op]:
    return [op for op in ops if op.role is Role.NORM and op.serves is None]


@pytest.mark.parametrize("place", NormPlace)
def test_norms_run_once_a_place(place: NormPlace) -> None:
    piece = block_of(place)
    assert len(norms(piece.forward)) == len(norms(piece.backward)) == NORMS[place]


def test_a_norm_stands_where_it_is_said_to() -> None:
    def around(place: NormPlace) -> list[bool]:
        """Whether the mixer's norms, in order, stand before its first product."""
        ops = block_of(place).forward
        keys = [op.key for op in ops]
        product = keys.index(OpKey(Module.ATTENTION, Role.QKV))
        return [index < product for index, key in enumerate(keys) if key == (Module.ATTENTION, Role.NORM, None)]

    assert around(NormPlace.BEFORE) == [True]
    assert around(NormPlace.AFTER) == [False]
    assert around(NormPlace.AROUND) == [True, False]


def test_each_norm_and_each_product_keeps_its_input_once() -> None:
    """A norm behind a half keeps that half's result, as one before it keeps its input; halves that share a
    norm keep its result once: two tensors of the hidden size less than with a norm each."""

    def kept(place: NormPlace) -> float:
        return saved_bytes(block_of(place))

    tensor = 2.0 * TOKENS * HIDDEN
    assert kept(NormPlace.AFTER) == kept(NormPlace.BEFORE)
    assert kept(NormPlace.AROUND) == kept(NormPlace.BEFORE) + 2 * tensor
    assert kept(NormPlace.SHARED) == kept(NormPlace.BEFORE) - 2 * tensor


def test_what_no_norm_made_is_not_made_again() -> None:
    """Recomputed norms let the products behind them drop their inputs; without norms before them nothing changes."""
    names = ("norm",)
    assert saved_bytes(block_of(NormPlace.BEFORE, modules=names)) < sum(
        op.saved_bytes[0] for op in block_of(NormPlace.BEFORE).forward
    )
    assert block_of(NormPlace.AFTER, modules=names).backward == block_of(NormPlace.AFTER).backward


def test_soft_capped_logits_cost_three_passes() -> None:
    """cap * tanh(x / cap): two elementwise kernels and tanh, which keeps its result in 16 bits."""
    model = model_with(NormPlace.BEFORE)
    plain = written(model, job(seq_len=TOKENS), "mtp", Layout.of(1)).head
    capped = written(replace(model, logit_softcap=True), job(seq_len=TOKENS), "mtp", Layout.of(1)).head
    added = [op for op in capped.forward if op.key == (Module.HEAD, Role.ACTIVATION, None)]
    assert [op.name for op in added] == [f"head.softcap.{word}" for word in ("divide", "tanh", "multiply")]
    assert len(capped.forward) - len(plain.forward) == len(capped.backward) - len(plain.backward) == 3
    logits = next(op.n[0] for op in plain.forward if op.key == (Module.HEAD, Role.LOGITS, None))
    assert sum(op.saved_bytes[0] for op in added) == 2.0 * TOKENS * logits


def test_chunked_losses_keep_no_soft_capped_logits() -> None:
    asked = job(seq_len=TOKENS)
    asked = replace(asked, preset=asked.preset.changed({"loss.fused": True, "loss.chunked": True}))
    head = written(replace(model_with(NormPlace.BEFORE), logit_softcap=True), asked, "mtp", Layout.of(1)).head
    assert sum(op.saved_bytes[0] for op in head.forward if op.role is Role.ACTIVATION) == 0.0
