"""Kernels of an operation beyond its first, (forward, backward): those that PyTorch's dispatcher counted in the
runs of benchmarks/host_work.py."""

from ops.roles import Role

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
