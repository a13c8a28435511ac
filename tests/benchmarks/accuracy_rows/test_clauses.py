"""Settings stated in notes: taken where there is a switch, named where there is none, an error where nobody
reads them.
"""

import pytest

from benchmarks.accuracy_rows.clauses import Reading, clauses_of, readings, stated_lines
from benchmarks.accuracy_rows.gaps import Gap
from benchmarks.accuracy_rows.job import asked_job
from benchmarks.accuracy_rows.model import model_of
from benchmarks.accuracy_rows.notes import WHOLE_LAYERS, notes_of
from benchmarks.accuracy_rows.row import RowError
from ops.cpu_overhead.issuing import GRAPHED
from tests.benchmarks.made_up_rows import job_of_row, plans, row

RECIPE = "recipe@v9.9: recompute_modules={} cpu_offload_layers={} cuda_graph={} dispatcher=None (some words)"


@pytest.mark.parametrize(
    ("stated", "scopes"),
    [
        ("None:None", frozenset()),
        ("local:full_iteration", frozenset({"full_iteration"})),
        ("full_iteration:[]", frozenset({"full_iteration"})),
        ("transformer_engine:['attn', 'moe_router']", frozenset({"attn", "moe_router"})),
        ("transformer_engine:full", WHOLE_LAYERS),
        ("local:None", WHOLE_LAYERS),
        ("local:[]", WHOLE_LAYERS),
    ],
)
def test_scopes_of_cuda_graphs_are_the_jobs(stated: str, scopes: frozenset[str]) -> None:
    one = row(notes=RECIPE.format("None", "None", stated))
    assert notes_of(one).cuda_graphs == scopes <= frozenset(GRAPHED)
    assert job_of_row(one).cuda_graphs == scopes
    assert {reading for reading, _ in readings(one)} == {Reading.TAKEN}


def test_parts_on_the_host_are_the_plans() -> None:
    one = row(notes=RECIPE.format("None", "None", "None:None") + " offload_modules=None")
    assert plans(notes=one.notes)[0].offload_modules == ()
    said = RECIPE.replace(" (some", " offload_modules=['moe_act', 'core_attn'] (some")
    one = row(notes=said.format("['moe_act']", "None", "None:None"))
    assert plans(notes=one.notes)[0].offload_modules == ("core_attn", "moe_act")
    assert {reading for reading, _ in readings(one)} == {Reading.TAKEN}
    odd = row(notes=said.format("None", "None", "None:None").replace("core_attn", "core_attention"))
    assert Reading.TAKEN not in {reading for reading, clause in readings(odd) if "core_attention" in clause}


def test_mlperf_states_graphs_overlap_and_parameters_in_words() -> None:
    cells = {"framework": "MLPerf v5.1 NeMo", "precision": "fp8", "gpu": "H100-80GB"}
    plain = job_of_row(row(**cells))
    stated = job_of_row(row(**cells, notes="runs 1-2 s; TP overlap False; FP8 parameters; CUDA graphs"))
    assert plain.preset.tensor_parallel.overlap
    assert not stated.preset.tensor_parallel.overlap
    assert (plain.cuda_graphs, stated.cuda_graphs) == (frozenset(), WHOLE_LAYERS)
    # FP8_PARAM_GATHER=True of every submission's config_common.sh, v5.0 and v5.1
    assert (plain.precision.parameter_gather, stated.precision.parameter_gather) == ("fp8", "fp8")
    told = row(**cells, notes="TP overlap True; FP8 parameters")
    assert job_of_row(told).preset.tensor_parallel.overlap
    assert Gap.FP8_COMM not in asked_job(told, notes_of(told))[1]


@pytest.mark.parametrize(
    ("framework", "precision", "expected"),
    [
        # (gathered in, held narrow, anything left open), by the code that gaps.STATED_GATHERS and the presets name
        ("NeMo (DGX Cloud recipe v25.02.02)", "fp8", ("fp8", True, False)),
        ("NeMo LoRA", "fp8", ("fp8", True, False)),
        ("NeMo/Megatron-Core", "fp8", ("bf16", False, False)),
        ("MaxText (DGX Cloud recipe v25.04.02)", "fp8", ("fp8", False, False)),
        ("torchtitan FSDP2+compile+float8", "fp8", ("fp8", False, False)),
        ("torchtitan FSDP2+TP+compile", "fp8-tensorwise", ("fp8", False, False)),
        ("torchtitan FSDP2+TP+compile", "fp8-rowwise", ("bf16", False, False)),
        ("llm-foundry/Composer FSDP1", "amp_fp8", ("bf16", False, False)),
        ("Megatron-Bridge 25.09", "FP8-subchannel", ("bf16", False, False)),
        ("Megatron-Bridge 25.11", "FP8-MX", ("bf16", True, False)),
        ("Megatron-Bridge 25.11", "FP8-CS", ("fp8", True, False)),
        ("Megatron-Core", "fp8", ("bf16", False, True)),
    ],
)
def test_fp8_rows_hold_and_gather_parameters_as_their_frameworks_do(
    framework: str, precision: str, expected: tuple[str, bool, bool]
) -> None:
    one = row(framework=framework, precision=precision, gpu="H100-80GB")
    formats, gaps = job_of_row(one).precision, asked_job(one, notes_of(one))[1]
    assert (formats.parameter_gather, formats.narrow_parameters, Gap.FP8_COMM in gaps) == expected


