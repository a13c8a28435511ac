"""Python calls of a framework's modules, forward or backward, in forwards of ``torch.nn.Linear``.

Fitted: calls of "modules" are the Python of Megatron-Core 0.13.1's own modules, run eagerly on a CPU with
operands so small that kernels take next to no time (benchmarks/host_work.py; docs/formulas.md has the
table and how it was reduced). Transformer Engine's linear takes 2.7 of them (TransformerEngine issue 2053:
99.7 against 37.1 us on GB200, 90.5 against 33.2 us on GH200). A backward takes as many calls as its forward: the
runs' backwards took 1.0 to 1.1 times as long. Assumption: "torch", modules without Megatron's layers of Python
around them.

"nanotron": its LlamaDecoderLayer (67c5ebb, models/llama.py) in the same way, forward and backward on a CPU
with a process group that moves nothing and flash-attn's kernels left out (torch 2.1): 124 calls at tp 1 and
158 to 168 with the ten collectives of tp, which split products too: four each, to which NCCL_CALLS come;
dealt to its modules by what each takes of a forward in a second run, whose total swung from 74 to 154 on a
busy machine. Not run by a script of this project.

"picotron": its DecoderLayer (59714b1, picotron/model.py, with flash-attn 2.5.0's Python and kernels left out) in the
same way with torch 2.13: 40.5 calls forward and 55 backward; forward 1.0 a linear, 3.5 a norm, 6.6 both rotary
embeddings and 6 the views around them, 5.4 attention, 1.5 the activation and 7 the layer around them. 48 a pass are
dealt in these shares. A parameter's hook (data_parallel.py, param_hook) takes 0.5 in the backward beside its addition,
a linear whose collective moves nothing 0.7 more.
"""

from dataclasses import dataclass, field

from ops.roles import Role

# Assumption: a collective takes two calls: events, streams and NCCL's own enqueueing beside the dispatch.
NCCL_CALLS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCalls:
    """Calls of a linear, of an attention kernel, of an exchange over ep, of reading back from the device how
    many tokens each expert gets (or how far positions reach: Assumption, alike), and of what else is a
    module, by its role; no other kernel is one. ``first_launch`` is 1 where no call holds an operation's
    first launch. ``collective``: what its Python takes, and NCCL_CALLS."""

    linear: float = 0.0
    attention: float = 0.0
    exchange: float = 0.0
    token_counts: float = 0.0
    by_role: dict[Role, float] = field(default_factory=dict)
    first_launch: float = 0.0
    collective: float = NCCL_CALLS


# Triton 2 as PyTorch 2.1 and 2.2 ship it takes 62 us to launch a kernel of many parameters (triton-lang/triton pull
# request 3503), in calls of 13.48 us.
TRITON_2_CALLS = 62.0 / 13.48

# By how the framework is written: "modules" (Megatron-Core and Transformer Engine), "torch" (plain PyTorch
# modules), "nanotron" and "picotron" (norms and rotary embeddings of queries and of keys are Triton kernels). In compiled
# code a kernel is a launch and no call.
CALLS: dict[str, ModuleCalls] = {
    "modules": ModuleCalls(
        linear=3.0,
        attention=14.0,
        exchange=8.0,
        token_counts=12.0,
        by_role={
            Role.NORM: 1.5,
            Role.ROTARY: 8.0,
            Role.ACTIVATION: 2.5,
            Role.RESIDUAL: 3.0,
            Role.ROUTER: 26.0,
            Role.PERMUTE: 8.0,
            Role.UNPERMUTE: 6.0,
            Role.SORT: 4.0,
            Role.UNSORT: 4.0,
        },
    ),
    "torch": ModuleCalls(
        linear=1.0,
        attention=4.0,
        exchange=8.0,
        token_counts=4.0,
        by_role={
            Role.NORM: 1.5,
            Role.ROTARY: 4.0,
            Role.ACTIVATION: 1.5,
            Role.RESIDUAL: 1.0,
            Role.ROUTER: 10.0,
            Role.PERMUTE: 6.0,
            Role.UNPERMUTE: 6.0,
            Role.SORT: 4.0,
            Role.UNSORT: 4.0,
        },
    ),
    "nanotron": ModuleCalls(
        linear=4.1,
        attention=7.8,
        by_role={
            Role.NORM: 3.9 + TRITON_2_CALLS,
            Role.ROTARY: 18.8 + 2.0 * TRITON_2_CALLS,
            Role.ACTIVATION: 6.2,
            Role.RESIDUAL: 2.2,
        },
        collective=4.0 + NCCL_CALLS,
    ),
    "picotron": ModuleCalls(
        linear=1.2 + 0.5 / 2,
        attention=6.4,
        by_role={
            Role.NORM: 4.1 + TRITON_2_CALLS,
            Role.ROTARY: 14.9 + 2.0 * TRITON_2_CALLS,
            Role.ACTIVATION: 1.8,
            Role.RESIDUAL: 4.1,
        },
        collective=0.7 + NCCL_CALLS,
    ),
    "compiled": ModuleCalls(first_launch=1.0),
}

