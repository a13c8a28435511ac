"""The code keeps the rules of the house, and each rule is shown to see what it forbids."""

import re
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

from tests import rooms
from tests.architecture import RULES as FILE_RULES
from tests.architecture import Rule, Source, local_paths, project_files, python_sources
from tests.rooms import ORDER, PROJECT_RULES, ProjectRule
from tests.seams import SEAM_RULES

ROOT = Path(__file__).resolve().parents[1]
RULES = (*FILE_RULES, *SEAM_RULES)
SLASH = "/"  # so that the examples below are no local paths themselves

LONG_BODY = "".join(f"    x{i} = {i}\n" for i in range(41))

# rule, where the file lies, what it holds; every one of them must be reported
BAD = [
    ("imports_point_one_way", "spec/model.py", "import ops.op\n"),
    ("imports_point_one_way", "ops/groups.py", "from profdb.curve_book import CurveBook\n"),
    ("imports_point_one_way", "profdb/store/data_file.py", "def f():\n    from solver import plans\n"),
    ("imports_point_one_way", "solver/price.py", "from profiler.timing import measure\n"),
    ("imports_point_one_way", "profiler/sweep.py", "from solver.plans.plan_table import PlanTable\n"),
    ("imports_point_one_way", "workload/build.py", "import importlib\nimportlib.import_module('runner.replay')\n"),
    ("imports_point_one_way", "workload/replay.py", "import profiler\n"),
    ("imports_point_one_way", "runner/replay.py", "import simulation_train_formulaic\n"),
    ("imports_point_one_way", "ops/strategies/mtp.py", "from ...solver import plans\n"),
    ("imports_point_one_way", "spec/job.py", "from tests.conftest import tiny_model\n"),
    ("torch_is_imported_late", "profdb/store/data_file.py", "import torch\n"),
    ("torch_is_imported_late", "solver/search.py", "try:\n    from torch import nn\nexcept ImportError:\n    nn = None\n"),
    ("torch_is_imported_late", "ops/op.py", "class A:\n    import torch.distributed\n"),
    ("torch_is_imported_late", "simulation_train_formulaic.py", "from profiler.timing import measure\n"),
    ("torch_is_imported_late", "gen_profiler_data.py", "import torch\n"),
    ("only_scripts_at_the_top", "search.py", "x = 1\n"),
    ("files_are_short", "solver/search.py", "x = 1\n" * 301),
    ("functions_are_short", "solver/search.py", f"def f():\n{LONG_BODY}"),
    ("functions_are_short", "solver/search.py", f"class A:\n  async def f(self):\n{LONG_BODY}"),
    ("functions_take_few_parameters", "ops/op.py", "def f(a, b, c, /, d, e, *, g, h): ...\n"),
    ("functions_take_few_parameters", "ops/op.py", "class A:\n    def f(self, a, b, c, d, e, g, h): ...\n"),
    ("names_say_something", "solver/utils.py", ""),
    ("names_say_something", "profiler/comm_helper.py", ""),
    ("names_say_something", "spec/common/model.py", ""),
    ("errors_are_named", "spec/job.py", "try:\n    x = 1\nexcept:\n    x = 2\n"),
    ("errors_are_named", "spec/job.py", "try:\n    x = 1\nexcept Exception as error:\n    raise\n"),
    ("errors_are_named", "spec/job.py", "try:\n    x = 1\nexcept (ValueError, Exception):\n    x = 2\n"),
    ("errors_are_named", "spec/job.py", "try:\n    x = 1\nexcept BaseException:\n    x = 2\n"),
    ("modules_are_described", "spec/job.py", "x = 1\n"),
    ("modules_are_described", "spec/__init__.py", ""),
    ("operations_have_roles", "solver/times/overlap.py", "def f(op: Op):\n    return op.name.startswith('moe')\n"),
    ("operations_have_roles", "ops/block.py", "def f(item):\n    return 'norm' in item.kernel\n"),
    ("operations_have_roles", "workload/simai/export.py", "x = [item for item in a if item.name == 'step']\n"),
    ("architectures_are_files", "profdb/modelled/gemm.py", "wide = gpu.architecture.name == 'cpu'\n"),
    ("architectures_are_files", "profdb/modelled/gemm.py", "TILES = {'blackwell': (256, 256)}\n"),
    ("architectures_are_files", "ops/quantize.py", "def f(a):\n    return a in ('volta', x)\n"),
    ("architectures_are_files", "solver/price.py", "match a:\n    case 'Hopper':\n        x = 1\n"),
    ("architectures_are_files", "profiler/device.py", "PLATEAU_VOLTA = 1.9\n"),
    ("architectures_are_files", "benchmarks/accuracy_rows/job.py", "def f(is_ampere): ...\n"),
    ("benchmarks_ask", "benchmarks/accuracy_rows/job.py", "x = JobSpec(world_size=8)\n"),
    ("benchmarks_ask", "benchmarks/accuracy_rows/job.py", "x = spec.job.Precision(linear='fp8')\n"),
    ("benchmarks_ask", "benchmarks/speed.py", "x = FrameworkPreset(name='ours')\n"),
    ("benchmarks_ask", "benchmarks/speed.py", "x = MEGATRON.changed({'loss.fused': True})\n"),
    ("benchmarks_ask", "benchmarks/speed.py", "x = replace(job, precision=narrow)\n"),
    ("modules_hold_no_state", "spec/job.py", "x = 1\ndef f():\n    global x\n    x = 2\n"),
    ("modules_hold_no_state", "spec/job.py", "CACHE = {}\n"),
    ("modules_hold_no_state", "spec/job.py", "import collections\nSEEN: object = collections.defaultdict(list)\n"),
    ("strategies_are_asked", "solver/plans/rules.py", "x = 1 if plan.strategy == 'isp' else 2\n"),
    ("strategies_are_asked", "ops/block.py", "x = sharding.name is not 'mtp'\n"),
    ("strategies_are_asked", "workload/settings/megatron.py", "x = plan.strategy in ('mtp', 'fsp')\n"),
    ("strategies_are_asked", "ops/embedding_and_head.py", "x = {'mtp': 1, 'msp': 2}[sharding.name]\n"),
    ("strategies_are_asked", "benchmarks/speed.py", "x = 'msp' in preset.strategies\n"),
    ("strategies_are_asked", "workload/build.py", "match name:\n    case 'isp':\n        x = 1\n"),
]  # fmt: skip

