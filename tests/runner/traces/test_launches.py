"""What a trace's steps launched."""

import gzip
import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from runner.traces.launches import StepLaunches, step_launches
from runner.traces.names import CAUSAL_INPUT, kernel_part, pairs_of
from runner.traces.trace_file import Event, Key, Part, Trace, collective_key, is_trace, product_key, read_trace
from spec.errors import ConfigError
from tests.runner.traces.made_kineto import BYTES_OF_MESSAGE, STEP_US, trace

REAL = Path(__file__).with_name("tp2_of_gloo.trace.json.gz")
"""One step of ``train --plan tp=2,strategy=msp --seq_len 64 --micro_batches 1 --dtype fp32 --trace`` of
configs/tiny_internlm2.py on two processes (torch 2.13, Gloo): rank 0, its times rounded, what nobody reads left out."""


def event(name: str, start_us: float, took_us: float, category: str = "cpu_op", **args: Any) -> Event:
    device = category in ("kernel", "gpu_memcpy")
    thread = ("0", "7") if device else ("1", "2" if name.startswith("gloo:") else "1")
    return Event(
        name=name, category=category, thread=thread, start_s=start_us * 1e-6, seconds=took_us * 1e-6, args=args
    )


def annotation(name: str, start_us: float, took_us: float, **args: Any) -> Event:
    """On the thread of the calls, where event() puts gloo's works on another."""
    return replace(event(name, start_us, took_us, "user_annotation", **args), thread=("1", "1"))


def launches_of(*events: Event, warmup: int = 0) -> StepLaunches:
    steps = [event(f"ProfilerStep#{number}", 100.0 * number, 100.0, "user_annotation") for number in range(2)]
    every = sorted([*steps, *events], key=lambda one: (one.start_s, -one.seconds))
    trace = Trace(path=Path("x"), events=every, steps=steps, rank=0, world_size=2)
    return step_launches(trace, warmup)


def test_a_real_step_on_two_processes() -> None:
    """The model has 4 layers of 256 channels, 8 heads of 32, 4 of keys and values, 896 in the feed-forward
    layer and 1024 words; each of two ranks has half of each, and a step 64 tokens."""
    ran = step_launches(read_trace(REAL)).launches
    counts = Counter(one.key for one in ran)
    # fp32 activations of 64 tokens; Korthikanti 2022 sec. 4.2.2: four each a layer, and the ends' two
    assert counts[collective_key("all_gather", 64 * 256 * 4, None)] == 4 * 4 + 2
    assert counts[collective_key("reduce_scatter", 64 * 256 * 4, None)] == 4 * 4 + 2
    shapes = Counter((one.key.direction, one.key.shape) for one in ran if one.key.part is Part.PRODUCT)
    assert shapes[("forward", (1, 64, 256, 128))] == 4  # queries: 4 heads of 32 on a rank
    assert shapes[("forward", (1, 64, 256, 64))] == 8  # keys and values
    assert shapes[("forward", (1, 64, 256, 448))] == 8  # gate and up
    assert shapes[("forward", (1, 64, 256, 512))] == 1  # half of the words
    # 7 products a layer and the head, each with two gradients
    assert sum(counts for (way, _), counts in shapes.items() if way == "forward") == 7 * 4 + 1
    assert sum(counts for (way, _), counts in shapes.items() if way == "backward") == 2 * (7 * 4 + 1)
    heads = Counter((one.key.direction, one.key.shape) for one in ran if one.key.part is Part.ATTENTION)
    assert heads == {("forward", (64 * 4 * 32,)): 4, ("backward", (64 * 4 * 32,)): 4}


