"""What the names of torch's operations and of kernels mean, how operations nest, and their shapes and sizes."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from profdb.fits.families import attended_pairs
from runner.traces.trace_file import BACKWARD, FORWARD, Event, Key, Part, collective_key, product_key

# Operations of ATen that call a library's product (aten/src/ATen/native/native_functions.yaml); a Linear runs addmm
# or mm. The number: which of the inputs is the left factor.
PRODUCTS: dict[str, int] = {
    "aten::mm": 0,
    "aten::bmm": 0,
    "aten::addmm": 1,
    "aten::addmm_": 1,
    "aten::baddbmm": 1,
    "aten::baddbmm_": 1,
    "aten::_scaled_mm": 0,
    "aten::_grouped_mm": 0,
    "aten::_scaled_grouped_mm": 0,
    "aten::_addmm_activation": 1,
}

# aten::_scaled_dot_product_{flash,efficient,cudnn}_attention, their _for_cpu and _backward, the operations of the
# flash-attn package (flash_attn::_flash_attn_forward, _varlen_backward) and of FlashAttention-3 (flash_attn_3::fwd).
ATTENTION = re.compile(
    r"aten::_(scaled_dot_product_)?(fused_)?(flash|efficient|cudnn)_attention|flash_attn(_\d)?::|FlashAttn(Varlen)?Func"
)
# Positions of their inputs is_causal and mask or bias; None without one (native_functions.yaml).
CAUSAL_INPUT: dict[str, tuple[int, int | None]] = {
    "aten::_scaled_dot_product_flash_attention": (4, None),
    "aten::_scaled_dot_product_flash_attention_backward": (11, None),
    "aten::_scaled_dot_product_flash_attention_for_cpu": (4, 5),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": (7, 8),
    "aten::_scaled_dot_product_efficient_attention": (6, 3),
    "aten::_scaled_dot_product_efficient_attention_backward": (11, 4),
    "aten::_scaled_dot_product_cudnn_attention": (6, 3),
    "aten::_scaled_dot_product_cudnn_attention_backward": (14, 8),
    "aten::_flash_attention_forward": (8, None),
    "aten::_flash_attention_backward": (11, None),
    "aten::_cudnn_attention_forward": (10, 3),
    "aten::_cudnn_attention_backward": (14, 8),
}
# FlashAttnBwdSm90 (FlashAttention-3), cudnn_generated_fort_native_sdpa_sm90_flash_bprop, fmha_cutlassB;
# FlashAttention's and cuDNN's kernels before and after: dot_do_o, convert_dq.
BACKWARD_NAME = re.compile(r"(?i:backward|bwd|bprop|dot_do_o|convert_dq)|cutlassB")

# Operations of torch's optimizers, and of the norm and clipping before; others are recognised by the annotation that
# torch.optim.Optimizer.profile_hook_step puts around a step.
OPTIMIZER = re.compile(r"aten::_fused_adamw?_?|aten::_foreach_|aten::_fused_sgd")
OPTIMIZER_STEP = re.compile(r"Optimizer\.step#")

KERNELS: tuple[tuple[Part, re.Pattern[str]], ...] = (
    # attention first: FlashAttention's kernels are built of CUTLASS. flash_fwd_kernel, flash_bwd_dq_dk_dv_loop_seqk
    # (flash-attn 2), flash::FlashAttnFwdSm90 (3), cudnn_generated_fort_native_sdpa, fmha_cutlassF (memory-efficient),
    # cudnn::fusion::compute_dot_do_o, triton_tem_fused_flex_attention (torch/_inductor/kernel/flex).
    (
        Part.ATTENTION,
        re.compile(
            r"flash_(fwd|bwd)|flash::|FlashAttn|sdpa|fmha|flex_attention|cudnn::fusion::\w*d[oq]_", re.IGNORECASE
        ),
    ),
    # cuBLAS: ampere_bf16_s16816gemm, sm80_xmma_gemm, nvjet_tst, cutlass_80_tensorop, splitKreduce; Triton's templates
    # (triton_tem_fused_mm); DeepGEMM's fp8_gemm_kernel; rocBLAS's Cijk_Alik_Bljk.
    (
        Part.PRODUCT,
        re.compile(r"gemm|nvjet|splitKreduce|Cijk_|cutlass.*(tensorop|GemmUniversal)|triton_tem_", re.IGNORECASE),
    ),
    (Part.OPTIMIZER, re.compile(r"adam|multi_tensor_apply_kernel|lamb", re.IGNORECASE)),
)

# Kernels of NCCL (src/device/generate.py names them ncclDevKernel_<function>_..., src/device/symmetric/generate.py
# ncclSymkDevKernel_<function>_...; ncclKernel_ before 2.19; common.cu's ncclDevKernel_Generic names no function), by
# function. SendRecv is a message or an all-to-all; the collective's name in its metadata tells which.
NCCL = re.compile(
    r"nccl(?:Symk?)?(?:Dev)?Kernel_(?:(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv)|Generic)"
)
NCCL_FUNCTIONS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "SendRecv": "p2p",
}

# "Collective name" of a kernel of NCCL (ProcessGroupNCCL.cpp, RECORD_PARAM_COMMS), the operations c10d::* of
# torch/csrc/distributed/c10d/Ops.cpp, and the names of gloo's works ("gloo:all_reduce"), without prefix and underscores.
COLLECTIVE_NAMES = {
    "all_reduce": "allreduce allreducecoalesced",
    "all_gather": "allgather allgatherbase allgathersingle allgatherintotensorcoalesced",
    "reduce_scatter": "reducescatter reducescatterbase reducescattersingle reducescattertensorcoalesced",
    "all2all": "alltoall alltoallbase alltoallv alltoallsingle",
    "broadcast": "broadcast broadcastoop",
    "reduce": "reduce reduceoop",
    "p2p": "send recv",
    "barrier": "barrier",
}
COLLECTIVES = {name: kind for kind, names in COLLECTIVE_NAMES.items() for name in names.split()}

# Bytes per element by c10's names ("BFloat16", in args of NCCL's kernels) and those of input types ("c10::BFloat16").
TYPE_BYTES = {
    **dict.fromkeys(("double", "long", "long int"), 8),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("half", "bfloat16", "short"), 2),
    **dict.fromkeys(("char", "signed char", "byte", "unsigned char", "bool"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), 1),
}


def collective_by_name(word: str) -> str | None:
    """The collective that a name stands for; None for other names."""
    plain = word.lower().rpartition(":")[2].replace("_", "")
    return COLLECTIVES.get(plain)


def nccl_function(kernel: str) -> str | None:
    """NCCL's name of a kernel's function; None for a kernel of another library and for NCCL's generic kernel."""
    result = NCCL.search(kernel)
    return result[1] if result else None


