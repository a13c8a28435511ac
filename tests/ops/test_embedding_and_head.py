"""What the head and the loss hold and move, by what the framework does with its logits."""

from dataclasses import replace

import pytest

from ops.block import ModelOps
from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import Axis, BatchedGemm, Comm, MemoryBound, Pass, Phase
from ops.roles import Module, Role
from spec.collectives import Collective
from spec.frameworks import framework_preset
from spec.job import Precision
from spec.parameters import num_parameters
from tests.ops.layouts import job, written
from tests.solver.questions import small_model
from workload.aicb.data_parallel import model_units

SEQ, VOCAB, HIDDEN = 2048, 4096, 512


def ops_of(tp: int = 2, recompute: str = "none", choices: dict[str, bool] | None = None) -> ModelOps:
    preset = framework_preset("megatron").changed(choices or {})
    return written(small_model(), job(seq_len=SEQ, preset=preset), "mtp", Layout.of(8, tp=tp), recompute)


def loss_bytes(predicted: ModelOps) -> tuple[float, float]:
    """Bytes a logit keeps, and takes for a moment beyond them."""
    (entropy,) = (op for op in predicted.head.forward if op.name == "loss.cross_entropy")
    assert isinstance(entropy, MemoryBound)
    logits = entropy.rows[0] * entropy.width[0]
    return float(entropy.saved_bytes[0] / logits), float(entropy.transient_bytes[0] / logits)


def test_each_loss_holds_its_own_tensors() -> None:
    """16-bit logits and an fp32 softmax; PyTorch's with two fp32 gradients; fused the logits alone, or two
    fp32 copies; kept outputs add this and the last micro-batch's logits."""
    assert loss_bytes(ops_of()) == (2 + 4, 0)
    assert loss_bytes(ops_of(choices={"loss.plain": True})) == (4, 8)
    assert loss_bytes(ops_of(choices={"loss.keeps_fp32_logits": True})) == (4, 4)
    assert loss_bytes(ops_of(choices={"loss.plain": True, "pipeline.keeps_stage_outputs": True})) == (2 + 4, 2 + 8)
    assert loss_bytes(ops_of(choices={"loss.fused": True, "loss.plain": True})) == (2, 0)
    assert loss_bytes(ops_of(choices={"loss.fused": True, "loss.upcasts": True})) == (4, 4)
    assert loss_bytes(ops_of(choices={"loss.fused": True, "loss.chunked": True})) == (0, 0)


def test_the_first_internevo_reads_16_bit_logits_and_writes_gradients_in_their_place() -> None:
    """2 bytes a logit forward and 2 + 2 backward, where Megatron-LM's loss moves 2 + 9 x 4 and 2 + 3 x 4."""
    logits = SEQ * VOCAB
    for name, forward, backward in (("internlm", 2, 4), ("megatron", 38, 14)):
        asked = job(seq_len=SEQ, preset=framework_preset(name))
        head = written(small_model(), asked, "mtp", Layout.of(1), "none").head
        for passed, told in ((head.forward, forward), (head.backward, backward)):
            (moved,) = [op for op in passed if isinstance(op, MemoryBound) and op.module is Module.LOSS]
            assert float(bytes_moved(moved)[0]) / logits == told


def test_a_narrow_head_multiplies_and_casts_as_the_linears_do() -> None:
    """MXFP8: three products of the head in 8 bits, its input and the logits' gradient written both ways by 1
    byte an element, its input kept so and two narrow copies of its weight beside it; a wide one has
    neither."""
    layout, elements = Layout.of(1), VOCAB * HIDDEN
    narrow = {"linear": "fp8", "scale_recipe": "mx", "scaling": "block"}

    def head(low_precision_head: bool) -> Pass:
        asked = replace(job(seq_len=SEQ), precision=Precision(**narrow, low_precision_head=low_precision_head))
        return written(small_model(), asked, "mtp", layout, "none").head

    for told, dtype, kept, copies in ((head(True), "fp8", 1, 2), (head(False), "bf16", 2, 0)):
        ops = (*told.forward, *told.backward)
        gemms = [op for op in ops if isinstance(op, BatchedGemm)]
        assert [op.dtype for op in gemms] == [dtype] * 3
        assert (gemms[0].saved_bytes[0], gemms[0].cached_bytes[0]) == (kept * SEQ * HIDDEN, copies * elements)
        cast = [op for op in ops if isinstance(op, MemoryBound) and op.role is Role.CAST]
        moved = {(op.phase, float(bytes_moved(op)[0])) for op in cast if op.module is Module.HEAD}
        asked_for = {(Phase.FORWARD, 4.0 * SEQ * HIDDEN), (Phase.INPUT_GRAD, 4.0 * SEQ * VOCAB)}
        assert moved >= asked_for if dtype == "fp8" else not moved


