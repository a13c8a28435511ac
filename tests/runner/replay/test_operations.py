from dataclasses import replace

import pytest
import torch

from profiler.device import Device
from runner.replay.operations import (
    Compute,
    attention_case,
    buffer_elements,
    operations_for,
    product_case,
    whole,
)
from tests.runner.replay.test_program import collective, program
from workload.aicb.csv_workload import GeneralItem
from workload.findings import WorkloadError


def test_a_product_as_launched() -> None:
    case = product_case(((2048, 1, 5120), (5120, 1920)), "bf16")
    assert (case.m, case.k, case.n, case.layout, case.dtype_in) == (2048, 5120, 1920, "NN", "bf16")


def test_every_rank_gets_an_equal_part() -> None:
    buffer = torch.zeros(64, dtype=torch.bfloat16)
    assert (whole(buffer, 8, 4).dtype, whole(buffer, 8, 4).numel()) == (torch.bfloat16, 4)
    assert whole(buffer, 10, 4).numel() == 8
    assert (whole(buffer, 1, 4).dtype, whole(buffer, 1, 4).numel()) == (torch.uint8, 4)
    assert whole(buffer, 0, 4).numel() == 4


def test_buffers_hold_the_largest_message() -> None:
    launches = program(collective(), collective(kind="all_gather")).iterations[0]
    elements = buffer_elements(launches)
    buffer = torch.zeros(elements, dtype=torch.bfloat16)
    assert all(whole(buffer, size, 2).numel() * buffer.element_size() >= size for size in (63, 64))
    assert elements == 35


def test_equal_launches_share_their_operands() -> None:
    first = GeneralItem(comm_type="computation", shapes=((2, 3), (3, 4)), stage="a")
    other = GeneralItem(comm_type="computation", shapes=((2, 3), (3, 5)), stage="b")
    made = program(first, first, other).iterations[0]
    cpu = operations_for(made, Device(kind="cpu"), {}, Compute.REAL, "fp32")
    calls = [cpu.call(launch) for launch in made]
    assert calls[0] is calls[1]
    assert calls[2] is not calls[0]


def test_an_attention_as_launched() -> None:
    item = GeneralItem(
        comm_type="computation",
        shapes=((1, 4, 16, 8), (1, 2, 16, 8)),
        additional="causal backward flash 0",
        stage="backward.attention.core",
    )
    (launch,) = program(item).iterations[0]
    case = attention_case(launch, "fp32")
    assert (case.heads, case.kv_heads, case.q_len, case.kv_len, case.qk_dim) == (4, 2, 16, 16, 8)
    assert (case.mask, case.direction, case.dtype) == ("causal", "backward", "fp32")
    call = operations_for([launch], Device(kind="cpu"), {}, Compute.REAL, "fp32").call(launch)
    assert call is not None
    call()
    (bare,) = program(replace(item, additional="causal")).iterations[0]
    with pytest.raises(WorkloadError, match="additional = 'causal': mask direction kernel window"):
        attention_case(bare, "fp32")