def test_a_processors_operations_count_without_what_they_call() -> None:
    ran = launches_of(
        event("aten::linear", 10, 40),
        event("aten::addmm", 12, 30, **{"Input Dims": [[8], [4, 2], [2, 8]]}),
        event("aten::expand", 13, 5),
        event("Optimizer.step#AdamW.step", 60, 20, "user_annotation"),
        event("aten::mul", 61, 6),
        event("aten::copy_", 62, 2),
    ).launches
    by_name = {one.name: (one.key.part, round(one.seconds * 1e6)) for one in ran}
    assert by_name == {
        "aten::linear": (Part.KERNEL, 10),
        "aten::addmm": (Part.PRODUCT, 30),
        "aten::mul": (Part.OPTIMIZER, 4),
        "aten::copy_": (Part.OPTIMIZER, 2),
    }
    assert next(one.key.shape for one in ran if one.name == "aten::addmm") == (1, 4, 2, 8)


def test_gloos_work_is_the_time_of_the_call_before_it() -> None:
    dims: dict[str, Any] = {"Input Dims": [[10], [20], [], []], "Input type": ["float", "float", "", ""]}
    listed: dict[str, Any] = {"Input Dims": [[[3, 4]], []], "Input type": ["TensorList", ""]}
    ran = launches_of(
        event("c10d::_reduce_scatter_base_", 10, 4, **dims),
        event("gloo:all_reduce", 12, 50, "user_annotation", **{"Input type": ["float"]}),
        event("aten::copy_", 13, 20, "cpu_op"),
        event("c10d::allreduce_", 70, 2, **listed),
        event("gloo:all_reduce", 71, 9, "user_annotation", **{"Input type": ["c10::BFloat16"]}),
        event("c10d::barrier", 85, 9),
    ).launches
    summary = [(one.key, round(one.seconds * 1e6)) for one in ran if one.key.part is Part.COLLECTIVE]
    assert summary == [(collective_key("reduce_scatter", 80, None), 50), (collective_key("all_reduce", 24, None), 9)]


def test_a_message_of_gloo_lasts_beside_what_its_thread_does_next() -> None:
    """Of a pipeline's step on two processes (torch 2.13): the annotation begins inside its call and outlasts it."""
    sent: dict[str, Any] = {"Input Dims": [[[1, 32, 64]], [], [], []], "Input type": ["TensorList", "", "", ""]}
    work: dict[str, Any] = {"Input type": ["float"], "Input Dims": [[1, 32, 64]]}
    ran = launches_of(
        event("autograd::engine::evaluate_function: X", 8, 6),
        event("c10d::send", 10, 3, **sent),
        annotation("gloo:send", 12, 60, **work),
        event("c10d::recv_", 14, 2, **sent),
        annotation("gloo:recv", 15, 30, **work),
        event("aten::mm", 50, 10, **{"Input Dims": [[4, 2], [2, 8]]}),
        event("c10d::allreduce_", 80, 1, **sent),
        event("gloo:all_reduce", 82, 9, "user_annotation", **work),
    ).launches
    summary = [(one.key.what, one.key.size_bytes, one.key.direction, round(one.seconds * 1e6)) for one in ran]
    assert summary == [
        ("p2p", 32 * 64 * 4, None, 60),
        ("p2p", 32 * 64 * 4, None, 30),
        ("product", None, "forward", 10),
        ("all_reduce", 32 * 64 * 4, None, 9),
    ]


def test_kernels_belong_to_the_call_that_launched_them_and_to_its_step() -> None:
    """The device runs behind the host: a kernel of the first step ends in the second."""
    dims: dict[str, Any] = {"Input Dims": [[4, 2], [2, 8]]}
    made = (
        event("autograd::engine::evaluate_function: MmBackward0", 10, 30),
        event("aten::mm", 12, 10, **{"External id": 5}, **dims),
        event("nvjet_tst_64x8", 150, 20, "kernel", **{"External id": 5}),
        event("void cublasLt::splitKreduce_kernel<32>", 170, 4, "kernel", **{"External id": 5}),
        event("_Linear", 45, 10, **{"External id": 6}),
        event("nvjet_tst_64x16", 176, 10, "kernel", **{"External id": 6}),
        event("void cublasLt::splitKreduce_kernel<32>", 186, 3, "kernel", **{"External id": 6}),
        event("Memcpy DtoD", 190, 1, "gpu_memcpy"),
    )
    whole = launches_of(*made)
    summary = [(one.key.part, one.key.direction, one.key.shape, round(one.seconds * 1e6)) for one in whole.launches]
    assert summary == [
        (Part.PRODUCT, "backward", (1, 4, 2, 8), 24),
        (Part.PRODUCT, "forward", None, 13),
        (Part.KERNEL, None, None, 1),
    ]
    assert whole.idle_s == pytest.approx((200 - 38) / 2 * 1e-6)
    assert len(launches_of(*made, warmup=1).launches) == 1