def type_bytes(name: object) -> int | None:
    """Bytes of an element by the name of its type."""
    return TYPE_BYTES.get(str(name).lower().removeprefix("c10::"))


def kernel_part(name: str) -> Part:
    """The part of the step that a kernel belongs to, by its name."""
    return next((part for part, pattern in KERNELS if pattern.search(name)), Part.KERNEL)


# How the host's operations nest, by thread.

CALLS = ("cpu_op", "user_annotation")
BACKWARD_NODE = "autograd::engine::evaluate_function"
COLLECTIVE_CALL = "c10d::"
GLOO = "gloo:"
WORKS = (f"{GLOO}send", f"{GLOO}recv", "nccl:")
"""Annotations of asynchronous works, which run on while their thread does other things (torch/csrc/distributed/c10d/
Work.cpp): gloo's messages until they arrive, other works of gloo on its own threads; NCCL's as long as the call, but in
older versions that of a group of calls ("nccl:coalesced") without end."""


@dataclass(slots=True, kw_only=True)
class Call:
    """An operation of the host inside ``parent``. ``self_s`` are its seconds outside of the operations that it calls.
    ``calls_same``: it calls an operation of its own name (a DTensor's, on its local tensor). ``contains_named``: a named
    operation is inside it. ``work`` is the annotation of a work that began inside it."""

    event: Event
    parent: "Call | None"
    backward: bool
    optimizer: bool
    self_s: float
    calls_same: bool = False
    contains_named: bool = field(default=False)
    work: Event | None = None

    @property
    def named(self) -> bool:
        """True if its name is that of a product, an attention, a collective or gloo's work for one."""
        name = self.event.name
        return name in PRODUCTS or name.startswith((COLLECTIVE_CALL, GLOO)) or ATTENTION.search(name) is not None

    @property
    def owner(self) -> "Call | None":
        """The nearest named operation around it, itself included."""
        call: Call | None = self
        while call is not None and not call.named:
            call = call.parent
        return call


