"""A token mixer of one's own, through every part of the project that reads the table of mixers.

Figures are by hand for hidden 512, 8 heads of 64 channels, a gated MLP of 2048, sequences of 1024 tokens in bf16.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from ops.layout import Layout
from ops.memory_bound import KERNELS
from ops.op import Axis, Comm, Pass, Phase
from ops.roles import Module, Role
from profdb.cases import MemoryBoundCase
from profdb.cost_model import ProfileCostModel, kernel_s
from profdb.coverage import needs_of
from profdb.store.data_file import load_profile
from profiler.cases.model_cases import model_cases
from solver.plans.plan_table import Plan, PlanTable
from solver.plans.space import full_space
from solver.problem.price import price_plan
from solver.problem.problem import Problem
from solver.problem.requested_plan import broken_rules, parse_plan, plan_of
from solver.problem.result import Answer
from solver.search import search
from spec.errors import ConfigError, ExportError
from spec.frameworks import framework_preset
from spec.model import ModelSpec
from spec.parameters import num_parameters
from spec.readers.config_file import ConfigFile
from spec.readers.read_config import read_config
from tests.ops.layouts import job, written
from tests.recurrence import SCAN, TRAFFIC, register
from tests.solver.flat_cost_model import FLOPS, MEMORY_BANDWIDTH, FlatCostModel
from tests.solver.questions import ROOT, question
from workload.aicb.aiob import aiob_of
from workload.aicb.data_parallel import model_units
from workload.aicb.generator import generator_input
from workload.aicb.module_cases import ModuleRun, module_samples
from workload.diagnostics import WorkloadError
from workload.settings.deepspeed import deepspeed_settings
from workload.settings.internevo import internevo_settings
from workload.settings.megatron import megatron_settings
from workload.stage_work import stage_works
from workload.verbs import parser

HIDDEN, WIDTH, HEADS, FFN, SEQ, VOCAB = 512, 512, 8, 2048, 1024, 4096
MIXER_PARAMETERS = HIDDEN * 2 * WIDTH + HEADS + WIDTH * HIDDEN
LAYER_PARAMETERS = MIXER_PARAMETERS + 3 * HIDDEN * FFN + 2 * HIDDEN

CONFIG = """
source = "made for tests"
[model]
hidden = 512
vocab = 4096
{blocks}
[data]
seq_len = 1024
"""
RECURRENT = "[[model.blocks]]\ncount = {count}\nrecurrence = {{ num_heads = {heads} }}\nmlp = {{ ffn_hidden = 2048 }}\n"
ATTENTION = "[[model.blocks]]\ncount = 1\nattention = { num_heads = 8 }\nmlp = { ffn_hidden = 2048 }\n"


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch)


def config(tmp_path: Path, *, count: int = 2, heads: int = HEADS, also: str = "") -> ConfigFile:
    path = tmp_path / "recurrent.toml"
    path.write_text(CONFIG.format(blocks=RECURRENT.format(count=count, heads=heads) + also), encoding="utf-8")
    return read_config(path)


def asked(model: ModelSpec, framework: str = "megatron", world_size: int = 1) -> Problem:
    return question(model=model, world_size=world_size, sequences=8, seq_len=SEQ, preset=framework_preset(framework))


def planned(ask: Problem, typed: str = "strategy=mtp,tp=1,pp=1,micro_batch=1") -> Plan:
    return plan_of(parse_plan(typed), ask, "test")


def priced(ask: Problem) -> Answer:
    (answer,) = price_plan(ask, PlanTable.of(planned(ask)))
    return answer


def test_a_config_names_it_and_its_parameters_are_its_tensors(tmp_path: Path) -> None:
    model = config(tmp_path).model
    assert num_parameters(model).total == 2 * LAYER_PARAMETERS + HIDDEN + 2 * VOCAB * HIDDEN
    (_, first, *_, last) = model_units(model)
    assert [module.name for module in first.modules[1:4]] == [
        f"layers.0.recurrence.{name}" for name in ("in", "decay", "out")
    ]
    assert sum(module.elements for unit in model_units(model) for module in unit.modules) == num_parameters(model).total
    assert last.name == "head"


@pytest.mark.parametrize(
    ("key", "table"),
    [
        ("recurrence.num_heads", "recurrence = { num_heads = 7 }"),
        ("recurrence.window", "recurrence = { num_heads = 8, window = 4 }"),
        ("recurrence", "recurrence = { num_heads = 8 }\nattention = { num_heads = 8 }"),
        ("attention", ""),
    ],
)
def test_a_block_has_one_mixer_with_its_own_keys(key: str, table: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    blocks = f"[[model.blocks]]\ncount = 1\nmlp = {{ ffn_hidden = 2048 }}\n{table}"
    path.write_text(CONFIG.format(blocks=blocks), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert caught.value.key == f"model.blocks[0].{key}"


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("strategy", ["mtp", "fsp", "isp"])
def test_one_rank_holds_its_share_of_the_parameters_and_keeps_what_the_backward_reads(
    strategy: str, tp: int, tmp_path: Path
) -> None:
    """Bytes of one sequence: the norm's input and the first linear's, x and g, and the last linear's input."""
    layout = Layout.of(tp, tp=tp)
    layer = written(config(tmp_path).model, job(seq_len=SEQ, world_size=tp), strategy, layout).blocks[0]
    mixer = layer.forward[: next(i for i, op in enumerate(layer.forward) if op.name == "mlp.norm")]
    cut_weights = 1 if strategy == "isp" else tp
    owned = HIDDEN + MIXER_PARAMETERS // cut_weights
    assert sum(int(op.parameters[0]) for op in mixer) == owned
    normed = SEQ * HIDDEN // (1 if strategy == "mtp" else tp)
    core = SEQ * 2 * WIDTH // tp
    output = SEQ * WIDTH // tp
    assert sum(float(op.saved_bytes[0]) for op in mixer) == 2 * (2 * normed + core + output)


