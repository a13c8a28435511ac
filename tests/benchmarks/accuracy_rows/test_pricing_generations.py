"""One plan on the GPUs and in the formats of rows that nobody looked at: what must hold whatever is measured there."""

from functools import cache

import pytest

from benchmarks.accuracy_rows.hardware import cluster_of
from benchmarks.accuracy_rows.pricing import Prediction
from tests.benchmarks.made_up_rows import ROOT, predict, row

# Four layers as wide as Llama 3 70B's (arXiv 2407.21783, table 3), tp 8 over NVLink and two nodes' gradients.
LAYERS = {
    "framework": "Megatron-Bridge 26.04",
    "model_name": "llama3-70b",
    "num_gpus": "16",
    "hidden": "8192",
    "ffn_hidden": "28672",
    "heads": "64",
    "kv_heads": "8",
    "head_dim": "128",
    "vocab": "128256",
    "seq_len": "8192",
    "tp": "8",
    "pp": "1",
    "micro_batch": "1",
    "global_batch_sequences": "16",
}
WEIGHTS = 4 * (8192 * 128 * (64 + 2 * 8) + 8192 * 8192 + 3 * 8192 * 28672)
BLACKWELL = ("B200-SXM", "B300-SXM", "GB200", "GB300")
TOKENS_OF_A_GPU = 16 * 8192 // 16


@cache
def priced(gpu: str, precision: str, **cells: str) -> Prediction:
    (one,) = predict(row(**LAYERS | cells, gpu=gpu, precision=precision))
    return one


def on_device_s(gpu: str, precision: str, **cells: str) -> float:
    """The step less what the host makes it wait."""
    one = priced(gpu, precision, **cells)
    assert one.answer is not None, one.reason
    return one.answer.step_s - one.answer.parts_s["host"]


@pytest.mark.parametrize(
    ("gpu", "wide", "narrow"),
    [
        ("H800-80GB", "BF16", "FP8-CS"),
        ("B200-SXM", "BF16", "FP8-CS"),
        ("B200-SXM", "FP8-CS", "NVFP4"),
        *(pytest.param(gpu, "BF16", "FP8-MX", marks=pytest.mark.nightly) for gpu in BLACKWELL),
        *(pytest.param(gpu, "FP8-MX", "NVFP4", marks=pytest.mark.nightly) for gpu in BLACKWELL),
    ],
)
def test_fewer_bits_are_never_slower_than_more_but_for_the_host(gpu: str, wide: str, narrow: str) -> None:
    assert on_device_s(gpu, narrow) < on_device_s(gpu, wide)


@pytest.mark.parametrize(
    ("slower", "faster"),
    [
        ("H800-80GB", "H100-80GB"),  # half the NVLink
        ("H100-80GB", "H200-141GB"),  # the same chip with faster memory
        ("H200-141GB", "B200-SXM"),
        ("B200-SXM", "B300-SXM"),  # 10 % more power, twice the network
        ("B200-SXM", "GB200"),  # 20 % more power
        ("GB200", "GB300"),
    ],
)
def test_a_plan_is_faster_on_the_better_of_two_gpus(slower: str, faster: str) -> None:
    assert on_device_s(faster, "FP8-CS") < on_device_s(slower, "FP8-CS")


@pytest.mark.parametrize(
    ("gpu", "precision", "dtype"),
    [
        ("B200-SXM", "BF16", "bf16"),
        ("B200-SXM", "NVFP4", "fp4"),
        ("H100-80GB", "FP8-CS", "fp8"),
        *(pytest.param(gpu, "NVFP4", "fp4", marks=pytest.mark.nightly) for gpu in BLACKWELL),
    ],
)
def test_products_stay_below_what_the_gpu_sustains_in_their_format(
    gpu: str, precision: str, dtype: str
) -> None:
    """6 FLOPs a weight of a layer and token, over the seconds of all products, the head's among them."""
    answer = priced(gpu, precision).answer
    assert answer is not None
    chip = cluster_of(row(**LAYERS, gpu=gpu), ROOT).gpu
    share = chip.sustained_flops["bf16"] / chip.peak_flops["bf16"]
    best = chip.sustained_flops.get(dtype, chip.peak_flops[dtype] * share)
    assert 6 * WEIGHTS * TOKENS_OF_A_GPU / answer.parts_s["gemm"] < best


def test_twice_the_batch_takes_less_than_twice_as_long() -> None:
    once = on_device_s("H800-80GB", "BF16")
    assert once < on_device_s("H800-80GB", "BF16", global_batch_sequences="32") < 2 * once


def test_a_wider_network_is_not_slower() -> None:
    narrow, wide = (on_device_s("B200-SXM", "BF16", inter_node=f"{rate} Gb/s per GPU") for rate in (100, 400))
    assert wide < narrow
