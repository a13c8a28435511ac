"""What a device is asked for is declared once: every view has every field, and none is lost on the way."""

import json
import shutil
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from ops.op import (
    Attention,
    AttentionCall,
    BatchedGemm,
    Count,
    GroupedGemm,
    GroupedProductCall,
    KernelCall,
    MemoryBound,
    Op,
    Phase,
    ProductCall,
    fields_of,
    number_names,
    size_names,
)
from ops.roles import Identity, Module, OpKey, Role
from profdb.cases import AttentionCase, GemmCase, GroupedGemmCase, MemoryBoundCase
from profdb.cost_model import kernel_s
from profdb.queries import AttentionQuery, GroupedLinearQuery, LinearQuery, MemoryBoundQuery
from profiler.cases.model_cases import cases_of
from spec.arrays import ints

ROOT = Path(__file__).resolve().parents[2]

VIEWS = {
    ProductCall: (BatchedGemm, LinearQuery, GemmCase),
    GroupedProductCall: (GroupedGemm, GroupedLinearQuery, GroupedGemmCase),
    AttentionCall: (Attention, AttentionQuery, AttentionCase),
    KernelCall: (MemoryBound, MemoryBoundQuery, MemoryBoundCase),
}


class Listener:
    """A cost model that answers with the question."""

    def __getattr__(self, method: str) -> Any:
        return lambda query: query


# No default of any field.
WORDS = {
    "layout": "TN",
    "scale_recipe": "row",
    "bias": True,
    "mask": "window",
    "direction": "backward",
    "kernel": "copy",
    "dtype": "fp16",
}


def made(call: Any) -> Op:
    """An operation of two rows with another value in every field."""
    numbers = {name: ints([10 + place, 20 + place]) for place, name in enumerate(number_names(call))}
    labels = {field.name: WORDS[field.name] for field in fields(call) if field.type is not Count}
    view: Any = VIEWS[call][0]
    return view(module=Module.MLP, role=Role.UP, phase=Phase.FORWARD, **numbers, **labels)  # type: ignore[no-any-return]


@pytest.mark.parametrize("call", VIEWS, ids=lambda call: call.__name__)
def test_every_view_has_every_field_with_its_default(call: Any) -> None:
    said = {field.name: (field.type, field.default) for field in fields(call)}
    for view in VIEWS[call]:
        held = {field.name: (field.type, field.default) for field in fields(view)}
        assert {name: held[name] for name in said} == said
        assert not any("__dict__" in vars(each) for each in view.__mro__)


@pytest.mark.parametrize("call", VIEWS, ids=lambda call: call.__name__)
def test_no_field_is_lost_between_operation_question_and_case(call: Any) -> None:
    op = made(call)
    query = kernel_s(Listener(), op)  # type: ignore[arg-type]
    cases = list(cases_of(op))
    assert len(cases) == 2
    for name, value in fields_of(call, op).items():
        if name in number_names(call):
            assert getattr(query, name).tolist() == value.tolist()
            assert [getattr(case, name) for case in cases] == value.tolist()
            assert type(getattr(cases[0], name)) is int
        else:
            assert [getattr(view, name) for view in (query, *cases)] == [value] * 3


def test_a_number_may_be_zero_only_where_that_is_its_default() -> None:
    assert set(number_names(AttentionCall)) - set(size_names(AttentionCall)) == {"window"}
    op = made(AttentionCall)
    assert len(list(cases_of(replace(op, window=ints([0, 5]))))) == 2  # type: ignore[call-arg]
    assert len(list(cases_of(replace(op, kv_len=ints([0, 5]))))) == 1  # type: ignore[call-arg]


MORE = """
import json
from ops.op import Attention, AttentionCall, Phase, fields_of
from ops.roles import Module, Role
from profdb.cases import Family
from profdb.cost_model import ProfileCostModel
from profdb.queries import AttentionQuery
from profdb.refit import with_fits
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from profdb.store.data_file import load_profile, save_profile
from profiler.cases.model_cases import cases_of
from spec.arrays import ints
from spec.origin import Origin

sizes = {"batch": 1, "q_len": 64, "kv_len": 64, "heads": 8, "kv_heads": 8, "qk_dim": 64, "v_dim": 64}
said = {"module": Module.ATTENTION, "role": Role.CORE, "phase": Phase.FORWARD}
op = Attention(**said, **{name: ints([size, size]) for name, size in sizes.items()}, softcap=ints([0, 50]), tanh=True)
capped = list(cases_of(op))
plain = list(cases_of(Attention(**said, **{name: ints(size) for name, size in sizes.items()})))
samples = [Sample(case=case, trials_s=(seconds,), origin=Origin.MEASURED)
           for case, seconds in ((plain[0], 1e-3), (capped[0], 2e-3))]
profile = ProfileDatabase(machine=MachineFacts(gpu="g", cluster="c"), samples=samples)
save_profile("p.pt", with_fits(profile))
read = load_profile("p.pt")
query = AttentionQuery(**fields_of(AttentionCall, op))
print(json.dumps({
    "query": query.columns()["softcap"].tolist(),
    "cases": [(case.softcap, case.tanh) for case in capped],
    "read": [sample.case.tanh for sample in read.samples],
    "curves": sorted(curve.key["tanh"] for curve in ProfileCostModel(read).curves(Family.ATTENTION)),
    "seconds": ProfileCostModel(read).attention_s(query).seconds.tolist(),
}))
"""


@pytest.mark.nightly
def test_a_field_is_written_once(tmp_path: Path) -> None:
    """Two fields more in a copy of the tree: asked for, measured, stored, fitted and read, with no other line."""
    for package in ("spec", "ops", "profdb", "profiler"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    calls = tmp_path / "ops" / "op.py"
    before = "    window: Count = ZERO\n"
    text = calls.read_text(encoding="utf-8")
    assert text.count(before) == 1
    calls.write_text(text.replace(before, f"{before}    softcap: Count = ZERO\n    tanh: bool = False\n"))
    ran = subprocess.run([sys.executable, "-c", MORE], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["query"] == [0, 50]
    assert found["cases"] == [[0, True], [50, True]]
    assert found["read"] == [False, True]
    assert found["curves"] == ["0", "1"]
    assert found["seconds"][0] == pytest.approx(2e-3)


# What an operation is, what it stands with, and what it is called.


QKV = OpKey(Module.ATTENTION, Role.QKV)


def test_a_label_is_made_of_module_and_roles_unless_one_is_given() -> None:
    assert Identity(module=Module.MLP, role=Role.UP).name == "mlp.up"
    assert QKV.served_by(Role.ENTER).name == "attention.qkv.enter"
    assert QKV.served_by(Role.COPY, "attention.qkv.join").name == "attention.qkv.join"


def test_what_serves_an_operation_stands_with_it_and_is_another() -> None:
    cast = QKV.served_by(Role.CAST)
    assert (cast.served, cast.key) == (QKV, OpKey(Module.ATTENTION, Role.CAST, Role.QKV))
    norm = Identity(module=Module.ATTENTION, role=Role.NORM)
    assert cast.is_within({QKV})
    assert cast.is_within({Module.ATTENTION})
    assert not norm.is_within({QKV, Module.MLP})
    assert norm.served == norm.key
