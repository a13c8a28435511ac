"""MaxText's remat policies by name."""

import pytest

from benchmarks.accuracy_rows.clauses import Reading, readings
from tests.benchmarks.made_up_rows import job_of_row, plans, row

ALONE = {"tp": "1", "pp": "1", "dp": "8", "zero_stage": "3"}


@pytest.mark.parametrize(
    ("cells", "kept"),
    [
        ({"notes": "remat_policy=save_qkv_proj", "recompute": "unknown"}, {"qkv"}),
        (
            {"notes": "remat_policy=minimal_with_context", "recompute": "full"},
            {"qkv", "context", "out", "up"},
        ),
        ({"notes": "remat=save_dot_except_mlp", "recompute": ""}, {"qkv", "out"}),
        ({"recompute": "minimal"}, {"qkv", "out", "up"}),
        ({"recompute": "full"}, set()),
        # configs/gpu/models/llama2_7b.yml, base.yml
        ({"recompute": "unknown", "model_name": "llama2-7b"}, {"qkv", "context", "out", "up"}),
        ({"recompute": "unknown", "model_name": "llama3.1-405b"}, set()),
    ],
)
def test_layers_run_again_but_for_what_the_policy_keeps(cells: dict[str, str], kept: set[str]) -> None:
    cells = {"framework": "MaxText", "notes": "", **ALONE, **cells}
    assert job_of_row(row(**cells)).preset.recomputation.keeps == kept
    assert {plan.recompute.value for plan in plans(**cells)} == {"full"}
    assert all(reading is Reading.TAKEN for reading, _ in readings(row(**cells)))


def test_an_unknown_policy_is_not_read() -> None:
    one = row(framework="MaxText", notes="remat_policy=minimal_offloaded", recompute="unknown")
    assert [reading for reading, _ in readings(one)] == [Reading.UNREAD]


def test_other_frameworks_have_no_policies() -> None:
    cells = {"framework": "Megatron-LM", "recompute": "none", "notes": "", **ALONE}
    assert {plan.recompute.value for plan in plans(**cells)} == {"none"}