@pytest.mark.parametrize(
    ("name", "collective", "what"),
    [
        ("ncclDevKernel_AllGather_RING_LL(x)", "_allgather_base", "all_gather"),
        ("ncclDevKernel_SendRecv(x)", "all_to_allv", "all2all"),
        ("ncclDevKernel_SendRecv(x)", "recv", "p2p"),
        ("ncclDevKernel_SendRecv(x)", "all_to_all", "all2all"),
        ("ncclSymkDevKernel_AllGather_LLMC(x)", "_allgather_base", "all_gather"),
        ("ncclDevKernel_Generic(x)", "_broadcast_oop", "broadcast"),
        ("ncclKernel_AllReduce_RING_LL_Sum_half(x)", "allreduce", "all_reduce"),
    ],
)
def test_what_nccl_says(name: str, collective: str, what: str) -> None:
    metadata = {"In msg nelems": 100, "Out msg nelems": 200, "Group size": 8, "dtype": "BFloat16"}
    (one,) = launches_of(event(name, 10, 5, "kernel", **{"Collective name": collective}, **metadata)).launches
    assert (one.key.what, one.key.size_bytes, one.key.ranks) == (what, 400, 8)


def test_a_kernel_of_nccl_that_says_nothing() -> None:
    (one,) = launches_of(event("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(x)", 10, 5, "kernel")).launches
    assert one.key == collective_key("reduce_scatter", None, None)


