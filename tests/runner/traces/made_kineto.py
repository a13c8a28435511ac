"""A GPU's trace of two steps, row by row as Kineto and torch write it (libkineto/src/output_json.cpp,
CuptiActivity.cpp; torch/csrc/profiler/util.cpp, saveNcclMeta;
torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp); its times are made up."""

from itertools import count
from typing import Any

Row = dict[str, Any]
PROCESS, MAIN, AUTOGRAD = 4711, 4711, 4799
COMPUTE, COMMUNICATION = 7, 20
STEP_US = 1000.0
BYTES_OF_MESSAGE = 2 * 2048 * 1 * 4096


def trace() -> Row:
    """Rank 1 of 4: two stages of two tensor-parallel ranks."""
    writer = _Writer()
    for step in range(2):
        _step(writer, 100.0 + step * STEP_US, step)
    spans = {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans"}
    spans |= {"tid": "PyTorch Profiler", "ts": 90.0, "dur": 2200.0, "args": {"Op count": 0}}
    mark = {"ph": "i", "s": "g", "name": "Iteration Start: PyTorch Profiler", "pid": "Traces"}
    mark |= {"tid": "Trace PyTorch"}
    names = {"name": "process_name", "ph": "M", "ts": 90.0, "pid": 0, "tid": 0, "args": {"name": "python"}}
    end = {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": 2500.0}
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 84942979072}],
        "CUPTI_version": 130000,
        "cuda_runtime_version": 13000,
        "with_flops": 0,
        "record_shapes": 1,
        "with_modules": 0,
        "profile_memory": 0,
        "with_stack": 0,
        "distributedInfo": {
            "backend": "nccl",
            "rank": 1,
            "world_size": 4,
            "pg_count": 12,
            "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 4, "ranks": [0, 1, 2, 3]}],
            "nccl_version": "2.28.9",
        },
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 1790000000000000000,
        "traceEvents": [names, *writer.rows, spans, mark | {"ts": 90.0}, end],
        "traceName": "rank1.json",
    }


def _step(writer: "_Writer", at: float, step: int) -> None:
    annotation = {"External id": writer.next_id()}
    writer.host(f"ProfilerStep#{step + 3}", at, STEP_US - 50, annotation, category="user_annotation")
    writer.device(f"ProfilerStep#{step + 3}", at + 60, 900, COMPUTE, annotation, category="gpu_user_annotation")
    _gather_of_tp(writer, at + 10)
    _compiled(writer, at + 40)
    _attention(writer, at + 60)
    _exchange_of_stages(writer, at + 100)
    _after_the_exchange(writer, at + 160)
    _gathers_of_buckets(writer, at + 240)
    _backward_of_cudnn(writer, at + 300)
    # Past torch, and on the device only in the next step
    writer.launch("Memset (Device)", (at + 900, MAIN), (at + 1100, 1.0), COMPUTE, {}, category="gpu_memset")


def _recorded(name: str, counts: tuple[int, int], group: tuple[str, int], **more: int) -> Row:
    """The metadata of record_param_comms; of one that is linked Kineto repeats it beside the kernel."""
    names = {"Collective name": name, "In msg nelems": counts[0], "Out msg nelems": counts[1]}
    metadata = {"Group size": group[1], "dtype": "BFloat16", "Process Group Name": group[0]}
    return names | metadata | {"Process Group Description": "undefined", "Process Group Ranks": "[0, 1]"} | more


def _gather_of_tp(writer: "_Writer", at: float) -> None:
    """all_gather_into_tensor over tp: 2 x 2048 x 4096 numbers in all."""
    part = 2048 * 4096
    dims = {
        "Input Dims": [[4096, 1, 4096], [2048, 1, 4096], [], [], []],
        "Input type": ["c10::BFloat16"] * 2 + [""] * 3,
    }
    writer.host("c10d::_allgather_base_", at, 20, {"External id": writer.next_id()} | dims)
    metadata = _recorded("_allgather_base", (part, 2 * part), ("5", 2), Seq=7)
    number = writer.next_id()
    writer.host("record_param_comms", at + 2, 15, {"External id": number} | metadata)
    writer.host("nccl:_all_gather_base", at + 4, 10, {"External id": writer.next_id()}, category="user_annotation")
    kernel = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    writer.launch(kernel, (at + 8, MAIN), (at + 30, 80.0), COMMUNICATION, {"External id": number} | metadata)


