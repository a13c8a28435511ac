"""A plan as a SimAI file: clean by the checker, its seconds those priced, and nothing left out in silence."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import assume, given, settings

from ops.op import Axis
from ops.recompute import Recompute
from ops.roles import Role
from solver.plans.plan_table import Plan
from spec.errors import ExportError
from spec.readers.read_config import read_config
from tests.solver.questions import ROOT, question
from tests.workload.generator import made
from tests.workload.random_plans import Case, cases, priced_bytes
from tests.workload.settings.problems import asked
from tests.workload.test_launch_files import FORMS
from workload.aicb.plan_rows import COMM_NAMES, GROUP_NAMES, GeneralOptions, general_items
from workload.simai.busbw import SHIPPED, read_ratio_tables, simai_network
from workload.simai.check import check_simai
from workload.simai.closed_form import AnalyticalOptions, price_simai
from workload.simai.export import beyond_of, export_simai, export_works, fits_format, group_of_item, header_of, rows_of
from workload.simai.format import PREFIXES, SimaiGroup, SimaiHeader, SimaiPass, read_token
from workload.simai.reader import read_simai, usable_workload
from workload.stage_work import StageWork, stage_works


@given(case=cases())
def test_the_checker_finds_no_defect(case: Case, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("simai") / "w.txt"
    assume((case.plan.dp * case.plan.cp) % case.plan.ep == 0)
    exported = export_simai(case.problem, case.plan, path, strict=False)
    # SimAI takes forward sizes below 4,096 bytes for 4,096, which its fixed times do not notice.
    assert {finding.code for finding in check_simai(read_simai(path))} <= {"forward-floor"}
    assert len(path.read_text().splitlines()) == 2 + exported.rows
    # What SimAI books a row by is its forward's group (Layer.cc: TP unless that is EP).
    for row in usable_workload(read_simai(path)).rows:
        ahead, back = (read_token(row.comm(each)[0], each)[1] for each in (SimaiPass.FORWARD, SimaiPass.INPUT_GRAD))
        assert back in (SimaiGroup.NONE, ahead) or (back, ahead) == (SimaiGroup.TP, SimaiGroup.NONE)


def test_gathers_of_sharded_weights_are_rows_over_data(tmp_path: Path) -> None:
    plan = Plan(strategy="mtp", preset="fsdp", dp=16, zero_stage=3, zero_size=16, num_micro=4)
    path = tmp_path / "w.txt"
    exported = export_simai(asked(plan), plan, path, strict=True)
    cells = [line.split("\t") for line in path.read_text().splitlines()[2:]]
    gathered = sum(int(row[10]) for row in cells if row[9] == "ALLGATHER")
    work = stage_works(asked(plan), plan)[0]
    assert gathered == sum(
        times * item.total_bytes for times, item in work.per_step() if "gather" in str(item.collective)
    )
    assert exported.beyond == ()


def test_compute_seconds_in_the_file_are_the_seconds_priced(tmp_path: Path) -> None:
    plan = Plan(strategy="fsp", preset="internevo", tp=4, dp=4, micro_batch=2, num_micro=8)
    asked = question(world_size=16, sequences=64)
    work = stage_works(asked, plan)[0]
    path = tmp_path / "w.txt"
    export_simai(asked, plan, path, strict=False)
    cells = [line.split("\t") for line in path.read_text().splitlines()[2:]]
    written_s = sum(int(row[2]) + int(row[5]) + int(row[8]) for row in cells) * 1e-9
    priced_s = sum(times * item.seconds for times, item in work.per_step() if item.collective is None)
    # Every cell is rounded to a nanosecond.
    assert written_s == pytest.approx(priced_s, abs=3e-9 * len(cells))


def test_strict_export_refuses_what_the_format_cannot_say(tmp_path: Path) -> None:
    plan = Plan(strategy="isp", preset="internevo", tp=1, wp=8, dp=16, micro_batch=1, num_micro=4)
    path = tmp_path / "w.txt"
    with pytest.raises(ExportError, match=r"attention\.qkv\.weight"):
        export_simai(question(), plan, path, strict=True)
    assert not path.exists()


def test_nothing_is_written_for_groups_of_one(tmp_path: Path) -> None:
    plan = Plan(strategy="mtp", preset="internevo", tp=1, dp=1, micro_batch=1, num_micro=4)
    path = tmp_path / "w.txt"
    exported = export_simai(question(world_size=1, sequences=4), plan, path, strict=True)
    assert exported.beyond == ()
    assert {word for line in path.read_text().splitlines()[2:] for word in line.split("\t")[3::3][:3]} == {"NONE"}


# The header says the plan's degrees, the side file's figures count every micro-batch, groups have their names.

PLAN = "--model_size 7 --num_layers 8 --world_size 16 --tp_num 2 --pp_num 2 --num_query_groups 32"


def test_the_header_says_the_plan() -> None:
    result = made(f"{PLAN} --virtual_pipeline_model_parallel_size 2 --global_batch 16 --enable_sequence_parallel")
    header = header_of(result.plan, result.works[0])
    assert (header.tp, header.pp, header.vpp, header.ga, header.all_gpus) == (2, 2, 2, 4, 16)
    assert header.pp_comm_bytes == 2 * 2048 * 4096 // 2


def test_transfers_between_stages_count_every_micro_batch() -> None:
    for batch in (16, 32):
        result = made(f"{PLAN} --global_batch {batch} --enable_sequence_parallel")
        work = result.works[0]
        header = header_of(result.plan, work)
        (hops,) = (one for one in beyond_of(work, header, result.plan) if one.collective == "p2p")
        assert hops.count == 2 * batch // 4
        assert hops.total_bytes == hops.count * header.pp_comm_bytes
        assert hops.seconds == pytest.approx(hops.count * work.p2p_s)


def test_what_no_row_holds_lasts_as_long_as_all_its_micro_batches() -> None:
    taken = []
    for batch in (16, 32):
        result = made(
            f"--model_size 7 --num_layers 4 --world_size 16 --context_parallel_size 2 --global_batch {batch} "
            "--cluster h200 --aiob_enable"
        )
        beyond = beyond_of(result.works[0], header_of(result.plan, result.works[0]), result.plan)
        taken.append({one.what: one.seconds for one in beyond if one.axis == "cp"})
    assert taken[0]
    assert taken[1] == pytest.approx({what: 2 * seconds for what, seconds in taken[0].items()})
    assert all(seconds > 0 for seconds in taken[0].values())


# Bytes written plus bytes listed are the bytes priced, for models and plans of every kind.

COLLECTIVE_NAMES = {kind.value: name for kind, name in COMM_NAMES.items()}


def exported_bytes(work: StageWork, header: SimaiHeader, plan: Plan) -> Counter[tuple[str, SimaiPass]]:
    """Bytes in the rows by word and column."""
    totals: Counter[tuple[str, SimaiPass]] = Counter()
    for row in rows_of(work, header, plan):
        for column in SimaiPass:
            token, size_bytes = row.comm(column)
            if size_bytes:
                totals[(token, column)] += size_bytes
    return totals


def simai_holds_every_byte(case: Case, work: StageWork, priced: dict[tuple[str, str], int]) -> None:
    header = header_of(case.plan, work)
    listed: Counter[tuple[str, str]] = Counter()
    for one in beyond_of(work, header, case.plan):
        if one.what != "pipeline transfers":
            listed[(one.collective, one.axis)] += one.total_bytes
    # What is not listed must lie in the file, under the word and group of its axis.
    expected: dict[tuple[str, SimaiGroup], float] = {}
    groups = {
        (item.collective.value, item.axis.value): (group_of_item(item, header, case.plan), item.ranks)
        for _, item in work.per_step()
        if item.collective and fits_format(item, header, case.plan)
    }
    for kind, size in priced.items():
        rest = size - listed.pop(kind, 0)
        assert rest >= 0
        if rest:
            group, ranks = groups[kind]
            # Experts' replicas may be others than SimAI's group has: each sends as many bytes in a ring.
            sent = rest * (ranks - 1) / ranks
            others = header.group_ranks(group)
            expected[kind[0], group] = expected.get((kind[0], group), 0) + sent * others / (others - 1)
    assert not listed
    written: Counter[tuple[str, SimaiGroup]] = Counter()
    for (token, column), size in exported_bytes(work, header, case.plan).items():
        collective, group = read_token(token, column)
        assert collective in PREFIXES.values()
        written[(collective.value, group)] += size
    # rows of whole bytes, where a ring of replicas would send a fraction
    assert written == pytest.approx(expected, rel=1e-9, abs=32.0)


def general_holds_every_byte(case: Case, work: StageWork, priced: dict[tuple[str, str], int]) -> None:
    expected: Counter[tuple[str, str]] = Counter()
    for (collective, axis), size in priced.items():
        expected[(COLLECTIVE_NAMES[collective], GROUP_NAMES[Axis(axis)])] += size
    written: Counter[tuple[str, str]] = Counter()
    hops = 0
    for item in general_items(case.plan, work, GeneralOptions()):
        if item.additional:
            hops += item.msg_size
        elif item.stage != "init" and item.comm_group:
            written[(item.comm_type, item.comm_group)] += item.msg_size * item.count
    assert written == expected
    # A hop is sent by one stage and received by the next; every chunk has two neighbours but the
    # model's ends.
    ends = int(work.position == 0) + int(work.position == case.plan.pp - 1)
    links = 2 * case.plan.vpp - ends if case.plan.pp > 1 else 0
    assert hops == 2 * links * case.plan.num_micro * work.p2p_bytes
    assert work.p2p_messages == 2 * links


@settings(max_examples=settings.default.max_examples // 2)
@given(case=cases())
def test_every_byte_by_collective_and_group(case: Case) -> None:
    every_byte_is_written(case)


@pytest.mark.nightly
@settings(max_examples=4 * settings.default.max_examples)
@given(case=cases())
def test_every_byte_of_many_plans(case: Case) -> None:
    every_byte_is_written(case)


def every_byte_is_written(case: Case) -> None:
    for work in stage_works(case.problem, case.plan):
        priced = priced_bytes(case, work.position)
        simai_holds_every_byte(case, work, priced)
        general_holds_every_byte(case, work, priced)


# A file of every kind, as SimAI's binary adds it up.

# Flags of generate; microseconds of dp, dp_ep, tp, ep, pp, the bubble, compute, exposed communication and the step, as
# printed by SimAI_analytical of commit f5efb5a9 (-g 32 -g_p_s 8 -n_p_s 8 -nv 360 -nic 48.5 -dp_o 0.3 -tp_o 0.1 -ep_o 0.2)
# for the file of these flags. Compute takes no time: it is not SimAI's to say, and other operations leave these as they are.
BINARY = """
--model_size 7 --tp 4 --sp --zero1: 9532 0 19243 0 0 0 0 28775 28775
--model_size 7 --tp 4: 12709 0 8697 0 0 0 0 21406 21406
--model_size 7 --tp 2 --sp --recompute_full: 13178 0 8686 0 0 0 0 21864 21864
--model_size 7 --tp 2 --pp 2 --sp --zero1: 5671 0 6187 0 0 781 0 11859 12640
--model_size 8 --tp 2 --pp 2 --virtual_pipeline_model_parallel_size 2 --sp: 11310 0 6187 0 0 391 0 17497 17888
--model_size moe --tp 2 --ep 4 --sp --zero1: 4066 42622 7305 3415 0 0 0 57409 57409
--model_size moe --tp 2 --ep 4 --expert_tensor_parallel_size 1 --sp --zero1: 4066 99452 3624 3415 0 0 0 110558 110558
--model_size deepseek16 --tp 2 --ep 8 --sp --zero1: 5663 4186 7306 13341 0 0 0 30496 30496
--model_size 8 --tp 2 --context_parallel_size 2 --sp: 24235 0 6544 0 0 0 0 30779 30779
--frame DeepSpeed --model_size 7 --stage 1: 10466 0 0 0 0 0 0 10466 10466
--frame DeepSpeed --model_size 7 --stage 2: 17444 0 0 0 0 0 0 17444 17444
--frame DeepSpeed --model_size 7 --stage 3: 20933 0 0 0 0 0 0 20933 20933
--frame FSDP --model_size 7 --stage 3: 19226 0 0 0 0 0 0 19226 19226
"""
BINARY_OPTIONS = AnalyticalOptions(
    network=simai_network(gpus_per_server=8, nics_per_server=8, nvlink_gib=360, nic_gib=48.5),
    ratios=read_ratio_tables(ROOT / SHIPPED),
    dp_overlap=0.3,
    tp_overlap=0.1,
    ep_overlap=0.2,
)
KIND = "--num_layers 4 --world_size 32 --global_batch 64 --use_flash_attn --fixed_time_us 0"


@pytest.mark.parametrize("line", BINARY.strip().splitlines())
def test_a_file_of_each_kind_costs_what_the_binary_prints(line: str, tmp_path: Path) -> None:
    words, printed = line.replace("--zero1", "--use_distributed_optimizer").split(": ")
    result = made(f"{words} {KIND}")
    path = tmp_path / "w.txt"
    export_works(result.plan, result.works, path, strict=False)
    times = price_simai(usable_workload(read_simai(path)), BINARY_OPTIONS)
    parts = (times.dp_us, times.dp_ep_us, times.tp_us, times.ep_us, times.pp_us, times.bubble_us, times.compute_us)
    assert [f"{each:.0f}" for each in (*parts, times.exposed_us, times.total_us)] == printed.split()
    assert f"{times.total_s * 1e6:.0f}" == printed.split()[-1]


def test_replicas_of_whole_experts_send_as_many_bytes() -> None:
    """Experts that tp does not cut have 8 replicas; SimAI's group of dp / ep has 4 of them."""
    result = made(f"--model_size moe --tp 2 --ep 4 --expert_tensor_parallel_size 1 --sp {KIND}")
    header = header_of(result.plan, result.works[0])
    (item,) = (item for item in result.works[0].step if item.axis is Axis.EDP)
    written = [
        row.weight_grad_bytes for row in rows_of(result.works[0], header, result.plan) if "_EP" in row.weight_grad_comm
    ]
    assert (item.ranks, header.group_ranks(SimaiGroup.DP_EP)) == (8, 4)
    assert sum(written) * 3 / 4 == item.total_bytes * 7 / 8


