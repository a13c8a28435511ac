"""A plan has one price: alone, in a ranking, and beside whatever other plans share its table."""

import random

import pytest

import solver
from spec.errors import UserError
from spec.files import shipped_folder
from spec.frameworks import framework_names

CONFIGS = shipped_folder() / "configs"
MODELS = sorted(path for ending in ("py", "json", "toml") for path in CONFIGS.glob(f"*.{ending}"))
CLUSTERS = sorted(path.stem for path in (CONFIGS / "clusters").glob("*.toml"))


def drawn_question(seed):
    """The first question after ``seed`` whose search finds a plan, with the search's result."""
    rng = random.Random(seed)
    while True:
        world = rng.choice([2, 4, 8, 16, 32])
        job = {
            "world_size": world,
            "global_batch_tokens": world * 2 * 4096,
            "seq_len": 4096,
            "framework": rng.choice(framework_names(legacy=True)),
            "precision": rng.choice(["bf16", "bf16", "bf16", "fp8-current"]),
        }
        try:
            question = solver.ask(model=rng.choice(MODELS), cluster=rng.choice(CLUSTERS), job=job)
            return question, question.search(top_k=20)
        except UserError:
            continue


def check_priced_alone(question, result):
    # Every third of them: of each part of the ranking, at a third of the time.
    for ranked in (*result.best, *result.pareto)[::3]:
        alone = question.price(ranked.plan.settings)
        label = ranked.plan.label()
        assert alone.step_s == pytest.approx(ranked.step_s, rel=1e-12), label
        assert alone.parts_s == pytest.approx(ranked.parts_s, rel=1e-9, abs=1e-9 * ranked.step_s), label
        assert alone.memory_bytes == pytest.approx(ranked.memory_bytes, rel=1e-12), label


def ask_tiny(model="tiny_internlm2.py", cluster="h100-sxm", **job):
    sizes = {"world_size": 8, "global_batch_tokens": 65536}
    return solver.ask(model=CONFIGS / model, cluster=cluster, job={**sizes, **job})


BY_NIGHT = [
    pytest.param(name, marks=pytest.mark.nightly) for name in ("torchtitan", "nanotron", "megatron-bridge", "fsdp")
]


@pytest.mark.parametrize("framework", ["megatron", "internevo", *BY_NIGHT])
def test_plans_of_one_table_do_not_change_each_other(framework):
    # Megatron-Core's ZeRO 0 and 1 run the same layers but for the hooks that overlapped gathers hang on them.
    question = ask_tiny(framework=framework, cluster="gb200-nvl72")
    check_priced_alone(question, question.search(top_k=20))


@pytest.mark.parametrize(
    "framework", ["fsdp", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("nanotron", "deepspeed"))]
)
def test_a_question_about_another_batch_changes_no_price(framework):
    batches = [65536, 4 * 65536]
    axes = {"model": CONFIGS / "tiny_internlm2.py", "cluster": "h100-sxm", "constraints": {"fix": {"cp": 1, "pp": 1}}}
    job = {"world_size": 8, "framework": framework}
    rows = solver.sweep({"global_batch_tokens": batches}, **axes, job={**job, "global_batch_tokens": batches[0]})
    for row, batch in zip(rows, batches, strict=True):
        alone = ask_tiny(framework=framework, global_batch_tokens=batch).price(row.answer.plan.settings)
        assert alone.step_s == pytest.approx(row.answer.step_s, rel=1e-12)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100))
def test_every_ranked_plan_of_a_drawn_search_has_its_price_alone(seed):
    check_priced_alone(*drawn_question(seed))