def _compiled(writer: "_Writer", at: float) -> None:
    """A fused kernel of inductor, and a product that Transformer Engine calls past torch, with its sum over k."""
    name = "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0"
    number = writer.next_id()
    writer.host("Torch-Compiled Region: 0/0", at, 8, {"External id": writer.next_id()})
    writer.host(name, at + 1, 5, {"External id": number, "kernel_backend": "triton", "grid": "grid(2048,)"})
    writer.launch(name, (at + 2, MAIN), (at + 120, 12.0), COMPUTE, {"External id": number})
    number = writer.next_id()
    writer.host("_Linear", at + 9, 8, {"External id": number})
    for place, (kernel, took) in enumerate((("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT", 40.0), (SUM, 4.0))):
        begun = at + 140 + 41 * place
        writer.launch(kernel, (at + 10 + place, MAIN), (begun, took), COMPUTE, {"External id": number})


SUM = "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(cublasSplitKParams<float>)"


def _attention(writer: "_Writer", at: float) -> None:
    heads = {"Input Dims": [[1, 16, 4096, 128]] + [[1, 4, 4096, 128]] * 2 + [[]] * 5}
    whole = heads | {"Concrete Inputs": ["", "", "", "0.", "True", "False", "", ""]}
    writer.host("aten::_scaled_dot_product_flash_attention", at, 20, {"External id": writer.next_id()} | whole)
    number = writer.next_id()
    turned = {"Input Dims": [[1, 4096, 16, 128]] + [[1, 4096, 4, 128]] * 2 + [[]] * 10}
    flags = {"Concrete Inputs": [""] * 5 + ["4096", "4096", "0.", "True", "False", "", "", ""]}
    writer.host("aten::_flash_attention_forward", at + 3, 15, {"External id": number} | turned | flags)
    kernel = (
        "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false>, true>(flash::Flash_fwd_params)"
    )
    writer.launch(kernel, (at + 8, MAIN), (at + 190, 60.0), COMPUTE, {"External id": number})


def _backward_of_cudnn(writer: "_Writer", at: float) -> None:
    """Transformer Engine's FusedAttention past torch: three kernels of one node."""
    number = writer.next_id()
    node = "autograd::engine::evaluate_function: FusedAttnFuncBackward"
    writer.host(node, at, 30, {"External id": writer.next_id()}, thread=AUTOGRAD)
    writer.host("FusedAttnFuncBackward", at + 1, 28, {"External id": number}, thread=AUTOGRAD)
    for place, (name, took) in enumerate(CUDNN):
        begun = at + 300 + 20 * place
        writer.launch(name, (at + 5 + place, AUTOGRAD), (begun, took), COMPUTE, {"External id": number})


CUDNN = (
    ("void cudnn::fusion::compute_dot_do_o_specialized<false, __nv_bfloat16, 128, 128, 128, 1>(float*)", 3.0),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_3_64x64x128_4x1x1_cga1x1x1_kernel0_0", 15.0),
    ("void cudnn::fusion::convert_dq_to_16bits<true, __nv_bfloat16, 128, 128, 1>(unsigned long)", 2.0),
)


def _exchange_of_stages(writer: "_Writer", at: float) -> None:
    """batch_isend_irecv: both calls say what they move; the kernel that ends their group is linked to neither."""
    for place, way in enumerate(("send", "recv")):
        begun = at + 10 * place
        writer.host(f"c10d::{way}", begun, 8, {"External id": writer.next_id()})
        metadata = _recorded(way, (2048 * 4096, 2048 * 4096), ("9", 2)) | {
            "Dst Rank" if way == "send" else "Src Rank": 3
        }
        writer.host("record_param_comms", begun + 1, 6, {"External id": writer.next_id()} | metadata)
    _of_no_group(writer, at + 18)
    # Begun and, in older versions of torch, never ended
    lasting = {"External id": writer.next_id()}
    writer.host("nccl:coalesced", at + 21, 5000, lasting, category="user_annotation")
    kernel = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    writer.launch(kernel, (at + 25, MAIN), (at + 950, 100.0), COMMUNICATION, {})


def _of_no_group(writer: "_Writer", at: float) -> None:
    """Calls without a kernel of their own: of one rank, of another kind, and of another thread's group."""
    one = _recorded("send", (9, 9), ("12", 1))
    writer.host("record_param_comms", at, 1, {"External id": writer.next_id()} | one)
    other = _recorded("allreduce", (9, 9), ("9", 2))
    writer.host("record_param_comms", at + 1, 1, {"External id": writer.next_id()} | other)
    elsewhere = _recorded("recv", (9, 9), ("9", 2))
    writer.host("record_param_comms", at, 1, {"External id": writer.next_id()} | elsewhere, thread=AUTOGRAD)