# Of each piece beyond the first of a collective and a product (ops.tp_overlap): product, copy, its
# signal and the wait for the other's (split_overlap_ag), from C++. Assumption: half a launch each, without
# dispatch and autograd.
PIECE_LAUNCHES = 2.0
# Assumption: launching a Triton kernel (finding its compiled form by its arguments, in Python) takes one call.
TRITON_CALLS = 1.0
# TransformerEngine issue 761: issuing forwards with fp8 linears takes 140 ms where bf16 takes 77 ms.
FP8_CALLS_RATIO = 140.0 / 77.0
# A kernel that a C++ extension launches in a loop has neither PyTorch's dispatch nor autograd: half of a launch, the
# driver's 2 to 3 of 5 us (profdb.modelled.host).
EXTENSION_LAUNCHES = 0.5
# Transformer Engine 2 GroupedLinear runs one product per expert: splitting, casting and listing each.
# Assumption: half a call for it, and one more in the backward for the gradient's own tensor and hook.
EXPERT_CALLS = 0.5
EXPERT_GRADIENT_CALLS = 1.0
# Fitted: in fp8 each expert's quantizers, cached weight and narrow rows take more (grouped_linear.py:
# set_usage and get_weight_workspace run expert by expert): 10.8 us of a call's 8.7 with Transformer Engine
# 2.13's Python on a CPU, of which allocations that its C++ makes are some. Rows with a scale for every block
# are allocated for all experts at once and are no tensors of their own for Python (cast.cpp, split_quantize:
# use_fused_bulk_alloc; internal quantizers): 4.4 us.
EXPERT_CAST_CALLS = 1.0
EXPERT_BULK_CAST_CALLS = 4.4 / 8.7
# Fitted: a weight held in fp8 is a subclass of PyTorch's tensor whose attributes Python looks up
# (__torch_function__): its gradient's stand-in and hook, and its autograd node, take 7.5 us more of a call's
# 8.7 (Transformer Engine 2.9 and 2.13, GroupedLinear of 16 experts with Megatron-Core 0.15's hook, run as in
# docs/formulas.md: backwards of 408 to 497 us where 283 to 369 were).
NARROW_GRADIENT_CALLS = 7.5 / 8.7
# Fitted: a part of a layer whose saved tensors go to the host, forward and backward, and each tensor of it in each
# (fine_grained_activation_offload.py of August 2026, run on a CPU with streams and events that do nothing, groups of
# 1, 2 and 5 tensors, 500 rounds in turn with the linear: 2.9 to 3.4, 3.5 to 4.3 and 5.2 to 6.8 of its calls forward,
# 1.5 to 1.9, 2.1 to 2.6 and 3.8 to 5.0 backward), of which the empty tensor and the copy take most. What CUDA's own
# events and memory take is not among them.
OFFLOADED_PART_CALLS = (2.5, 0.9)
OFFLOADED_TENSOR_CALLS = 0.7
# Fitted: what Megatron-Core hangs before every module's forward to wait for gathered parameters
# (distributed_data_parallel.py of core 0.15, _make_forward_pre_hook), on the same CPU: 2.3 us of 8.7 a
# module, 0.7 for each of its parameters and 2.4 for each held in fp8.
HOOK_CALLS = 2.3 / 8.7
HOOKED_PARAMETER_CALLS = 0.7 / 8.7
NARROW_HOOKED_PARAMETER_CALLS = 2.4 / 8.7


# Kernels of an operation beyond its first, (forward, backward): those that PyTorch's dispatcher counted in the
# runs of benchmarks/host_work.py.

# Of operations that are several kernels whatever these are called.
OF_ROLE: dict[Role, tuple[float, float]] = {
    Role.ROUTER: (36.0, 26.0),
    Role.PERMUTE: (12.0, 4.0),
    Role.UNPERMUTE: (12.0, 4.0),
}
# Of a router, fewer where choosing experts, their scores and the loss that balances them are a kernel each,
# forward and backward (--moe-router-fusion): 8 + 6 + 4 kernels are 3, and 4 + 3 are 3, as PyTorch's
# dispatcher counts them of Megatron-Core 0.15.3 (moe_utils.py: topk_routing_with_score_function,
# compute_routing_scores_for_aux_loss, switch_load_balancing_loss_func; Transformer Engine 2.9 router.py).
FUSED_ROUTER = (15.0, 4.0)
OF_KERNEL: dict[str, tuple[float, float]] = {
    "rmsnorm": (0.0, 1.0),
    "layernorm": (0.0, 1.0),
    "rmsnorm_unfused": (7.0, 13.0),
    "rotary_unfused": (9.0, 9.0),
    "swiglu_unfused": (1.0, 2.0),
    "swiglu_halves_unfused": (1.0, 2.0),
    "masked_softmax_unfused": (4.0, 4.0),
    "bias_dropout_add": (0.0, 1.0),
    "cross_entropy": (7.0, 5.0),
    "cross_entropy_unfused": (7.0, 5.0),
    # log-softmax and the loss; backward each one's gradient, of the loss's also the zeros it is written into
    "cross_entropy_16bit": (1.0, 2.0),
    "clamp_glu_unfused": (4.0, 6.0),
    "expert_bias_unfused": (1.0, 3.0),
    "expert_bias_fp32_unfused": (1.0, 4.0),
}