@pytest.mark.parametrize(
    ("name", "part", "direction"),
    [
        ("nvjet_tst_320x128_64x3_1x2_h_bz_coopB_TNT", Part.PRODUCT, None),
        ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", Part.PRODUCT, None),
        ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<X>>(X)", Part.PRODUCT, None),
        ("triton_tem_fused_mm_t_3", Part.PRODUCT, None),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64", Part.PRODUCT, None),
        ("void flash::flash_bwd_dot_do_o_kernel<X>(Flash_bwd_params)", Part.ATTENTION, "backward"),
        (
            "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<X>>>",
            Part.ATTENTION,
            "forward",
        ),
        ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnBwdSm90<X>>>", Part.ATTENTION, "backward"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128", Part.ATTENTION, "forward"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_3", Part.ATTENTION, "backward"),
        ("void cudnn::fusion::convert_dq_to_16bits<true>(X)", Part.ATTENTION, "backward"),
        ("triton_tem_fused_flex_attention_0", Part.ATTENTION, "forward"),
        ("triton_tem_fused_flex_attention_backward_zeros_1", Part.ATTENTION, "backward"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(X)", Part.ATTENTION, "forward"),
        ("fmha_cutlassB_bf16_aligned_64x64_k64_sm80(X)", Part.ATTENTION, "backward"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<X>(X)", Part.OPTIMIZER, None),
        ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0", Part.KERNEL, None),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)",
            Part.KERNEL,
            None,
        ),
    ],
)
def test_a_kernels_name_says_its_part_and_of_attention_its_direction(
    name: str, part: Part, direction: str | None
) -> None:
    assert kernel_part(name) is part
    if part is Part.ATTENTION:
        (one,) = launches_of(event(name, 10, 5, "kernel")).launches
        assert one.key.direction == direction


# A GPU's trace as torch and Kineto write it, which says of some kernels nothing where they stand.


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> StepLaunches:
    path = tmp_path_factory.mktemp("kineto") / "rank1.json"
    path.write_text(json.dumps(trace()))
    held = read_trace(path)
    assert (held.rank, held.world_size) == (1, 4)
    return step_launches(held)


@pytest.mark.parametrize(
    ("key", "took_us"),
    [
        # a linked collective says its bytes and group; gathers in one call are as long as all of them
        (collective_key("all_gather", 2 * 2 * 2048 * 4096, 2), [80.0] * 2),
        (collective_key("all_gather", 2600 * 2, None), [30.0] * 2),
        # what follows a work that never ends is no part of it
        (product_key(1, 4096, 2048, 4096, "backward"), [50.0] * 2),
        (product_key(1, 4096, 2048, 4096, "forward"), [45.0] * 2),
        # a product past torch has its sum; three kernels of cuDNN are one backward
        (Key(part=Part.PRODUCT, what="product", direction="forward"), [44.0] * 2),
        (Key(part=Part.ATTENTION, what="attention", direction="backward"), [20.0] * 2),
        # a kernel that ends a group is the group's calls: a send and a receipt share its 100 us, also where it runs on
        # into the next step; calls of one rank, of another thread and of another kind are none of it
        (collective_key("p2p", BYTES_OF_MESSAGE, 2), [50.0] * 4),
    ],
)
def test_launches_last_as_long_as_their_kernels(result: StepLaunches, key: Key, took_us: list[float]) -> None:
    assert [round(one.seconds * 1e6, 3) for one in result.launches if one.key == key] == took_us


def test_every_kernel_of_both_steps_is_there_once(result: StepLaunches) -> None:
    counts = Counter(one.key.part for one in result.launches)
    assert counts == {Part.COLLECTIVE: 8, Part.PRODUCT: 6, Part.ATTENTION: 4, Part.KERNEL: 6}
    whole_us = 80 + 12 + 44 + 60 + 100 + 50 + 45 + 2 + 30 + 1 + 20
    assert sum(one.seconds for one in result.launches) == pytest.approx(2 * whole_us * 1e-6)
    assert result.num_steps == 2


def test_calls_of_a_group_follow_each_other_and_an_attention_has_its_pairs(result: StepLaunches) -> None:
    one, other = [one for one in result.launches if one.key.what == "p2p"][:2]
    assert other.start_s == pytest.approx(one.start_s + 50e-6)
    pairs = {one.pairs for one in result.launches if one.name.startswith("aten::_flash")}
    assert pairs == {16 * 4096 * 4097 / 2}


def test_idle_is_what_neither_stream_covers(result: StepLaunches) -> None:
    """343 us of a step beside its messages and what comes late, which runs beside the next step's gather and messages;
    70 us of the first step's messages run beside that gather."""
    whole_us = 2 * (STEP_US - 50)
    covered_us = 2 * (80 + 12 + 44 + 60 + 50 + 45 + 2 + 30 + 20) + 100 + 30
    assert result.idle_s == pytest.approx((whole_us - covered_us) / 2 * 1e-6)


# Pairs of queries and keys of traced attentions.

FORWARD = "aten::_scaled_dot_product_flash_attention_for_cpu"


def called(name: str, dims: list[list[int]], flags: list[str]) -> Event:
    args: dict[str, Any] = {"Input Dims": dims, "Concrete Inputs": flags}
    return Event(name=name, category="cpu_op", thread=("1", "1"), start_s=0.0, seconds=1.0, args=args)


def forward(q_len: int, kv_len: int, causal: str, mask: list[int], name: str = FORWARD) -> Event:
    query, key = [2, 4, q_len, 16], [2, 4, kv_len, 16]
    return called(name, [query, key, key, [], [], mask, []], ["", "", "", "0.", causal, "", ""])


@pytest.mark.parametrize(
    ("q_len", "kv_len", "causal", "mask", "each"),
    [
        (8, 8, "True", [], 36),  # the triangle with its diagonal
        (8, 32, "False", [8, 32], 8 * 24 + 36),  # aligned at the end
        (16, 8, "False", [], 16 * 8),
    ],
)
def test_pairs_are_those_that_the_mask_leaves(q_len: int, kv_len: int, causal: str, mask: list[int], each: int) -> None:
    assert pairs_of(forward(q_len, kv_len, causal, mask)) == 2 * 4 * each


def test_below_it_a_kernel_has_its_heads_last_and_a_backward_its_gradient_first() -> None:
    heads = [2, 8, 4, 16]
    below = called("aten::_flash_attention_forward", [heads] * 3 + [[]] * 6, [""] * 8 + ["True"])
    assert pairs_of(below) == 2 * 4 * 36
    turned = [[2, 4, 8, 16], [2, 4, 8, 16], [2, 4, 32, 16], [2, 4, 32, 16]]
    back = called(f"{FORWARD}_backward", [*turned, *[[]] * 6], [""] * 7 + ["False"] + [""] * 2)
    assert pairs_of(back) == 2 * 4 * 8 * 32


@pytest.mark.parametrize(
    "event",
    [
        called("flash_attn::_flash_attn_forward", [[2, 8, 4, 16]] * 3, []),
        called(FORWARD, [[2, 4, 8, 16]] * 3, ["", "", ""]),
        called(FORWARD, [[64, 4, 16]] * 3 + [[]] * 4, [""] * 4 + ["True"] + [""] * 2),
    ],
)
def test_what_does_not_say_has_none(event: Event) -> None:
    assert pairs_of(event) is None


@pytest.mark.parametrize("name", sorted(CAUSAL_INPUT))
def test_inputs_are_those_of_torch(name: str) -> None:
    (schema,) = [one for one in torch._C._jit_get_schemas_for_operator(name) if not one.overload_name]
    inputs = [one.name for one in schema.arguments]
    causal, mask = CAUSAL_INPUT[name]
    assert inputs[causal] in ("is_causal", "causal")
    assert inputs.index("query") == (1 if "backward" in name else 0)
    masks = [at for at, one in enumerate(inputs) if one in ("attn_mask", "attn_bias")]
    assert masks == ([] if mask is None else [mask])


# Reading a trace of torch.profiler: gzipped or plain, of whole steps, or one line that says why not.

MARK = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}
MM = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1.5, "dur": 1, "args": {}}
STEP = MM | {"cat": "user_annotation", "name": "ProfilerStep#3", "ts": 2.0, "dur": 5.0}


