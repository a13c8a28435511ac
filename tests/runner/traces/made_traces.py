"""A trace of a GPU as Kineto writes it (libkineto/src/output_json.cpp, handleActivity and
appendCollectiveArgs), made of what a plan is expected to launch, so that every time in it is known."""

from collections.abc import Iterator, Sequence
from typing import Any

from runner.comparison.expected import Expected
from runner.traces.trace_file import BACKWARD, Part

PRODUCT_KERNEL = "nvjet_tst_128x256_64x4_1x2_h_bz_coopB_TNT"
NCCL_KERNELS = {
    "all_reduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all_gather": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "p2p": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "all2all": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "broadcast": "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
}
NAMES = {
    "all_reduce": "allreduce",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "p2p": "send",
    "all2all": "all_to_allv",
    "broadcast": "broadcast",
}
HEAD = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
    "record_shapes": 1,
    "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 4},
}
Row = dict[str, Any]


def trace_of(expected: Sequence[Expected], *, slower: float, num_steps: int = 2, shapes: bool = True) -> Row:
    """A trace whose launches take ``slower`` times what is expected; ``shapes``: recorded, and sizes metadata."""
    rows: list[Row] = []
    clock = _Clock()
    for step in range(num_steps):
        began = clock.host_us
        for one in expected:
            for _ in range(one.count):
                rows += _launch(one, clock, slower * one.seconds * 1e6, shapes=shapes)
        rows.append(_complete(f"ProfilerStep#{step + 3}", "user_annotation", (7, 7), began, clock.host_us - began, {}))
    return HEAD | {"traceEvents": rows}


class _Clock:
    """When the host issues next and when the device is free, in microseconds; the number of the last call."""

    def __init__(self) -> None:
        self.host_us, self.device_us, self.last_id = 100.0, 150.0, 0


def _complete(name: str, category: str, thread: tuple[int, int], ts: float, took_us: float, args: Row) -> Row:
    pid, tid = thread
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": took_us, "args": args}


def _launch(one: Expected, clock: _Clock, took_us: float, *, shapes: bool) -> Iterator[Row]:
    """The call on the host, inside a node of autograd where it is of the backward, the runtime's launch and
    the kernel.
    """
    name, args, kernel, beside = _words(one, shapes=shapes)
    clock.last_id += 1
    link = {"External id": clock.last_id}
    if one.key.direction == BACKWARD:
        node = "autograd::engine::evaluate_function: MmBackward0"
        yield _complete(node, "cpu_op", (7, 8), clock.host_us, 9.0, {"External id": 10**6 + clock.last_id})
    thread = (7, 8) if one.key.direction == BACKWARD else (7, 7)
    yield _complete(name, "cpu_op", thread, clock.host_us + 1, 5.0, link | args)
    correlated = link | {"correlation": clock.last_id}
    yield _complete("cudaLaunchKernel", "cuda_runtime", thread, clock.host_us + 2, 1.0, correlated)
    yield _complete(kernel, "kernel", (0, 7), clock.device_us, took_us, correlated | {"stream": 7} | beside)
    clock.host_us += 10.0
    clock.device_us += took_us


def _words(one: Expected, *, shapes: bool) -> tuple[str, Row, str, Row]:
    """The call's name and arguments, and the kernel's."""
    key = one.key
    if key.part is Part.PRODUCT:
        assert key.shape is not None
        batch, low, inner, high = key.shape
        dims = {"Input Dims": [[low, inner], [inner, high]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
        assert batch == 1
        return "aten::mm" if shapes else "_Linear", dims if shapes else {}, PRODUCT_KERNEL, {}
    if key.part is Part.ATTENTION:
        assert key.shape is not None
        way = "backward" if key.direction == BACKWARD else "forward"
        kernel = "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel" if way == "backward" else "flash_fwd_kernel"
        dims = {"Input Dims": [[1, key.shape[0], 1]], "Input type": ["c10::BFloat16"]}
        return f"aten::_flash_attention_{way}", dims, f"void flash::{kernel}<Flash_traits>(Params)", {}
    if key.part is Part.COLLECTIVE:
        assert key.size_bytes is not None
        metadata = {
            "Collective name": NAMES[key.what],
            "In msg nelems": key.size_bytes // 2,
            "Out msg nelems": key.size_bytes // 2,
            "Group size": key.ranks,
            "dtype": "BFloat16",
            "Process Group Name": "1",
            "Process Group Description": "default_pg",
        }
        return "record_param_comms", {}, NCCL_KERNELS[key.what], metadata if shapes else {}
    if key.part is Part.OPTIMIZER:
        return ("aten::_fused_adamw_", {}, "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>(T)", {})
    return ("aten::add", {}, "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>(int)", {})