def _after_the_exchange(writer: "_Writer", at: float) -> None:
    """The backward of a product on autograd's thread, then a product of the next forward on the main one."""
    dims = {"Input Dims": [[4096, 2048], [2048, 4096]], "Input type": ["c10::BFloat16"] * 2}
    node = {"External id": writer.next_id()}
    writer.host("autograd::engine::evaluate_function: MmBackward0", at, 40, node, thread=AUTOGRAD)
    number = writer.next_id()
    writer.host("aten::mm", at + 5, 20, {"External id": number} | dims, thread=AUTOGRAD)
    kernel = "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNT"
    writer.launch(kernel, (at + 8, AUTOGRAD), (at + 150, 50.0), COMPUTE, {"External id": number})
    number = writer.next_id()
    writer.host("aten::mm", at + 50, 20, {"External id": number} | dims)
    writer.launch(kernel, (at + 55, MAIN), (at + 210, 45.0), COMPUTE, {"External id": number})
    writer.host("aten::copy_", at + 72, 5, {"External id": (number := writer.next_id())})
    copied = {"External id": number, "bytes": 64, "memory bandwidth (GB/s)": 0.01}
    name = "Memcpy DtoH (Device -> Pageable)"
    writer.launch(name, (at + 73, MAIN), (at + 260, 2.0), COMPUTE, copied, category="gpu_memcpy")


def _gathers_of_buckets(writer: "_Writer", at: float) -> None:
    """Parameters of two buckets, all-gathered in one call of c10d that torch records no message of."""
    dims = [[[2000], [600]], [[1000], [300]], [], []]
    number = writer.next_id()
    names = {"Input Dims": dims, "Input type": ["TensorList", "TensorList", "", ""]}
    writer.host("c10d::allgather_into_tensor_coalesced_", at, 20, {"External id": number} | names)
    inputs = {"Input Dims": [[1000], [300]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
    name = "nccl:all_gather_into_tensor_coalesced"
    writer.host(name, at + 2, 15, {"External id": writer.next_id()} | inputs, category="user_annotation")
    kernel = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    writer.launch(kernel, (at + 8, MAIN), (at + 300, 30.0), COMMUNICATION, {"External id": number})


class _Writer:
    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.numbers = count(1)
        self.correlations = count(90001)

    def next_id(self) -> int:
        return next(self.numbers)

    def _complete(self, name: str, category: str, place: tuple[int, int], ts: float, dur: float, args: Row) -> None:
        row = {"ph": "X", "cat": category, "name": name, "pid": place[0], "tid": place[1]}
        self.rows.append(row | {"ts": ts, "dur": dur, "args": args})

    def host(
        self, name: str, ts: float, dur: float, args: Row, *, category: str = "cpu_op", thread: int = MAIN
    ) -> None:
        self._complete(name, category, (PROCESS, thread), ts, dur, args)

    def device(self, name: str, ts: float, dur: float, stream: int, args: Row, *, category: str = "kernel") -> None:
        self._complete(name, category, (0, stream), ts, dur, args)

    def launch(
        self,
        name: str,
        issued: tuple[float, int],
        ran: tuple[float, float],
        stream: int,
        args: Row,
        category: str = "kernel",
    ) -> None:
        """The call of CUDA's runtime at a time on a thread, the kernel, and the arrow between them."""
        number = next(self.correlations)
        runtime = {"cbid": 430, "correlation": number}
        linked = {"External id": args["External id"]} if "External id" in args else {}
        self.host("cudaLaunchKernelExC", issued[0], 2.0, linked | runtime, category="cuda_runtime", thread=issued[1])
        arrow = {"id": number, "pid": PROCESS, "tid": issued[1], "ts": issued[0], "cat": "ac2g"}
        arrow |= {"name": "ac2g"}
        self.rows.append({"ph": "s"} | arrow)
        beside = {"queued": 0, "device": 0, "context": 1, "stream": stream, "correlation": number}
        self.device(name, *ran, stream, args | beside, category=category)
        self.rows.append({"ph": "f", "bp": "e"} | arrow | {"pid": 0, "tid": stream, "ts": ran[0]})
