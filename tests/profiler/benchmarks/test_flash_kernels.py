"""The name of a kernel is what runs: the best of the GPU's generation, or FlashAttention-2."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from profdb.cases import AttentionCase
from profiler.benchmarks import attention, flash_kernels, optional_packages
from profiler.benchmarks.attention import (
    Order,
    attention_operands,
    flash_attn_forward,
    launch_attention,
    torch_varlen_forward,
)
from profiler.benchmarks.flash_kernels import FlashKernel, candidates
from profiler.benchmarks.launched import UnsupportedCaseError
from profiler.device import Device
from tests.profiler.benchmarks.signatures import checked
from tests.profiler.fakes import device_like


def gpu(major: int) -> Device:
    return device_like(capability=(major, 0))


SECOND = SimpleNamespace(__name__="flash_attn", __version__="2.8.3", flash_attn_func=None)
THIRD = SimpleNamespace(__name__="flash_attn_interface", flash_attn_func=None)
EMPTY = SimpleNamespace(__name__="flash_attn")  # what flash-attn-4 leaves: flash_attn.cute and no more


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
        (10, "flash2", [EMPTY], ["FA4"], "torch scaled_dot_product_attention flash"),
        (8, "flash", [EMPTY], [], "torch scaled_dot_product_attention flash"),
    ],
)
def test_a_name_stands_for_the_generation(
    major: int, kernel: str, installed: list[Any], known: list[str], runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = {package.__name__: package for package in installed}
    monkeypatch.setattr(flash_kernels, "optional_package", packages.get)
    monkeypatch.setattr(flash_kernels, "activate_generation", lambda generation: generation in known)
    assert candidates(kernel, "causal", gpu(major))[0].name == runs


SDPA = "torch scaled_dot_product_attention"


@pytest.mark.parametrize(
    ("major", "mask", "installed", "listed"),
    [
        # heads of 192 go to FlashAttention-2 where cuDNN has none; of 192 and 128 to the memory-efficient kernel on
        # Ampere, where FlashAttention-2 and cuDNN (128 at most) have none
        (8, "causal", [SECOND], ["flash_attn 2.8.3", f"{SDPA} cudnn", f"{SDPA} efficient"]),
        (9, "causal", [], [f"{SDPA} cudnn", f"{SDPA} flash", f"{SDPA} efficient"]),
        (9, "window", [THIRD], ["flash_attn_interface", f"{SDPA} flash"]),
        (9, "varlen", [SECOND], ["flash_attn 2.8.3"]),
    ],
)
def test_a_case_goes_to_the_next_best_that_takes_its_mask(
    major: int, mask: str, installed: list[Any], listed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = {package.__name__: package for package in installed}
    monkeypatch.setattr(flash_kernels, "optional_package", packages.get)
    monkeypatch.setattr(flash_kernels, "activate_generation", lambda generation: False)
    assert [one.name for one in candidates("flash", mask, gpu(major))] == listed


def test_the_first_that_takes_the_shape_runs_under_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLA's heads of 192 and 128: refused by the first forward of one kernel and by the first backward of another."""

    class Refuses(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
            return query[..., :8] + value

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            raise RuntimeError("no backward of 192 and 128")

    def no_forward(*tensors: Any, **words: Any) -> Any:
        raise ValueError("heads of one size only\nand more")

    def no_such_heads(*tensors: Any, **words: Any) -> Any:
        raise AssertionError("(12, 8) is not supported")  # FlashAttention-4's way

    def no_backward(query: Any, key: Any, value: Any, **words: Any) -> Any:
        return Refuses.apply(query, key, value)

    first: Any = SimpleNamespace(__name__="first", flash_attn_func=no_forward)
    second: Any = SimpleNamespace(__name__="second", flash_attn_func=no_backward)
    other: Any = SimpleNamespace(__name__="other", flash_attn_func=no_such_heads)
    listed = [FlashKernel(package=first), FlashKernel(package=other), FlashKernel(package=second)]
    monkeypatch.setattr(attention, "candidates", lambda *_: [*listed, FlashKernel(backend="efficient")])
    words = {"batch": 1, "q_len": 4, "kv_len": 4, "heads": 2, "kv_heads": 2, "qk_dim": 12, "v_dim": 8}
    case = AttentionCase(**words, direction="backward")
    with pytest.raises(UnsupportedCaseError):  # the processor has no memory-efficient kernel either
        launch_attention(case, Device(kind="cpu"))
    launched = launch_attention(replace(case, direction="forward"), Device(kind="cpu"))
    assert launched.implementation == "second"
    monkeypatch.setattr(attention, "candidates", lambda *_: listed[:1])
    with pytest.raises(UnsupportedCaseError, match=r"^heads of one size only$"):
        launch_attention(case, Device(kind="cpu"))


@pytest.mark.parametrize("error", ["AttributeError", "ModuleNotFoundError", "SyntaxError", "OSError"])
def test_a_package_that_fails_to_import_by_any_error_is_replaced_and_named(
    error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """flash-attn of another torch ended 28 kinds of kernel by AttributeError."""
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "__init__.py").write_text(f"raise {error}('no such op\\nand a stack')\n")
    monkeypatch.syspath_prepend(tmp_path)
    optional_packages.import_package.cache_clear()
    names = [one.name for one in candidates("flash", "causal", gpu(8))]
    lines = optional_packages.import_notes()
    optional_packages.import_package.cache_clear()
    assert names == [f"{SDPA} flash", f"{SDPA} cudnn", f"{SDPA} efficient"]
    why = f"({error}: no such op)"
    assert lines == [f"flash_attn is installed but fails to import, so other kernels ran in its place {why}"]


@pytest.mark.parametrize("error", [ModuleNotFoundError("No module named 'flash_attn_interface'"), AttributeError("op")])
def test_a_generation_that_torch_knows_and_nobody_installed_is_none(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(_: str) -> None:
        raise error

    monkeypatch.setattr(flash_kernels.attention, "activate_flash_attention_impl", absent, raising=False)
    monkeypatch.setattr(flash_kernels.attention, "list_flash_attention_impls", lambda: ["FA3"], raising=False)
    assert not flash_kernels.activate_generation("FA3")
    assert not flash_kernels.activate_generation("FA4")


@pytest.mark.parametrize("release", ["flash_attn-2", "flash_attn-3"])
@pytest.mark.parametrize(("mask", "window"), [("causal", (-1, -1)), ("full", (-1, -1)), ("window", (4095, 0))])
def test_a_package_is_handed_the_mask_and_its_statistics_are_dropped(
    mask: str, window: tuple[int, int], release: str
) -> None:
    seen: dict[str, Any] = {}

    def flash_attn_func(query: Any, key: Any, value: Any, **words: Any) -> Any:
        seen.update(words)
        return query, "statistics"

    case = AttentionCase(batch=1, q_len=8, kv_len=8, heads=1, kv_heads=1, qk_dim=8, v_dim=8, mask=mask, window=4096)
    package: Any = SimpleNamespace(flash_attn_func=checked(release, "flash_attn_func", flash_attn_func))
    tensor = torch.zeros(1)
    assert flash_attn_forward(case, package, torch.device("cpu"))(tensor, tensor, tensor) is tensor
    assert seen == {"causal": mask != "full", "window_size": window}


@pytest.mark.parametrize("release", ["flash_attn-2", "flash_attn-3"])
def test_a_package_is_handed_the_ends_of_packed_sequences(release: str) -> None:
    seen: dict[str, Any] = {}

    def flash_attn_varlen_func(query: Any, key: Any, value: Any, **words: Any) -> Any:
        seen.update(words)
        return query

    case = AttentionCase(batch=3, q_len=8, kv_len=16, heads=1, kv_heads=1, qk_dim=8, v_dim=8, mask="varlen")
    run = checked(release, "flash_attn_varlen_func", flash_attn_varlen_func)
    package: Any = SimpleNamespace(flash_attn_varlen_func=run)
    tensor = torch.zeros(1)
    assert flash_attn_forward(case, package, torch.device("cpu"))(tensor, tensor, tensor) is tensor
    assert seen.pop("cu_seqlens_q").tolist() == [0, 8, 16, 24]
    assert seen.pop("cu_seqlens_k").tolist() == [0, 16, 32, 48]
    assert seen == {"max_seqlen_q": 8, "max_seqlen_k": 16, "causal": True}


def test_torchs_window_of_w_keys_is_the_token_and_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    seen: dict[str, Any] = {}

    def record(query: Any, *rest: Any, window_size: Any, enable_gqa: Any) -> Any:
        seen.update(starts=rest[2].tolist(), window=window_size, grouped=enable_gqa)
        return query

    monkeypatch.setattr(varlen, "varlen_attn", record)
    case = AttentionCase(batch=2, q_len=8, kv_len=8, heads=2, kv_heads=1, qk_dim=8, v_dim=8, mask="window", window=3)
    cpu = torch.device("cpu")
    torch_varlen_forward(case, cpu)(*attention_operands(case, Order.PACKED, cpu))
    assert seen == {"starts": [0, 8, 16], "window": (2, 0), "grouped": True}


def test_packed_attention_of_torch_2_11_takes_grouped_heads_without_being_told(monkeypatch: pytest.MonkeyPatch) -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    monkeypatch.setattr(varlen, "varlen_attn", lambda query, *rest, window_size: query)
    case = AttentionCase(batch=2, q_len=8, kv_len=8, heads=2, kv_heads=1, qk_dim=8, v_dim=8, mask="varlen")
    cpu = torch.device("cpu")
    operands = attention_operands(case, Order.PACKED, cpu)
    assert torch_varlen_forward(case, cpu)(*operands) is operands[0]
