"""Settings of adapters that would change nothing, or nothing that is meant, are refused."""

from dataclasses import replace

import pytest

from solver.plans.rules import check_adapters
from spec.errors import ConfigError
from spec.readers.read_config import read_config
from tests.ops.layouts import job
from tests.solver.questions import ROOT, small_model


def test_frozen_weights_need_an_adapter() -> None:
    asked = job()
    frozen = replace(asked, precision=replace(asked.precision, frozen="nf4"))
    check_adapters(small_model(), asked)
    check_adapters(small_model(), replace(frozen, adapter_rank=8))
    with pytest.raises(ConfigError, match=r"precision\.frozen = 'nf4'.*adapter_rank above 0"):
        check_adapters(small_model(), frozen)


@pytest.mark.parametrize(
    "change",
    [
        {"adapted": frozenset({"up"})},
        {"adapter_dropout": True},
        {"adapter_dtype": "fp32"},
        {"adapter_code": "fused"},
    ],
)
def test_what_adapters_do_is_not_said_without_them(change: dict[str, object]) -> None:
    """Else a job that forgot the rank would be priced as training every weight."""
    check_adapters(small_model(), job(adapter_rank=8, **change))
    with pytest.raises(ConfigError, match=f"{next(iter(change))} = .*adapter_rank above 0"):
        check_adapters(small_model(), job(**change))


@pytest.mark.parametrize("names", [(), ("qkv", "q_k_v")])
def test_an_adapter_is_for_something_and_counted_once(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="of qkv and q_k_v one"):
        check_adapters(small_model(), job(adapter_rank=8, adapted=frozenset(names)))


@pytest.mark.parametrize(
    ("config", "names", "wrong"),
    [
        ("7B_llama2.py", ("q_k_v", "out", "up", "down"), ""),
        ("671B_deepseek_v3.toml", ("out", "up", "down"), ""),  # the first layers are dense
        ("671B_deepseek_v3.toml", ("qkv", "out"), "qkv"),
        ("2.7B_mamba2.toml", ("out",), "out"),
    ],
)
def test_every_name_is_a_product_of_the_model(config: str, names: tuple[str, ...], wrong: str) -> None:
    model = read_config(ROOT / "configs" / config).model
    asked = job(adapter_rank=8, adapted=frozenset(names))
    if not wrong:
        check_adapters(model, asked)
        return
    with pytest.raises(ConfigError, match=f"adapted = '{wrong}': products that "):
        check_adapters(model, asked)