# A workload of thousands of GPUs is written row by row.

# The peak since this program began (VmHWM); ru_maxrss would count the process that started it.
SCRIPT = """
import re, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import run_workload
code = run_workload.main(sys.argv[2:])
print("MiB", int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024)
sys.exit(code)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc")
@pytest.mark.parametrize("form", ["simai", pytest.param("general", marks=pytest.mark.nightly)])
def test_4096_gpus_and_64_micro_batches_stay_below_500_mb(form: str, tmp_path: Path) -> None:
    # 4,096 GPUs, tp 8, pp 8: 64 data-parallel ranks, 64 micro-batches each
    words = (
        "generate --model_size 175 --world_size 4096 --tp_num 8 --pp_num 8 --sp --use_flash_attn "
        f"--use_distributed_optimizer --global_batch 4096 --format {form} --output {tmp_path}/w"
    )
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(ROOT), *words.split()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    peak = int(done.stdout.split("MiB ")[1])
    assert peak < 500
    with (tmp_path / "w").open() as handle:
        assert sum(1 for _ in handle) > 64 * 12


# What a search finds beyond degrees (layers dealt anew, parts or layers run again) as a SimAI workload:
# each stage's own layers, every priced byte, and what runs again in the backward of the layers that do.

LAYERS = {"layout": (14, 18), "modules": (14, 18), "layers": (14, 18), "alone": (32,)}


def refined(form: str, **changes: object) -> Case:
    fields = FORMS[form] | changes
    plan = Plan(strategy="mtp", preset="megatron", tp=2, dp=2, zero_stage=1, zero_size=2, **fields)
    return Case(problem=asked(plan, model=read_config(ROOT / "configs" / "8B_llama3.py").model), plan=plan)


def products(work: StageWork, *, backward: bool) -> int:
    """Products and attention calls of a micro-batch's pass."""
    passes = ((piece.repeat, piece.backward if backward else piece.forward) for piece in work.pieces)
    return sum(times * sum(bool(item.shape) or item.role is Role.CORE for item in one) for times, one in passes)