# What lies beside the forbidden and is allowed: no rule may report any of it.
GOOD = [
    (
        "benchmarks/speed.py",
        '"""Doc."""\nx = job_of(AskedJob(framework="nemo"))\ny = Question(job=x, model=m)\n',
    ),
    (
        "spec/job.py",
        '"""Doc."""\nNAMES = {"a": 1}\n__all__ = ["NAMES"]\nALL = list(NAMES)\nONE = dict(a=1)\n',
    ),
    ("solver/price.py", '"""Doc."""\nfrom profdb.cases import GemmCase\nfrom . import plans\nimport numpy\n'),
    ("ops/strategies/mtp.py", '"""Doc."""\nfrom ..op import Op\nfrom spec.model import ModelSpec\n'),
    (
        "profdb/store/data_file.py",
        '"""Doc."""\ndef load():\n    """Doc."""\n    import torch\n    return torch\n',
    ),
    ("profdb/store/data_file.py", '"""Doc."""\nif TYPE_CHECKING:\n    import torch\n'),
    ("profiler/timing.py", '"""Doc."""\nimport torch\n'),
    ("runner/replay.py", '"""Doc."""\nimport torch\nfrom workload.items import Workload\n'),
    ("gen_profiler_data.py", '"""Doc."""\nfrom profiler.sweep import sweep\n'),
    ("spec/job.py", '"""Doc."""\nclass A:\n    """Doc."""\n    def f(self, a, b, c, d, e, g): ...\n'),
    ("spec/store.py", '"""Doc."""\ntry:\n    x = 1\nexcept BaseException:\n    x = 2\n    raise\n'),
    ("profdb/database.py", '"""Doc."""\n' + "# line\n" * 299),
    (
        "profdb/modelled/gemm.py",
        '"""Faster on Hopper."""\nwide = one.architecture.name == other.architecture.name\ncanada = "cpu"\n',
    ),
    ("tests/spec/test_gpu.py", "HOPPER = read_architecture('hopper')\n"),
    ("ops/strategies/sequence_parallel.py", '"""Doc."""\nx = {"msp": 1}\ny = name == "fsp"\n'),
    (
        "solver/answer/mfu.py",
        '"""Doc."""\nx = Plan(strategy="mtp")\ny = plan.strategy in preset.strategies\nz = ("mtp", "fsp")\n',
    ),
    ("tests/spec/test_job.py", "def test_x(a, b, c, d, e, f, g): ...\n"),
]


@cache
def project() -> list[Source]:
    """Every file of the project, parsed once for all rules."""
    return python_sources(ROOT)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_project_keeps_rule(rule: Rule) -> None:
    broken = [line for source in project() for line in rule(source)]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("rule", PROJECT_RULES, ids=lambda rule: rule.__name__)
def test_project_keeps_rule_between_files(rule: ProjectRule) -> None:
    broken = list(rule(project()))
    assert not broken, "\n".join(broken)


