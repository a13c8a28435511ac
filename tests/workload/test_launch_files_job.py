"""Every setting of a job is in an export, refused by it, or said to be left out."""

from dataclasses import replace
from functools import cache

import pytest

from solver.plans.plan_table import Plan
from solver.question import Question
from spec.errors import ExportError
from spec.model import MoeSpec
from spec.settings.job import AskedJob, job_of, job_settings
from tests.solver.questions import small_model
from tests.spec.settings.test_job import other_value
from tests.workload.settings.asking import asked, with_block
from workload.launch_files import EXPORTERS
from workload.settings.launch_file import PERMITS

DENSE = small_model(layers=8)
ROUTED = with_block(DENSE, mlp=None, moe=MoeSpec(num_experts=8, topk=2, expert_ffn_hidden=512))
DEALT = Plan(
    strategy="fsp", preset="megatron", tp=2, pp=4, dp=2, vpp=2, zero_stage=1, zero_size=2, num_micro=8
)
SENT = Plan(strategy="mtp", preset="megatron", cp=2, dp=2, ep=2, zero_stage=1, zero_size=4, num_micro=4)
SHARDED = Plan(strategy="mtp", preset="deepspeed", dp=4, zero_stage=2, zero_size=4, num_micro=4)
GATHERED = Plan(strategy="isp", preset="internevo", tp=2, wp=2, dp=2, zero_stage=1, zero_size=2, num_micro=4)
CASES: dict[tuple[str, str], list[Plan]] = {
    ("megatron", "megatron"): [DEALT, SENT],
    ("megatron", "zero-bubble"): [
        replace(DEALT, preset="zero-bubble"),
        replace(SENT, preset="zero-bubble"),
    ],
    ("deepspeed", "deepspeed"): [SHARDED],
    ("internevo", "internevo"): [GATHERED, replace(SENT, preset="internevo", cp=1, ep=1, zero_size=2)],
}


@cache
def questions(framework: str, plan: Plan, key: str) -> list[Question]:
    """The plan on both models, with every switch but ``key`` as the framework has it."""
    found = []
    for model in (DENSE, ROUTED):
        question = asked(plan, model=model)
        job = question.job
        settings = {key: other_value(key, framework)} if key else {}
        sizes = {name: getattr(job, name) for name in ("world_size", "seq_len", "global_batch_tokens")}
        found.append(replace(question, job=job_of(AskedJob(**sizes, framework=framework, settings=settings))))
    return found


def exports(exporter: str, framework: str, key: str = "") -> list[str]:
    texts = []
    for plan in CASES[exporter, framework]:
        for question in questions(framework, plan, key):
            try:
                texts.append(EXPORTERS[exporter].compose[framework](question, plan).text)
            except ExportError as error:
                texts.append(str(error))
    return texts


@pytest.mark.parametrize(("exporter", "framework"), CASES)
def test_no_setting_of_a_job_is_passed_over_in_silence(exporter: str, framework: str) -> None:
    own = exports(exporter, framework)
    assert any("has no setting" not in text for text in own)
    silent = [
        key
        for key in job_settings()
        if key not in PERMITS | CARRIED and exports(exporter, framework, key) == own
    ]
    assert silent == []


OVERLAPS = tuple(
    f"tensor_parallel.{name}"
    for name in (
        "overlap_ag",
        "overlap_rs",
        "overlap_rs_dgrad",
        "overlap_rs_method",
        "bulk_dgrad",
        "bulk_wgrad",
    )
)


@pytest.mark.parametrize("key", OVERLAPS)
def test_each_kind_of_overlap_is_said_where_there_is_any(key: str) -> None:
    def text(settings: dict[str, object]) -> str:
        question = asked(DEALT, model=DENSE)
        job = question.job
        sizes = {name: getattr(job, name) for name in ("world_size", "seq_len", "global_batch_tokens")}
        job = job_of(AskedJob(**sizes, framework="megatron", settings=settings))
        try:
            return EXPORTERS["megatron"].compose["megatron"](replace(question, job=job), DEALT).text
        except ExportError as error:
            return str(error)

    overlapped: dict[str, object] = {"tensor_parallel.overlap": True}
    assert text(overlapped) != text({**overlapped, key: other_value(key, "megatron")})


# Adapters are refused before there is an exporter (workload.launch_files.check_exports), scales and
# parameters held narrow act with narrow products, kinds of overlap where there is any, and of two settings of
# a bucket's size the larger.
CARRIED = frozenset(OVERLAPS) | frozenset(
    str.split(
        "adapter_rank adapted adapter_dropout adapter_dtype adapter_code precision.scale_recipe precision.scaling "
        "precision.narrow_parameters data_parallel.bucket_elements_per_rank"
    )
)


@pytest.mark.parametrize("key", sorted(PERMITS))
def test_what_only_permits_plans_leaves_an_export_as_it_is(key: str) -> None:
    assert exports("megatron", "megatron", key) == exports("megatron", "megatron")
