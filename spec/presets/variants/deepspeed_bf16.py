"""DeepSpeed's BF16_Optimizer: bf16 training at stages 0 and 1, with gradients of a step added up in fp32."""

from spec.presets.variants.variant import Variant

DEEPSPEED_BF16 = Variant(
    name="deepspeed-bf16",
    of="deepspeed",
    source="DeepSpeed runtime/bf16_optimizer.py (_setup_for_real_optimizer: fp32_groups_gradients_flat, an fp32 gradient of "
    "every parameter of the rank; immediate_grad_update is false by default), runtime/pipe/engine.py (_exec_backward_pass: "
    "clear_lp_grads, update_hp_grads(clear_lp_grads=False): 16-bit gradients stay beside them), runtime/engine.py "
    "(communication_data_type: bfloat16; allreduce_bucket casts to it and back)",
    choices={
        "data_parallel.zero_stages": (0, 1),
        "offload.optimizer": "",
        "data_parallel.fp32_gradients": True,
        "data_parallel.narrow_reduction": True,
        "data_parallel.keeps_micro_gradients": True,
        "data_parallel.gradient_sync": "all_reduce",
    },
)
