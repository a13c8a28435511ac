"""Operands: random numbers, and as many sets in turn as a cache does not hold."""

import pytest
import torch

from profdb.cases import AttentionCase, Case, GemmCase, GroupedGemmCase
from profiler.benchmarks.fp8 import mx_scales
from profiler.benchmarks.torch_dtypes import TORCH_DTYPES, random_operand
from profiler.distributed.rank_layout import RankLayout
from profiler.distributed.world import World
from profiler.torch_launcher import TorchLauncher
from tests.profiler.fakes import device_like

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
def test_operands_are_normal_random_numbers(dtype: str) -> None:
    values = random_operand((64, 64), dtype, CPU).double()
    assert values.std().item() == pytest.approx(1.0, rel=0.1)
    assert abs(values.mean().item()) < 0.1


SMALL_CACHE = device_like("cpu", cache_bytes=128 << 10)


@pytest.mark.parametrize(
    ("case", "sets"),
    [
        (GemmCase(m=64, k=64, n=64), 11),  # 24 KiB a set: 11 exceed twice 128 KiB
        (GemmCase(m=1024, k=256, n=256), 1),  # more than that by itself
        (GroupedGemmCase(groups=2, m=64, k=64, n=64), 4),
        (AttentionCase(batch=1, q_len=32, kv_len=32, heads=4, kv_heads=2, qk_dim=16, v_dim=16), 4),
    ],
)
def test_sets_of_operands_take_turns_until_no_cache_holds_them(case: Case, sets: int) -> None:
    world = World(layout=RankLayout(), device=SMALL_CACHE)
    assert len(TorchLauncher(world=world).launch(case).calls) == sets


def test_mx_scales_fill_tiles_of_128_rows_by_4() -> None:
    """PyTorch, ScaledBlas.cpp, _scaled_mxfp8_mxfp8: rows rounded up to 128, k / 32 to 4; 200 x 96 by 96 x 48."""
    left, right = mx_scales(200, 96, 48, CPU)
    assert (tuple(left.shape), tuple(right.shape)) == ((256 * 4,), (128 * 4,))
    assert left.dtype is right.dtype is torch.float8_e8m0fnu
    assert left.float().unique().tolist() == [1.0]
