"""How a row's experts exchange, and what hides it: as stated, or as the framework's recipes set it."""

import pytest

from tests.benchmarks.accuracy_rows.test_recipes import AUTOMODEL, EXPERTS, job_of_row
from tests.benchmarks.made_up_rows import row


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        ({"notes": "dispatcher=hybridep"}, "hybridep"),
        ({"notes": "dispatcher=None", "model_name": "deepseek-v3"}, "all_to_all"),
        ({"model_name": "deepseek-v3", "gpu": "B200-SXM"}, "hybridep"),
        ({"model_name": "deepseek-v3", "gpu": "H100-80GB"}, "hybridep"),
        ({"model_name": "deepseek-v3", "gpu": "H100-80GB", "framework": "Megatron-Bridge 25.11"}, "deepep"),
        ({"model_name": "kimi-k2", "gpu": "B200-SXM"}, "all_to_all"),
        ({"model_name": "qwen3-235b-a22b", "gpu": "GB200"}, "hybridep"),
        ({"model_name": "qwen3-30b-a3b", "gpu": "H100-80GB"}, "deepep"),
        (
            {"model_name": "qwen3-30b-a3b", "gpu": "H100-80GB", "framework": "Megatron-Bridge 26.02.01"},
            "hybridep",
        ),
        ({"model_name": "deepseek-v3", "framework": "Megatron-Bridge 25.09"}, "all_to_all"),
        ({"model_name": "deepseek-v3", "gpu": "H100-80GB", "framework": "Megatron-Bridge 25.09"}, "deepep"),
        ({"model_name": "gpt-oss-120b"}, "all_to_all"),
        (AUTOMODEL, "deepep"),
        ({"framework": "Megatron-Core"}, "all_to_all"),
    ],
)
def test_the_dispatcher_is_the_stated_one_or_the_recipes(cells: dict[str, str], kind: str) -> None:
    one = row(**EXPERTS | {"framework": "Megatron-Bridge 26.02"} | cells)
    assert job_of_row(one).moe_dispatcher == kind


@pytest.mark.parametrize(
    ("model", "framework", "router"),
    [
        ("deepseek-v3", "Megatron-Bridge 26.02", "fp32"),
        ("qwen3_next_80b_a3b", "Megatron-Bridge 26.02", "fp32"),
        ("qwen3-30b-a3b", "Megatron-Bridge 26.02", ""),
        ("deepseek-v3", "Megatron-Core", ""),
    ],
)
def test_models_of_megatron_bridge_say_in_which_format_they_route(
    model: str, framework: str, router: str
) -> None:
    one = row(**EXPERTS | {"framework": framework, "model_name": model})
    assert job_of_row(one).precision.router == router


@pytest.mark.parametrize(
    ("cells", "across", "shared"),
    [
        ({"notes": "moe_a2a_overlap=True dispatcher=deepep"}, True, False),
        ({"notes": "moe_a2a_overlap=None dispatcher=None", "model_name": "deepseek-v3"}, False, True),
        ({"model_name": "qwen3-30b-a3b", "gpu": "H100-80GB"}, True, False),
        ({"model_name": "qwen3-30b-a3b", "gpu": "H100-80GB", "notes": "variant: tokendrop"}, False, False),
        ({"model_name": "qwen3-30b-a3b", "gpu": "H100-80GB", "notes": "moe_a2a_overlap=False"}, False, False),
        ({"model_name": "qwen3-30b-a3b", "gpu": "GB200"}, False, False),
        (
            {"model_name": "deepseek-v3", "gpu": "H100-80GB", "framework": "Megatron-Bridge 25.09"},
            True,
            False,
        ),
        (
            {
                "model_name": "deepseek-v3",
                "gpu": "B200",
                "notes": "tokendrop",
                "framework": "Megatron-Bridge 25.09",
            },
            False,
            True,
        ),
        ({"model_name": "kimi-k2", "gpu": "B200-SXM"}, False, True),
        ({"model_name": "kimi-k2", "gpu": "GB200"}, False, False),
        ({"model_name": "deepseek-v3", "framework": "Megatron-Core"}, False, False),
    ],
)
def test_what_hides_an_exchange_is_as_stated_or_as_the_recipes_set_it(
    cells: dict[str, str], across: bool, shared: bool
) -> None:
    """Shared experts beside the exchange, unless tokens travel once or another micro-batch hides it."""
    job = job_of_row(row(**EXPERTS | {"framework": "Megatron-Bridge 26.02"} | cells))
    assert (job.overlap_expert_a2a, job.delay_wgrad, job.overlap_shared_experts) == (across, across, shared)