def test_its_core_sees_whole_sequences_where_ranks_hold_parts(tmp_path: Path) -> None:
    """isp over 4 ranks exchanges x, g and y: each rank's quarter of the tokens, all 512 channels."""
    model = config(tmp_path).model
    layer = written(model, job(seq_len=SEQ, world_size=4), "isp", Layout.of(4, tp=4)).blocks[0]
    moved = {
        op.name: int(op.size_bytes[0])
        for op in layer.forward
        if isinstance(op, Comm) and op.axis is Axis.TP and op.module is Module.MIXER
    }
    assert moved == {f"mixer.{name}_exchange": 2 * SEQ // 4 * WIDTH for name in "xgy"}
    (scan,) = (op for op in layer.forward if op.name == "mixer.core")
    assert (int(scan.rows[0]), int(scan.width[0])) == (SEQ, WIDTH // 4)
    over_cp = job(seq_len=SEQ, world_size=4, context_parallel="all_to_all")
    layer = written(model, over_cp, "mtp", Layout.of(4, cp=2, tp=2)).blocks[0]
    moved = {op.name: int(op.size_bytes[0]) for op in layer.forward if isinstance(op, Comm) and op.axis is Axis.CP}
    assert moved == {f"mixer.{name}_context": 2 * SEQ // 2 * WIDTH // 2 for name in "xgy"}
    (scan,) = (op for op in layer.forward if op.name == "mixer.core")
    assert (int(scan.rows[0]), int(scan.width[0])) == (SEQ, WIDTH // 4)
    assert int(scan.parameters[0]) == HEADS // 2  # cut over tp, not over cp


def test_recomputing_the_attention_core_leaves_it_alone(tmp_path: Path) -> None:
    model = config(tmp_path, also=ATTENTION).model
    mixed, attending = written(model, job(seq_len=SEQ), "mtp", Layout.of(8), "selective").blocks
    assert not [op for op in mixed.backward if op.phase is Phase.RECOMPUTE]
    assert [op.role for op in attending.backward if op.phase is Phase.RECOMPUTE] == [Role.CORE]
    plain = written(model, job(seq_len=SEQ), "mtp", Layout.of(8)).blocks[0]
    assert saved(mixed) == saved(plain)
    again = written(model, job(seq_len=SEQ), "mtp", Layout.of(8), "full").blocks[0]
    assert saved(again) == 2 * SEQ * HIDDEN


def saved(layer: Pass) -> float:
    return sum(float(op.saved_bytes[0]) for op in layer.forward)


def test_a_layer_of_it_is_priced_and_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each product three times, the scan's 3 reads and writes forward and 5 backward; twice the scan's bytes take
    twice its time, and one layer more holds what one layer saves."""
    ask = asked(config(tmp_path).model)
    layer = written(ask.model, ask.job, "mtp", Layout.of(1)).blocks[0]
    own = [op for op in (*layer.forward, *layer.backward) if op.name in ("mixer.project", "mixer.core", "mixer.out")]
    scan_s = (3 + 5) * 2 * SEQ * WIDTH / MEMORY_BANDWIDTH
    products_s = 3 * 2 * SEQ * HIDDEN * (2 * WIDTH + WIDTH) / FLOPS
    told_s = sum(float(kernel_s(FlatCostModel(), op).seconds[0]) for op in own)
    assert told_s == pytest.approx(scan_s + products_s, rel=1e-12)
    before = priced(ask)
    monkeypatch.setitem(KERNELS, SCAN, replace(TRAFFIC, forward_reads=5, backward_reads=8))
    micro_batches, layers = 8, 2
    more_s = micro_batches * layers * scan_s
    assert priced(ask).step_s - before.step_s == pytest.approx(more_s, rel=1e-9)
    longer = priced(asked(config(tmp_path, count=3).model))
    kept = 2 * SEQ * (2 * HIDDEN + 2 * WIDTH + WIDTH) + 2 * SEQ * (2 * HIDDEN + 3 * FFN)
    assert longer.memory_bytes["activations"] - before.memory_bytes["activations"] == kept
    assert longer.mfu > 0
    assert sum(longer.parts_s.values()) == pytest.approx(longer.step_s)


def test_rules_ask_it_what_tp_must_divide_and_how_cp_may_cut(tmp_path: Path) -> None:
    """Four heads go over four ranks and not over eight, also where other layers have eight."""
    model = config(tmp_path, heads=4, also=ATTENTION).model
    assert model.cut_heads == (4, 8)
    ask = asked(model, world_size=8)

    def broken(typed: str, ask: Problem = ask) -> tuple[str, ...]:
        return broken_rules(ask, planned(ask, f"{typed},pp=1,micro_batch=1"))

    assert broken("strategy=fsp,tp=4") == ()
    assert broken("strategy=fsp,tp=8") == ("heads do not divide by tp",)
    assert max(full_space(model, ask.job).degrees["tp"]) == 4
    assert broken("strategy=fsp,tp=1,cp=2") == (
        "a layer of the model does not support this kind of context parallelism",
    )
    exchanging = replace(ask, job=replace(ask.job, context_parallel="all_to_all"))
    assert broken("strategy=fsp,tp=1,cp=2", exchanging) == ()
    assert search(ask, full_space(model, ask.job)).best[0].step_s > 0


def test_what_a_profile_lacks_and_must_measure_names_its_kernel(tmp_path: Path) -> None:
    found = config(tmp_path, heads=4)
    cases = {one.case for one in model_cases(tmp_path / "recurrent.toml", (1, 4, 8))}
    scans = {case for case in cases if isinstance(case, MemoryBoundCase) and case.kernel == SCAN}
    # Whole width, a quarter of it, or (isp's quarter of the heads) the same; never an eighth of four heads.
    assert {case.width for case in scans} == {WIDTH, WIDTH // 4}
    assert {case.direction for case in scans} == {"forward", "backward"}
    needs = {need.name for need in needs_of(found, ProfileCostModel(load_profile(ROOT / "prof_data/data.pt")))}
    assert "tp 4: forward mixer.core" in needs
    assert "tp 8: forward mixer.core" not in needs


def test_what_is_written_for_attention_refuses_it_by_name(tmp_path: Path) -> None:
    found = config(tmp_path)
    for framework, export in (("megatron", megatron_settings), ("internevo", internevo_settings)):
        ask = asked(found.model, framework)
        with pytest.raises(ExportError, match="attention, not of recurrence"):
            export(ask, planned(ask))
    ask = asked(found.model, "deepspeed", world_size=2)
    with pytest.raises(ExportError, match="attention, not of recurrence"):
        deepspeed_settings(ask, planned(ask, "strategy=mtp,tp=2,pp=1,micro_batch=1"))


def test_layers_of_two_kinds_are_not_taken_for_the_first(tmp_path: Path) -> None:
    path = tmp_path / "hybrid.toml"
    path.write_text(CONFIG.format(blocks=ATTENTION + RECURRENT.format(count=3, heads=HEADS)), encoding="utf-8")
    found = read_config(path)
    ask = asked(found.model)
    plan = planned(ask)
    with pytest.raises(ExportError, match="attention, not of recurrence"):
        megatron_settings(ask, plan)
    with pytest.raises(ConfigError, match="equal dense layers"):
        module_samples({}, ModuleRun(model=found.model, seq_len=SEQ))
    with pytest.raises(WorkloadError, match="no section for it"):
        aiob_of(stage_works(ask, plan))
    typed = f"generate --world_size 8 --config {path}".split()
    timed = parser().parse_args([*typed, "--comp_filepath", str(tmp_path / "times.txt")])
    with pytest.raises(ExportError, match="attention, not of recurrence"):
        generator_input(timed, ROOT)
    with pytest.raises(ConfigError, match="layers of attention; these are of recurrence"):
        generator_input(parser().parse_args([*typed, "--num_attention_heads", "4"]), ROOT)


def test_a_block_may_end_with_its_mixer(tmp_path: Path) -> None:
    """One norm, no second half: four matrices of 512 x 512 and the norm."""
    path = tmp_path / "mixers.toml"
    table = "[[model.blocks]]\ncount = 3\nattention = { num_heads = 8, num_kv_heads = 8 }\nmlp = false\n"
    path.write_text(CONFIG.format(blocks=table), encoding="utf-8")
    model = read_config(path).model
    layer = 4 * HIDDEN * HIDDEN + HIDDEN
    assert num_parameters(model).total == 3 * layer + HIDDEN + 2 * VOCAB * HIDDEN
    assert sum(module.elements for module in model_units(model)[1].modules) == layer
    ops = written(model, job(seq_len=SEQ), "mtp", Layout.of(8)).blocks[0]
    assert sum(int(op.parameters[0]) for op in ops.forward) == layer
    assert {op.module for op in ops.forward} == {Module.ATTENTION}
    ask = asked(model)
    assert priced(ask).step_s > 0
    for framework, export in (("megatron", megatron_settings), ("internevo", internevo_settings)):
        ask = asked(model, framework)
        with pytest.raises(ExportError, match="without a feed-forward network"):
            export(ask, planned(ask))