@pytest.mark.parametrize("form", ["chunks", *LAYERS])
def test_stages_have_their_layers_and_every_byte(form: str, tmp_path: Path) -> None:
    case = refined(form)
    works = stage_works(case.problem, case.plan)
    dealt = [sum(piece.repeat for piece in work.pieces if piece.name.startswith("block")) for work in works]
    if form == "chunks":
        assert [work.chunk_layers for work in works] == [((7,), (9,)), ((8,), (8,))]
        assert dealt == [16, 16]
    else:
        assert tuple(dealt) == LAYERS[form]
    every_byte_is_written(case)
    path = tmp_path / "w.txt"
    for place, work in enumerate(works):
        export_simai(case.problem, case.plan, path, strict=False, stage=str(place))
        assert len(read_simai(path).rows) > sum(piece.repeat for piece in work.pieces)


@pytest.mark.parametrize("form", ["layers", "alone", "modules"])
def test_what_runs_again_runs_in_the_backward(form: str) -> None:
    """The first layers of each chunk that run again, or a part of every layer, and nothing else."""
    plain = {"recompute": Recompute.NONE, "num_recompute_layers": 0, "recompute_modules": ()}
    case, other = refined(form), refined(form, **plain)
    again = case.plan.num_recompute_layers * case.plan.vpp
    for work, without in zip(stage_works(case.problem, case.plan), stage_works(other.problem, other.plan), strict=True):
        more = products(work, backward=True) - products(without, backward=True)
        assert products(work, backward=False) == products(without, backward=False)
        layers = sum(piece.repeat for piece in work.pieces if piece.name.startswith("block"))
        (block,) = (piece for piece in without.pieces if piece.name.startswith("block"))
        each = sum(bool(item.shape) or item.role is Role.CORE for item in block.forward)
        assert more == (layers * 2 if form == "modules" else again * each)