def nest_calls(events: Iterable[Event]) -> Iterator[Call]:
    """The calls of every thread, sorted by start within a thread."""
    threads: dict[object, list[Event]] = {}
    for one in events:
        if one.category in CALLS:
            threads.setdefault(one.thread, []).append(one)
    for calls in threads.values():
        yield from _thread(sorted(calls, key=lambda one: (one.start_s, -one.seconds)))


def _thread(events: Iterable[Event]) -> list[Call]:
    calls: list[Call] = []
    open_calls: list[Call] = []
    for event in events:
        # Events come by start, longer ones first: the innermost call that is still open is the parent.
        while open_calls and open_calls[-1].event.end_s <= event.start_s:
            open_calls.pop()
        parent = open_calls[-1] if open_calls else None
        # A work outlasts the call that starts it: as a parent it would swallow the calls that follow.
        if event.name.startswith(WORKS):
            if parent is not None:
                parent.work = event
            continue
        optimizer = OPTIMIZER_STEP.search(event.name) or OPTIMIZER.match(event.name)
        call = Call(
            event=event,
            parent=parent,
            backward=(parent is not None and parent.backward) or event.name.startswith(BACKWARD_NODE),
            optimizer=(parent is not None and parent.optimizer) or optimizer is not None,
            self_s=event.seconds,
        )
        if parent is not None:
            parent.self_s -= event.seconds
            parent.calls_same = parent.calls_same or parent.event.name == event.name
            _mark_parents(call, parent)
        calls.append(call)
        open_calls.append(call)
    return calls


def _mark_parents(call: Call, parent: Call | None) -> None:
    """Mark the operations around a named one."""
    if not call.named:
        return
    while parent is not None and not parent.contains_named:
        parent.contains_named = True
        parent = parent.parent


# Keys of traced operations: shapes of products and attentions, sizes and groups of collectives.

DIMS = "Input Dims"
TYPES = "Input type"
COLLECTIVE = "Collective name"


def key_of_call(call: Call) -> Key:
    """The key of a named operation."""
    name = call.event.name
    if name in PRODUCTS:
        return _product(call)
    if name.startswith(COLLECTIVE_CALL):
        return collective_key(collective_by_name(name) or name, _call_bytes(call.event, None), None)
    return _attention(call.event)


def _product(call: Call) -> Key:
    """The key of a product, by the shapes of both factors; without a shape if the profiler recorded none."""
    direction = BACKWARD if call.backward else FORWARD
    unknown = Key(part=Part.PRODUCT, what="product", direction=direction)
    first = PRODUCTS[call.event.name]
    factors = shapes_of(call.event.args)[first : first + 2]
    if len(factors) < 2 or not all(len(one) in (2, 3) for one in factors):
        return unknown
    left, right = factors
    batch = left[0] if len(left) == 3 else 1
    return product_key(batch, left[-2], left[-1], right[-1], direction)


def _attention(event: Event) -> Key:
    """The key of an attention, by the elements of its first operand: the queries, or the gradient of the outputs."""
    tensors = [one for one in shapes_of(event.args) if len(one) >= 3]
    direction = BACKWARD if BACKWARD_NAME.search(event.name) else FORWARD
    shape = (prod(tensors[0]),) if tensors else None
    return Key(part=Part.ATTENTION, what="attention", direction=direction, shape=shape)


def key_of_gloo(call: Call, work: Event | None) -> Key:
    """The key of a collective that gloo runs; its work has the format, which the call lacks."""
    name = collective_by_name(call.event.name) or call.event.name
    return collective_key(name, _call_bytes(call.event, work), None)