def test_an_upcast_loss_reads_fp32_logits_that_a_cast_makes() -> None:
    """2 + 4 bytes a logit for the cast each way, and 4 forward, 4 + 4 backward for the loss; an unfused one makes
    its own copy."""
    head = ops_of(1, choices={"loss.fused": True, "loss.upcasts": True}).head
    logits = SEQ * VOCAB
    for passed, loss_bytes_a_logit in ((head.forward, 4), (head.backward, 8)):
        moved = {
            op.role: float(bytes_moved(op)[0]) / logits
            for op in passed
            if isinstance(op, MemoryBound) and op.module is Module.LOSS
        }
        assert moved == {Role.CAST: 6, Role.CROSS_ENTROPY: loss_bytes_a_logit}
    for choices in ({"loss.upcasts": True}, {"loss.fused": True, "loss.upcasts": True, "loss.chunked": True}):
        assert all(op.role is not Role.CAST for op in ops_of(1, choices=choices).head.forward)


@pytest.mark.parametrize("tp", [1, 4])
def test_gathered_logits_are_whole_on_every_rank(tp: int) -> None:
    predicted = ops_of(tp, choices={"loss.gathers_logits": True})
    (entropy,) = (op for op in predicted.head.forward if op.name == "loss.cross_entropy")
    (gather,) = (op for op in predicted.head.forward if isinstance(op, Comm) and op.name == "head.gather")
    assert isinstance(entropy, MemoryBound)
    assert entropy.width[0] == VOCAB
    assert gather.collective is Collective.ALL_GATHER
    assert gather.axis is Axis.TP
    assert gather.size_bytes[0] == (2 * SEQ * VOCAB if tp > 1 else 0)
    joined = [op for op in (*predicted.head.forward, *predicted.head.backward) if op.name == "head.join"]
    widths = {op.phase: op.rows[0] * op.width[0] for op in joined if isinstance(op, MemoryBound)}
    cut = SEQ * VOCAB if tp > 1 else 0
    assert widths == {Phase.FORWARD: cut, Phase.INPUT_GRAD: cut // tp}
    assert not any(op.name == "loss.reduce" for op in predicted.head.forward)


def test_full_recomputation_of_the_edges_repeats_the_head_but_not_the_loss() -> None:
    whole = ops_of(recompute="full", choices={"recomputation.recomputes_ends": True})
    again = {op.name for op in whole.head.backward if op.phase is Phase.RECOMPUTE}
    assert {"head.norm", "head.logits"} <= again
    assert "loss.cross_entropy" not in again
    assert any(op.phase is Phase.RECOMPUTE for op in whole.embedding.backward)
    for other in (ops_of(recompute="full"), ops_of(choices={"recomputation.recomputes_ends": True})):
        assert not any(op.phase is Phase.RECOMPUTE for op in other.head.backward)


@pytest.mark.parametrize(
    ("framework", "tied", "pp", "told"),
    [
        ("megatron", False, 1, [("accumulate_wide", 10)]),
        ("megatron", True, 1, [("accumulate_wide", 10)]),
        ("nanotron", False, 1, [("accumulate_wide", 10)]),
        ("nanotron", True, 1, [("accumulate", 6)]),
        ("nanotron", True, 2, [("accumulate_wide", 10)]),
        ("internevo", False, 1, [("accumulate", 6)]),
        ("fsdp", False, 1, []),
    ],
)
def test_a_lookups_gradient_is_added_up_whole(framework: str, tied: bool, pp: int, told: list[tuple[str, int]]) -> None:
    """Bytes an element of the table: 2 read and 4 + 4 of an fp32 sum, or three times 2; tied on one stage it
    joins the head's.
    """
    model, asked = (replace(small_model(), tied_embeddings=tied), job(seq_len=SEQ, preset=framework_preset(framework)))
    first = written(model, asked, "mtp", Layout.of(8, tp=2, pp=pp), "none").embedding
    added = [op for op in first.backward if isinstance(op, MemoryBound) and op.role is Role.ACCUMULATE]
    table = float(first.forward[0].parameters[0])
    moved = [(op.kernel, float(bytes_moved(op)[0]) / table) for op in added if op.rows[0]]
    assert moved == told


def test_the_gradient_of_an_embedding_begins_as_zeros() -> None:
    """2 bytes written for each element of a rank's table, though autograd sets them in the backward."""
    (zeros,) = (op for op in ops_of().embedding.backward if op.role is Role.ZERO)
    assert isinstance(zeros, MemoryBound)
    assert float(bytes_moved(zeros)[0]) == 2.0 * VOCAB / 2 * HIDDEN


def test_rows_that_the_head_does_not_have_are_the_tables_alone() -> None:
    """Molmo 2 (transformers modeling_molmo2.py): 128 rows more in the embedding, cut over tp as it is; logits are as many."""
    more, plain = replace(small_model(), extra_embedding_rows=128), small_model()
    assert num_parameters(more).total - num_parameters(plain).total == 128 * HIDDEN
    wide, ends = (written(model, job(seq_len=SEQ), "mtp", Layout.of(8, tp=2)) for model in (more, plain))
    for piece, extra in (("embedding", 128 * HIDDEN // 2), ("head", 0)):
        one, other = (sum(int(op.parameters[0]) for op in getattr(each, piece).forward) for each in (wide, ends))
        assert one - other == extra
    (rows, fewer) = (
        next(int(op.rows[0]) for op in each.embedding.backward if op.name == "embedding.table.zeros")
        for each in (wide, ends)
    )
    assert rows - fewer == 64
    units = [model_units(model)[0].modules[0].elements for model in (more, plain)]
    assert units[0] - units[1] == 128 * HIDDEN
    assert more.rare_parts == ("extra_embedding_rows",)
