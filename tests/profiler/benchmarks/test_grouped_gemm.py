"""Experts' products on uneven rows and with block scales: what is launched is what the case says."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from profdb.cases import GroupedGemmCase
from profiler.benchmarks import grouped_gemm
from profiler.benchmarks.grouped_gemm import group_rows, grouped_call, launch_grouped_gemm
from profiler.benchmarks.launched import UnsupportedCaseError
from profiler.device import Device
from tests.profiler.benchmarks.signatures import checked
from tests.profiler.fakes import device_like

ON_HOST: dict[str, Any] = {"torch_device": torch.device("cpu"), "cache_bytes": 50 << 20}


def case(**words: Any) -> GroupedGemmCase:
    return GroupedGemmCase(**{"groups": 4, "m": 256, "k": 32, "n": 48, "spread": "uneven"} | words)


def test_uneven_rows_go_from_half_to_one_and_a_half_of_the_mean() -> None:
    assert group_rows(case(spread="even")) == (64, 64, 64, 64)
    # a mean of 4 steps of 16 rows: 2 to 6 of them
    assert group_rows(case()) == (32, 48, 80, 96)
    for groups in (1, 2, 3, 8, 32):
        rows = group_rows(case(groups=groups, m=groups * 4096))
        assert sum(rows) == groups * 4096
        assert all(count % 16 == 0 for count in rows)
        assert rows == tuple(sorted(rows))
        if groups > 2:
            assert (rows[0], rows[-1]) == (2048, pytest.approx(3 * 2048, abs=16 * groups))


@pytest.mark.parametrize("layout", ["NT", "NN", "TN"])
def test_each_expert_multiplies_its_own_rows(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    monkeypatch.setattr(torch, "mm", lambda left, right: seen.append((tuple(left.shape), tuple(right.shape))))
    launched = launch_grouped_gemm(case(layout=layout), Device(kind="cpu"))
    launched.calls[0]()
    rows = (32, 48, 80, 96)
    if layout == "TN":
        assert seen == [((32, count), (count, 48)) for count in rows]
    else:
        assert seen == [((count, 32), (32, 48)) for count in rows]


def test_one_launch_is_told_where_each_experts_rows_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[list[int]] = []
    monkeypatch.setattr(
        torch.nn.functional, "grouped_mm", lambda left, right, *, offs: ends.append(offs.tolist()), raising=False
    )
    grouped_call(case(), torch.device("cpu"))()
    assert ends == [[32, 80, 160, 256]]


@pytest.mark.parametrize(
    ("capability", "kernel"), [((8, 0), False), ((8, 9), False), ((9, 0), True), ((10, 3), True), ((12, 0), False)]
)
def test_torchs_grouped_product_is_asked_where_it_is_one_kernel(capability: tuple[int, int], kernel: bool) -> None:
    """PyTorch, GroupedBlas.cpp, _grouped_mm_cuda: on other GPUs a loop that waits for the device, under the
    same name.
    """
    gpu = device_like(capability=capability, **ON_HOST)
    launched = launch_grouped_gemm(case(), gpu)
    named = "torch.nn.functional.grouped_mm" if kernel else "torch.mm for each group"
    assert launched.implementation == named


BLOCK: dict[str, Any] = {"m": 512, "k": 256, "n": 384, "spread": "even"}
BLOCK |= {"dtype_in": "fp8", "dtype_out": "bf16", "scale_recipe": "block"}


def test_block_scales_run_in_deep_gemm_by_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, ...]] = []
    name = "m_grouped_fp8_gemm_nt_contiguous"
    package = SimpleNamespace(**{name: checked("deep_gemm", name, lambda *words: seen.append(words))})
    monkeypatch.setattr(grouped_gemm, "optional_package", lambda name: package)
    launched = launch_grouped_gemm(case(**BLOCK), device_like(**ON_HOST))
    launched.calls[0]()
    (((left, scale_a), (right, scale_b), out, group_of),) = seen
    assert launched.case == case(**BLOCK)
    assert [tuple(one.shape) for one in (left, scale_a)] == [(512, 256), (512, 2)]
    # as the kernel reads them: DeepGEMM would transpose any other order in a launch of its own
    assert scale_a.stride() == (1, 512)
    assert len(launched.calls) == 4  # operands of 0.9 MB take turns in a cache of 50 MB
    assert [tuple(one.shape) for one in (right, scale_b)] == [(4, 384, 256), (4, 3, 2)]
    assert left.dtype is right.dtype is torch.float8_e4m3fn
    assert (tuple(out.shape), out.dtype) == ((512, 384), torch.bfloat16)
    assert group_of.tolist() == [group for group in range(4) for _ in range(128)]
    for changed in ({"m": 256}, {"k": 192}, {"layout": "NN"}, {"dtype_in": "bf16"}):
        with pytest.raises(UnsupportedCaseError):
            launch_grouped_gemm(case(**BLOCK | changed), device_like(**ON_HOST))


@pytest.mark.parametrize("changed", [{"spread": "odd"}, {"m": 250}, {"m": 64 * 4 + 16}, BLOCK])
def test_what_cannot_be_launched_as_said_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedCaseError):
        launch_grouped_gemm(case(**changed), Device(kind="cpu"))
