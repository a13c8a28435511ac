"""Attention and Mamba-2 side by side: the operations of both, one input kept, one sum more."""

from dataclasses import replace

import pytest

from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import Attention, BatchedGemm, Comm, MemoryBound, Pass
from spec.errors import ConfigError
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.mixers.mamba2 import Mamba2Spec
from spec.mixers.mixer import Mixer
from spec.mixers.side_by_side import SideBySideSpec
from spec.parameters import block_parameters
from spec.section import Section
from tests.ops.layouts import job, saved_bytes, written
from tests.solver.questions import small_model, with_block

HIDDEN, SEQ = 512, 2048
ATTENTION = AttentionSpec(kind=AttentionKind.GQA, num_heads=8, num_kv_heads=4, qk_dim=64, v_dim=64)
MAMBA = Mamba2Spec(num_heads=8, head_dim=32, state_size=64, num_groups=2, inner_norm=False)
BOTH = SideBySideSpec(attention=ATTENTION, mamba2=MAMBA)


def layer(mixer: Mixer, strategy: str = "mtp", **degrees: int) -> Pass:
    ranks = degrees.get("tp", 1) * degrees.get("cp", 1)
    settings = job(seq_len=SEQ, world_size=ranks, context_parallel="all_to_all")
    model = with_block(small_model(hidden=HIDDEN), mixer=mixer, mlp=None)
    return written(model, settings, strategy, Layout.of(ranks, **degrees)).blocks[0]


@pytest.mark.parametrize(
    ("strategy", "degrees"), [("mtp", {}), ("mtp", {"tp": 2}), ("fsp", {"cp": 2}), ("isp", {"tp": 2})]
)
def test_a_layer_runs_both_and_adds_their_outputs(strategy: str, degrees: dict[str, int]) -> None:
    """Products, weights and messages of both; the norm of the layer once."""
    both, first, second = (layer(mixer, strategy, **degrees) for mixer in (BOTH, ATTENTION, MAMBA))

    def sums(piece: Pass) -> tuple[float, float, int]:
        ops = (*piece.forward, *piece.backward)
        flops = sum(float(op.flops[0]) for op in ops if isinstance(op, (BatchedGemm, Attention)))
        moved = sum(float(op.size_bytes[0]) for op in ops if isinstance(op, Comm))
        return flops, moved, sum(int(op.parameters[0]) for op in piece.forward)

    flops, moved, owned = (one + other for one, other in zip(sums(first), sums(second), strict=True))
    assert sums(both) == (flops, moved, owned - HIDDEN)


def test_the_input_is_kept_once_and_the_sum_reads_two() -> None:
    both, first, second = layer(BOTH), layer(ATTENTION), layer(MAMBA)
    a_tensor = 2 * SEQ * HIDDEN
    assert saved_bytes(both) == saved_bytes(first) + saved_bytes(second) - 2 * a_tensor
    (summed,) = (op for op in both.forward if op.name == "side_by_side.sum")
    assert isinstance(summed, MemoryBound)
    assert bytes_moved(summed)[0] == 3 * a_tensor


def test_weights_and_heads_are_those_of_both() -> None:
    """Falcon-H1's Mamba-2 has no norm before its output: 256 weights less."""
    blocks = [
        with_block(small_model(hidden=HIDDEN), mixer=mixer, mlp=None).blocks[0].block
        for mixer in (BOTH, ATTENTION, MAMBA)
    ]
    counts = [block_parameters(block, HIDDEN) for block in blocks]
    assert counts[0] == counts[1] + counts[2] - HIDDEN
    normed = replace(MAMBA, inner_norm=True)
    assert sum(one.elements for one in normed.modules(HIDDEN, "")) - (counts[2] - HIDDEN) == 256
    assert (BOTH.cut_heads, BOTH.repeatable_heads) == ((8, 8, 2), (4,))


def test_a_config_has_a_table_for_each() -> None:
    tables = {
        "attention": {"num_heads": 8, "num_kv_heads": 4},
        "mamba2": {"num_heads": 8, "head_dim": 32, "state_size": 64, "num_groups": 2, "inner_norm": False},
    }
    assert SideBySideSpec.read(Section(where="test", name="side_by_side", values=tables), HIDDEN) == BOTH
    with pytest.raises(ConfigError, match="num_heads"):
        SideBySideSpec.read(Section(where="test", name="side_by_side", values={"mamba2": {}}), HIDDEN)