def key_of_nccl(kernel: Event, metadata: Mapping[str, Any], call: Call | None = None) -> Key:
    """The key of a kernel of NCCL, by torch's metadata (appendCollectiveArgs of Kineto's output_json.cpp), else by the
    ``call`` of c10d that launched it, else by its name."""
    function = NCCL_FUNCTIONS.get(nccl_function(kernel.name) or "", kernel.name)
    if COLLECTIVE not in metadata and call is not None and call.event.name.startswith(COLLECTIVE_CALL):
        collective = collective_by_name(call.event.name)
        return collective_key(collective or function, _call_bytes(call.event, call.work), None)
    collective = collective_by_name(str(metadata.get(COLLECTIVE, "")))
    bytes_each = type_bytes(metadata.get("dtype"))
    counts = [metadata.get(f"{way} msg nelems") for way in ("In", "Out")]
    numbers = [one for one in counts if isinstance(one, int)]
    size = max(numbers) * bytes_each if numbers and bytes_each else None
    ranks = metadata.get("Group size")
    return collective_key(collective or function, size, ranks if isinstance(ranks, int) else None)


def _call_bytes(event: Event, work: Event | None) -> int | None:
    """Bytes of the largest operand of a c10d call: the whole array of an all-gather or a reduce-scatter."""
    dims, types = event.args.get(DIMS), event.args.get(TYPES)
    if not isinstance(dims, list) or not isinstance(types, list):
        return None
    widths = [each for each in map(type_bytes, [*types, *_types(work)]) if each]
    elements = max((_elements(one) for one in dims), default=0)
    return elements * widths[0] if elements and widths else None


def _types(work: Event | None) -> Sequence[object]:
    types = work.args.get(TYPES) if work is not None else None
    return types if isinstance(types, list) else []


def _elements(dims: object) -> int:
    """Number of elements of a tensor, by its shape, or of a list of tensors; 0 for anything else."""
    if not isinstance(dims, list) or not dims:
        return 0
    if all(isinstance(side, int) for side in dims):
        return prod(dims)
    return sum(_elements(one) for one in dims)


def shapes_of(args: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """The shape of each input; empty for an input that is not a tensor."""
    dims = args.get(DIMS)
    if not isinstance(dims, list):
        return []
    plain = [one if isinstance(one, list) and all(isinstance(side, int) for side in one) else [] for one in dims]
    return [tuple(one) for one in plain]


# Pairs of queries and keys of a traced attention, whose number does not depend on how its calls are split.

CONCRETE = "Concrete Inputs"
"""Scalars of a call, by input (torch/csrc/profiler/collection.cpp, InputOutputEncoder)."""


def pairs_of(event: Event) -> float | None:
    """Pairs of queries and keys over all heads and sequences; None for a library other than ATen, or without recorded
    inputs.

    A mask given as a tensor counts as causal: its values are not in a trace.
    """
    if event.name not in CAUSAL_INPUT:
        return None
    causal, mask = CAUSAL_INPUT[event.name]
    scalars, shapes = event.args.get(CONCRETE), shapes_of(event.args)
    first = 1 if BACKWARD_NAME.search(event.name) else 0
    if not isinstance(scalars, list) or min(len(scalars), len(shapes)) <= causal:
        return None
    query, key = shapes[first : first + 2]
    if len(query) != 4 or len(key) != 4:
        return None
    # scaled_dot_product: [batch, heads, tokens, width]; the kernels below it: [batch, tokens, heads, width]
    tokens, heads = (2, 1) if "scaled_dot_product" in event.name else (1, 2)
    masked = scalars[causal] == "True" or (mask is not None and shapes[mask] != ())
    return heads_pairs(query[0] * query[heads], query[tokens], key[tokens], mask="causal" if masked else "full")


def heads_pairs(heads: int, q_len: int, kv_len: int, *, mask: str, window: int = 0) -> float:
    """Pairs of queries and keys of ``heads`` heads, those of all sequences together."""
    columns = {"q_len": np.array([q_len]), "kv_len": np.array([kv_len]), "window": np.array([window])}
    return heads * float(attended_pairs(columns, mask)[0])
