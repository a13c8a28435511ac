"""What a search finds beyond degrees (layers dealt anew, parts or layers run again) as a SimAI workload:
each stage's own layers, every priced byte, and what runs again in the backward of the layers that do."""

from pathlib import Path

import pytest

from ops.recompute.layers import Recompute
from ops.roles import Role
from solver.plans.plan_table import Plan
from spec.readers.read_config import read_config
from tests.solver.questions import ROOT
from tests.workload.random_plans import Case
from tests.workload.settings.asking import asked
from tests.workload.simai.test_export_conservation import every_byte_is_written
from tests.workload.test_launch_files_refined import FORMS
from workload.simai.export import export_simai
from workload.simai.reader import read_simai
from workload.stage_work import StageWork, stage_works

LAYERS = {"layout": (14, 18), "modules": (14, 18), "layers": (14, 18), "alone": (32,)}


def refined(form: str, **changes: object) -> Case:
    fields = FORMS[form] | changes
    plan = Plan(strategy="mtp", preset="megatron", tp=2, dp=2, zero_stage=1, zero_size=2, **fields)
    return Case(question=asked(plan, model=read_config(ROOT / "configs" / "8B_llama3.py").model), plan=plan)


def products(work: StageWork, *, backward: bool) -> int:
    """Products and attention calls of a micro-batch's pass."""
    passes = ((piece.repeat, piece.backward if backward else piece.forward) for piece in work.pieces)
    return sum(
        times * sum(bool(item.shape) or item.role is Role.CORE for item in one) for times, one in passes
    )


@pytest.mark.parametrize("form", ["chunks", *LAYERS])
def test_stages_have_their_layers_and_every_byte(form: str, tmp_path: Path) -> None:
    case = refined(form)
    works = stage_works(case.question, case.plan)
    dealt = [sum(piece.repeat for piece in work.pieces if piece.name.startswith("block")) for work in works]
    if form == "chunks":
        assert [work.chunk_layers for work in works] == [((7,), (9,)), ((8,), (8,))]
        assert dealt == [16, 16]
    else:
        assert tuple(dealt) == LAYERS[form]
    every_byte_is_written(case)
    path = tmp_path / "w.txt"
    for place, work in enumerate(works):
        export_simai(case.question, case.plan, path, strict=False, stage=str(place))
        assert len(read_simai(path).rows) > sum(piece.repeat for piece in work.pieces)


@pytest.mark.parametrize("form", ["layers", "alone", "modules"])
def test_what_runs_again_runs_in_the_backward(form: str) -> None:
    """The first layers of each chunk that run again, or a part of every layer, and nothing else."""
    plain = {"recompute": Recompute.NONE, "num_recompute_layers": 0, "recompute_modules": ()}
    case, other = refined(form), refined(form, **plain)
    again = case.plan.num_recompute_layers * case.plan.vpp
    for work, without in zip(
        stage_works(case.question, case.plan), stage_works(other.question, other.plan), strict=True
    ):
        more = products(work, backward=True) - products(without, backward=True)
        assert products(work, backward=False) == products(without, backward=False)
        layers = sum(piece.repeat for piece in work.pieces if piece.name.startswith("block"))
        (block,) = (piece for piece in without.pieces if piece.name.startswith("block"))
        each = sum(bool(item.shape) or item.role is Role.CORE for item in block.forward)
        assert more == (layers * 2 if form == "modules" else again * each)