def written(path: Path, events: object, **more: Any) -> Path:
    text = json.dumps({"schemaVersion": 1, "traceEvents": events} | more)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_events_come_by_start_in_seconds(tmp_path: Path, name: str) -> None:
    summary = {"backend": "nccl", "rank": "3", "world_size": 8}
    path = written(tmp_path / name, [MARK, STEP, MM], distributedInfo=summary)
    assert is_trace(path)
    trace = read_trace(path)
    assert [one.name for one in trace.events] == ["aten::mm", "ProfilerStep#3"]
    (step,) = trace.steps
    assert (step.start_s, step.seconds, step.end_s) == pytest.approx((2e-6, 5e-6, 7e-6))
    assert (trace.rank, trace.world_size) == (3, 8)


def test_a_log_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("step: 1 loss: 7.0\n")
    assert not is_trace(path)
    assert not is_trace(tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe")  # nobody writes into it
    assert not is_trace(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([MM], "a trace of whole steps: profiler.step() after each"),
        (3, "no traceEvents"),
        ([STEP | {"dur": -1.0}], "an event without start and duration: 'ProfilerStep#3'"),
        ([STEP | {"ts": "x"}], "an event without start and duration"),
        ([STEP | {"dur": float("nan")}], "an event without start and duration"),
        ([STEP | {"args": []}], "an event without start and duration"),
    ],
)
def test_one_line_for_what_is_no_trace(tmp_path: Path, events: object, expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_trace(written(tmp_path / "a.json", events))
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "content", [b"\x1f\x8bnothing", gzip.compress(b"{}", mtime=0)[:-9], b'{"schemaVersion": 1, ', b"\xff"]
)
def test_one_line_for_what_is_damaged(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"a Chrome trace of torch\.profiler") as refused:
        read_trace(path)
    assert "\n" not in str(refused.value)
