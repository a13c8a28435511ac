"""What names of torch's operations and of kernels stand for: one table a kind."""

import re

from runner.traces.ran import Part

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
# Which of their inputs is is_causal, and which a mask or bias, where there is one (native_functions.yaml).
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

# What an operation of torch's optimizers, or of the norm and clipping before, is called; the rest by the annotation
# that torch.optim.Optimizer.profile_hook_step puts around a step.
OPTIMIZER = re.compile(r"aten::_fused_adamw?_?|aten::_foreach_|aten::_fused_sgd")
OPTIMIZER_STEP = re.compile(r"Optimizer\.step#")

KERNELS: tuple[tuple[Part, re.Pattern[str]], ...] = (
    # attention first: FlashAttention's kernels are built of CUTLASS. flash_fwd_kernel, flash_bwd_dq_dk_dv_loop_seqk
    # (flash-attn 2), flash::FlashAttnFwdSm90 (3), cudnn_generated_fort_native_sdpa, fmha_cutlassF (memory-efficient),
    # cudnn::fusion::compute_dot_do_o, triton_tem_fused_flex_attention (torch/_inductor/kernel/flex).
    (
        Part.ATTENTION,
        re.compile(
            r"flash_(fwd|bwd)|flash::|FlashAttn|sdpa|fmha|flex_attention|cudnn::fusion::\w*d[oq]_",
            re.IGNORECASE,
        ),
    ),
    # cuBLAS: ampere_bf16_s16816gemm, sm80_xmma_gemm, nvjet_tst, cutlass_80_tensorop, splitKreduce; Triton's templates
    # (triton_tem_fused_mm); DeepGEMM's fp8_gemm_kernel; rocBLAS's Cijk_Alik_Bljk.
    (
        Part.PRODUCT,
        re.compile(
            r"gemm|nvjet|splitKreduce|Cijk_|cutlass.*(tensorop|GemmUniversal)|triton_tem_", re.IGNORECASE
        ),
    ),
    (Part.OPTIMIZER, re.compile(r"adam|multi_tensor_apply_kernel|lamb", re.IGNORECASE)),
)

# Kernels of NCCL (src/device/generate.py names them ncclDevKernel_<function>_..., src/device/symmetric/generate.py
# ncclSymkDevKernel_<function>_...; ncclKernel_ before 2.19; common.cu's ncclDevKernel_Generic says no function) by
# function; SendRecv is a message or an exchange, which the collective's name beside it tells.
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

# "Collective name" beside a kernel of NCCL (ProcessGroupNCCL.cpp, RECORD_PARAM_COMMS), the operations c10d::* of
# torch/csrc/distributed/c10d/Ops.cpp, and what gloo's work is called ("gloo:all_reduce"), without mark and underscores.
COLLECTIVES = {
    "allreduce": "all_reduce",
    "allreducecoalesced": "all_reduce",
    "allgather": "all_gather",
    "allgatherbase": "all_gather",
    "allgathersingle": "all_gather",
    "allgatherintotensorcoalesced": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter",
    "reducescattersingle": "reduce_scatter",
    "reducescattertensorcoalesced": "reduce_scatter",
    "alltoall": "all2all",
    "alltoallbase": "all2all",
    "alltoallv": "all2all",
    "alltoallsingle": "all2all",
    "broadcast": "broadcast",
    "broadcastoop": "broadcast",
    "reduce": "reduce",
    "reduceoop": "reduce",
    "send": "p2p",
    "recv": "p2p",
    "barrier": "barrier",
}

# Bytes an element: c10's names ("BFloat16", in args of NCCL's kernels) and those of input types ("c10::BFloat16").
TYPE_BYTES = {
    "float": 4,
    "double": 8,
    "half": 2,
    "bfloat16": 2,
    "long": 8,
    "long int": 8,
    "int": 4,
    "short": 2,
    "char": 1,
    "signed char": 1,
    "byte": 1,
    "unsigned char": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}


def collective_named(word: str) -> str | None:
    """The collective that a name stands for; None for what is none."""
    plain = word.lower().rpartition(":")[2].replace("_", "")
    return COLLECTIVES.get(plain)


def nccl_function(kernel: str) -> str | None:
    """NCCL's name of what a kernel does; None for a kernel of another library, and one that does several things."""
    found = NCCL.search(kernel)
    return found[1] if found else None


def type_bytes(name: object) -> int | None:
    """Bytes of an element by the name of its type."""
    return TYPE_BYTES.get(str(name).lower().removeprefix("c10::"))


def kernel_part(name: str) -> Part:
    """What a kernel is by its own name."""
    return next((part for part, pattern in KERNELS if pattern.search(name)), Part.KERNEL)