# rule, files of a project that breaks it once, where
BAD_PROJECTS = [
    (
        "files_have_no_circle",
        {"ops/op.py": "from ops import block\n", "ops/block.py": "def f():\n    import ops.op\n"},
        "ops.block",
    ),
    (
        "files_have_no_circle",
        {"spec/a.py": "import spec.b\n", "spec/b.py": "from spec.c import x\n", "spec/c.py": "from . import a\n"},
        "spec.a",
    ),
    (
        "rooms_point_one_way",
        {"ops/strategies/mtp.py": "x = 1\nfrom ops.recompute.layers import y\n", "ops/recompute/layers.py": ""},
        "ops/strategies/mtp.py:2",
    ),
    (
        "rooms_point_one_way",
        {"solver/plans/space.py": "from solver import price\n", "solver/price.py": ""},
        "solver/plans/space.py:1",
    ),
    (
        "rooms_point_one_way",
        {"solver/answer/answer.py": "from solver.search import x\n", "solver/search.py": ""},
        "solver/answer/answer.py:1",
    ),
    ("rooms_point_one_way", {"solver/attic/box.py": "x = 1\n"}, "solver/attic/box.py:1"),
    ("rooms_are_small", {f"solver/plans/a{i}.py": "" for i in range(16)}, "solver/plans"),
    ("tests_are_found_by_name", {"tests/ops/test_opus.py": "", "ops/op.py": ""}, "tests/ops/test_opus.py:1"),
    ("tests_are_found_by_name", {"tests/ops/experts/test_op.py": "", "ops/op.py": ""}, "tests/ops/experts/test_op.py:1"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "files", "place"), BAD_PROJECTS)
def test_rule_between_files_reports_what_it_forbids(
    rule: str, files: dict[str, str], place: str, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (reported,) = getattr(rooms, rule)(python_sources(tmp_path))
    assert reported.startswith(f"{place}:")


def test_every_rule_between_files_has_a_bad_example() -> None:
    assert {rule.__name__ for rule in PROJECT_RULES} == {rule for rule, _, _ in BAD_PROJECTS}


def test_rules_between_files_pass_what_is_allowed(tmp_path: Path) -> None:
    files = {
        "solver/search.py": "from solver.answer.answer import a\nfrom solver.plans import space\nimport solver.request\n",
        "solver/request.py": "",
        "solver/answer/answer.py": "from solver.plans.space import b\nimport spec.units\n",
        "solver/plans/space.py": "from solver.plans.rules import c\n",
        "solver/plans/rules.py": "",
        "ops/op.py": "from ops.strategies.mtp import d\n",
        "ops/strategies/mtp.py": "from ops.layout import e\n",
        "ops/layout.py": "",
        "spec/units.py": "",
        "tests/ops/strategies/test_mtp.py": "",
        "tests/ops/strategies/test_mtp_overlap.py": "",
        "tests/test_end_to_end.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    order = [line for rule in PROJECT_RULES for line in rule(python_sources(tmp_path))]
    assert order == ["solver/search.py:3: search must not import request, which comes after it"]


def test_the_drawing_of_the_rooms_is_theirs() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = page[page.index("\nspec      ") : page.index("Between files there is no circle")]
    lines = drawn.replace("\n          <-", " <-").strip("`\n ").splitlines()
    assert {line.split()[0]: tuple(re.findall(r"[\w/]+", line)[1:]) for line in lines} == ORDER


def test_project_names_no_local_path() -> None:
    broken = [line for path in project_files(ROOT) for line in local_paths(path)]
    assert not broken, "\n".join(broken)


def written(folder: Path, place: str, text: str) -> Source:
    """The source as the walk over a project reads it from disk."""
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    (source,) = python_sources(folder)
    assert source.path == PurePosixPath(place)
    return source


@pytest.mark.parametrize(("rule", "place", "text"), BAD)
def test_rule_reports_what_it_forbids(rule: str, place: str, text: str, tmp_path: Path) -> None:
    (found,) = (one for one in RULES if one.__name__ == rule)
    reported = list(found(written(tmp_path, place, text)))
    assert len(reported) == 1
    assert reported[0].startswith(f"{place}:")


def test_every_rule_has_a_bad_example() -> None:
    assert {rule.__name__ for rule in RULES} == {rule for rule, _, _ in BAD}


@pytest.mark.parametrize(("place", "text"), GOOD)
def test_rules_pass_what_is_allowed(place: str, text: str, tmp_path: Path) -> None:
    source = written(tmp_path, place, text)
    assert [line for rule in RULES for line in rule(source)] == []


def test_model_configurations_are_data(tmp_path: Path) -> None:
    config = tmp_path / "configs" / "_base_" / "model.py"
    config.parent.mkdir(parents=True)
    config.write_text("x = {}\n", encoding="utf-8")
    assert python_sources(tmp_path) == []


@pytest.mark.parametrize(
    "text",
    [
        f"open('{SLASH}work/data.pt')",
        f"cd {SLASH}tmp",
        f"path={SLASH}home/ann/model",
        f"{SLASH}Users/ann:",
        f"\0\1x {SLASH}root/.cache",
    ],
)
def test_local_path_is_reported(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(text.encode("latin-1"))
    assert len(list(local_paths(path))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "../home/someone/data.pt",
        "https://x.org/home/ann/",
        "workload/root/x",
        "$HOME/tmp/x",
        "seconds /work_s",
    ],
)
def test_relative_path_is_no_local_path(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text(text, encoding="utf-8")
    assert list(local_paths(path)) == []
