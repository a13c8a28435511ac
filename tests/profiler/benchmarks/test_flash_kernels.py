"""The name of a kernel is what runs: the best of the GPU's generation, or FlashAttention-2."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from profdb.cases import AttentionCase
from profiler.benchmarks import flash_kernels
from profiler.benchmarks.attention import flash_attn_forward
from profiler.benchmarks.flash_kernels import chosen
from profiler.device import Device


class Gpu(Device):
    """A GPU of some compute capability, without one."""

    major = 9

    @property
    def capability(self) -> tuple[int, int]:
        return (self.major, 0)


def gpu(major: int) -> Device:
    return type("Gpu", (Gpu,), {"major": major})(kind="cuda")


SECOND = SimpleNamespace(__name__="flash_attn", __version__="2.8.3")
THIRD = SimpleNamespace(__name__="flash_attn_interface")


@pytest.mark.parametrize(
    ("major", "kernel", "installed", "known", "runs"),
    [
        (8, "flash", [SECOND], [], "flash_attn 2.8.3"),
        (8, "flash", [], ["FA3", "FA4"], "torch scaled_dot_product_attention flash"),
        (9, "flash", [SECOND, THIRD], ["FA3"], "flash_attn_interface"),
        (9, "flash", [SECOND], ["FA3", "FA4"], "torch scaled_dot_product_attention FA3"),
        (9, "flash", [SECOND], [], "torch scaled_dot_product_attention cudnn"),
        (9, "flash2", [SECOND, THIRD], ["FA3"], "flash_attn 2.8.3"),
        (9, "flash2", [THIRD], ["FA3"], "torch scaled_dot_product_attention flash"),
        (9, "cudnn", [SECOND, THIRD], ["FA3"], "torch scaled_dot_product_attention cudnn"),
        (10, "flash", [SECOND, THIRD], ["FA4"], "torch scaled_dot_product_attention FA4"),
        (10, "flash", [SECOND, THIRD], ["FA3"], "torch scaled_dot_product_attention cudnn"),
        (10, "flash2", [], ["FA4"], "torch scaled_dot_product_attention flash"),
    ],
)
def test_a_name_stands_for_the_generation(
    major: int,
    kernel: str,
    installed: list[Any],
    known: list[str],
    runs: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packages = {package.__name__: package for package in installed}
    monkeypatch.setattr(flash_kernels, "optional_package", packages.get)
    monkeypatch.setattr(flash_kernels, "activated", lambda generation: generation in known)
    assert chosen(kernel, gpu(major)).name == runs


def test_a_generation_that_torch_knows_and_nobody_installed_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> None:
        raise ModuleNotFoundError("No module named 'flash_attn_interface'")

    monkeypatch.setattr(flash_kernels.attention, "activate_flash_attention_impl", absent, raising=False)
    monkeypatch.setattr(flash_kernels.attention, "list_flash_attention_impls", lambda: ["FA3"], raising=False)
    assert not flash_kernels.activated("FA3")
    assert not flash_kernels.activated("FA4")


@pytest.mark.parametrize(
    ("mask", "window"), [("causal", (-1, -1)), ("full", (-1, -1)), ("window", (4095, 0))]
)
def test_a_package_is_handed_the_mask_and_its_statistics_are_dropped(
    mask: str, window: tuple[int, int]
) -> None:
    seen: dict[str, Any] = {}

    def flash_attn_func(query: Any, key: Any, value: Any, **words: Any) -> Any:
        seen.update(words)
        return query, "statistics"

    case = AttentionCase(
        batch=1, q_len=8, kv_len=8, heads=1, kv_heads=1, qk_dim=8, v_dim=8, mask=mask, window=4096
    )
    package: Any = SimpleNamespace(flash_attn_func=flash_attn_func)
    tensor = torch.zeros(1)
    assert flash_attn_forward(case, package, torch.device("cpu"))(tensor, tensor, tensor) is tensor
    assert seen == {"causal": mask != "full", "window_size": window}
