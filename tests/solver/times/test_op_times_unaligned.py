"""The head of an odd vocabulary: its framework says how far that is padded, and what stays odd on a rank is slow on a GPU."""

from dataclasses import replace

import pytest

from ops.layout import Layout
from ops.op import BatchedGemm
from ops.roles import Role
from solver.times.op_times import Pricer
from spec.cluster.reader import read_cluster
from spec.presets.registry import PRESETS
from tests.ops.layouts import job, written
from tests.solver.flat_book import FLOPS, FlatBook
from tests.solver.questions import ROOT, small_model

H100 = read_cluster("h100-sxm", root=ROOT)


@pytest.mark.parametrize(("preset", "words", "slow"), [("nanotron", 25129, True), ("megatron", 25216, False)])
def test_a_vocabulary_padded_to_tp_alone_makes_the_head_slow(preset: str, words: int, slow: bool) -> None:
    layout = Layout.of(2, tp=2)
    ops = written(replace(small_model(), vocab=50257), job(preset=PRESETS[preset]), "fsp", layout).head
    products = [
        op for op in (*ops.forward, *ops.backward) if isinstance(op, BatchedGemm) and op.role is Role.LOGITS
    ]
    assert [words in (int(op.m[0]), int(op.k[0]), int(op.n[0])) for op in products] == [True] * 3
    pricer = Pricer.on(H100, FlatBook())
    anywhere = replace(H100.gpu, architecture=replace(H100.gpu.architecture, unaligned=None))
    for op in products:
        told = pricer.time(op, layout).seconds[0] / replace(pricer, gpu=anywhere).time(op, layout).seconds[0]
        # 100 TFLOP/s of the flat book against 358 FLOPs a clock and multiprocessor
        slowed = FLOPS / (358 * H100.gpu.num_sms * H100.gpu.boost_clock_hz)
        assert told == pytest.approx(slowed if slow else 1.0, rel=1e-3)
