"""What an answer says of the question before its plans, and of the search after them."""

from dataclasses import replace

from profdb.sample import MachineFacts, ProfileDatabase
from solver.cluster_times import ClusterTimes
from solver.report.tables import question_lines, search_line
from solver.search import SearchResult
from spec.presets.registry import PRESETS
from spec.settings.job import AskedJob, job_of
from tests.solver.flat_cost_model import FlatCostModel
from tests.solver.questions import question

TIMES = ClusterTimes(
    cost_model=FlatCostModel(),
    profile=ProfileDatabase(machine=MachineFacts(gpu="flat", cluster="flat"), samples=()),
    source="made for this test",
)


def lines(*, assumed: bool = False, **settings: object) -> list[str]:
    here = question(preset=PRESETS["megatron"])
    asked = AskedJob(
        world_size=16,
        seq_len=1024,
        global_batch_tokens=65536,
        settings={key.replace("__", "."): value for key, value in settings.items()},
    )
    return question_lines(replace(here, job=job_of(asked)), TIMES, assumed_framework=assumed).splitlines()


def test_an_assumed_framework_is_said() -> None:
    assert "megatron preset (assumed; --framework names another)" in lines(assumed=True)[1]
    assert lines()[1].endswith("megatron preset")


def test_settings_that_are_not_the_framework_s_own_are_said_as_they_are_typed() -> None:
    assert not any(line.startswith("settings") for line in lines(dropout=False, precision__gradient="fp32"))
    said = lines(cuda_graphs=["mlp", "attn"], precision__recipe="fp8-current", precision__gradient="bf16")
    (told,) = (line for line in said if line.startswith("settings"))
    assert told == (
        "settings precision.gradient=bf16, precision.linear=fp8, precision.scale_recipe=tensor, "
        "precision.scaling=current, cuda_graphs=attn+mlp"
    )


def test_the_rate_counts_feasible_plans_alone() -> None:
    found = SearchResult(
        best=(),
        best_of_mode={},
        pareto=(),
        num_seen=400_000,
        num_priced=7_000,
        rejected={},
        nearest_miss="",
        seconds=2.0,
    )
    assert search_line(found) == (
        "400,000 plans seen, 7,000 feasible ones priced and the best of them proven in 2.00 s "
        "(3,500 feasible plans/s)"
    )