@pytest.mark.parametrize(
    ("notes", "overlaps"),
    [("async TP", True), ("no async TP communication", False), ("vanilla TP", False), ("", False)],
)
def test_no_async_is_not_async(notes: str, overlaps: bool) -> None:
    assert job_of_row(row(notes=notes)).preset.tensor_parallel.overlap is overlaps


@pytest.mark.parametrize(
    ("notes", "tied"), [("tied embeddings", True), ("untied embeddings", False), ("", False)]
)
def test_tied_embeddings_are_read(notes: str, tied: bool) -> None:
    one = row(notes=notes)
    assert model_of(one, notes_of(one))[0].tied_embeddings is tied


def test_offloaded_layers_shard_groups_and_schedules_are_the_plans() -> None:
    (plan,) = plans(notes=RECIPE.format("None", "2", "None:None"))
    assert plan.offloaded_layers == 2
    cells = {"zero_stage": "3", "num_gpus": 64, "dp": 16, "global_batch_sequences": 64}
    (plan,) = plans(**cells, notes="FSDP over 4 GPUs then data parallel")
    assert plan.zero_size == 4
    for words in ("schedule=ZB-H1", "schedule ZB-H1", "schedule: ZB-H1"):
        assert plans(notes=words)[0].schedule.value == "zb-h1"
    assert plans(notes="schedule not stated")[0].schedule.value == "1f1b"


@pytest.mark.parametrize(("schedule", "chunks"), [("zb-1p", 1), ("dualpipe", 1), ("dualpipe-v", 2)])
def test_a_schedule_says_how_many_chunks_its_stages_have(schedule: str, chunks: int) -> None:
    for stated in (str(chunks), "", "unknown"):
        assert [plan.vpp for plan in plans(notes=f"schedule={schedule}", vpp=stated)] == [chunks]
    with pytest.raises(RowError, match=f"must be {chunks} with schedule {schedule}"):
        plans(notes=f"schedule={schedule}", vpp=3 - chunks)


@pytest.mark.parametrize(
    ("words", "schedule", "chunks"),
    [
        ("schedule GPipe", "gpipe", 1),
        ("schedule=LoopedBFS", "looped-bfs", 2),
        ("schedule InterleavedZeroBubble", "zb-interleaved", 2),
        ("schedule ZBVZeroBubble", "zb-v", 2),
        ("schedule=ZBV", "zb-v", 2),
        ("schedule: DualPipeV", "dualpipe-v", 2),
    ],
)
def test_schedules_by_pytorchs_names(words: str, schedule: str, chunks: int) -> None:
    (plan,) = plans(notes=words, vpp="")
    assert (plan.schedule.value, plan.vpp) == (schedule, chunks)
    if schedule in ("looped-bfs", "zb-interleaved"):
        assert plans(notes=words, vpp=4)[0].vpp == 4
    assert {reading for reading, _ in readings(row(notes=words))} == {Reading.TAKEN}


def test_clauses_end_at_semicolons_outside_brackets() -> None:
    assert clauses_of("one (two; three); four;; ") == ["one (two; three)", "four"]


@pytest.mark.parametrize(
    ("notes", "found"),
    [
        ("Table 3; FLAG odd; published MFU 40%", {Reading.NOTHING}),
        ("grad_accum=4; CUDA graphs", {Reading.TAKEN}),
        ("mock data, balanced fake gate, no grad clipping", {Reading.TAKEN}),
        ("hypersharding=5", {Reading.UNREAD}),
        ("pp_layout=Et|ttt|L", {Reading.UNREAD}),
        ("pp_layout=Et|tttL", {Reading.TAKEN}),
        ("pp_layout=somehow", {Reading.UNREAD}),
        (RECIPE.format("['warp']", "None", "None:None"), {Reading.TAKEN, Reading.UNREAD}),
        (RECIPE.format("None", "None", "local:everything"), {Reading.TAKEN, Reading.UNREAD}),
        (
            RECIPE.format("None", "None", "None:None").replace("dispatcher", "new_switch"),
            {Reading.TAKEN, Reading.UNREAD},
        ),
    ],
)
def test_every_clause_is_accounted_for(notes: str, found: set[Reading]) -> None:
    assert {reading for reading, _ in readings(row(notes=notes))} == found


LORA = "LoRA fine-tuning r=16 on {}"
ALL_FOUR = "q_proj k_proj v_proj o_proj"


@pytest.mark.parametrize(
    ("notes", "cells"),
    [
        (f"{RECIPE.format('None', 'many', 'None:None')}", {}),
        (RECIPE.format("None", "None", "None:None oddword"), {}),
        ("schedule frobnicate", {}),
        ("sharding=QUX", {}),
        ("kernel=magic", {}),
        ("mtp_num_layers 3", {}),
        ("mtp layers=3", {}),
        # adapters where nothing but a framework's script reads them, on other products, and of other quantizers
        ("LoRA", {}),
        (LORA.format(ALL_FOUR), {}),
        (LORA.format("gate_proj"), {"framework": "HF Trainer + FSDP1 LoRA none"}),
        (LORA.format("q_proj v_proj"), {"framework": "TRL SFT"}),
        ("LoRA", {"framework": "TRL SFT"}),
        (LORA.format(ALL_FOUR), {"framework": "Megatron-Bridge 26.04"}),
        (
            f"QLoRA-hqq fine-tuning r=16 on {ALL_FOUR}",
            {"framework": "HF Trainer + FSDP1 QLoRA-hqq none"},
        ),
        ("framework_config=foak", {"framework": "HF Trainer + FSDP1 none"}),
        # 512, 128, 64 and 128 are DeepSeek's, which are priced
        ("MLA dims 256 128 64 128", {"model_name": "deepseek-v2-lite"}),
    ],
)
def test_a_value_that_the_reader_does_not_know_is_not_read(notes: str, cells: dict[str, str]) -> None:
    assert Reading.UNREAD in {reading for reading, _ in readings(row(notes=notes, **cells))}


@pytest.mark.parametrize(
    ("notes", "cells"),
    [
        ("sharding=SHARD_GRAD_OP; kernel=flash_attentionv1.0.8; kernel=fused", {}),
        ("schedule=1F1B-I", {}),
        ("no mtp", {}),
        ("mtp layers: 1", {}),
        (LORA.format(ALL_FOUR), {"framework": "HF Trainer + FSDP1 LoRA none"}),
        ("framework_config=none", {"framework": "HF Trainer + FSDP1 LoRA none"}),
        ("LoRA", {"framework": "NeMo LoRA"}),
        ("LORA", {"framework": "Megatron-Bridge 26.04"}),
        (LORA.format("all-linear"), {"framework": "Axolotl"}),
        ("MLA dims 512 128 64 128", {"model_name": "deepseek-v2-lite"}),
    ],
)
def test_a_value_that_the_reader_knows_is_read(notes: str, cells: dict[str, str]) -> None:
    assert {reading for reading, _ in readings(row(notes=notes, **cells))} == {Reading.TAKEN}


@pytest.mark.parametrize(
    ("column", "known", "strange"),
    [
        ("sp", ("0", "1", ""), "maybe"),
        ("flash_attention", ("0", "1", "unknown"), "2"),
        ("gated_mlp", ("0", "1"), "swish"),
        ("zero_stage", ("0", "3", ""), "9"),
        ("inter_node", ("single node", "8x200 Gb/s HDR", "EFA (not said)", "ConnectX IB", ""), "pigeons"),
        ("pp_chunks_of_its_own", ("", "unknown"), "4"),
    ],
)
def test_a_cell_that_nobody_reads_is_an_error_of_the_report(
    column: str, known: tuple[str, ...], strange: str
) -> None:
    for cell in known:
        assert readings(row(**{column: cell})) == []
    ((reading, what),) = readings(row(**{column: strange}))
    assert reading is Reading.UNREAD
    assert column in what


def test_the_report_counts_what_is_not_read_as_an_error() -> None:
    rows = [
        row(notes="hypersharding=5"),
        row(notes="hypersharding=6; CUDA graphs"),
        row(dataset="other", notes="PRETRAIN"),
    ]
    first, *others = stated_lines(rows)
    assert first == "settings in the notes: 1 read, 0 no setting here, 1 sets nothing, 2 not read"
    assert others == ["    2  ERROR, not read: hypersharding=#: made_up 2"]
