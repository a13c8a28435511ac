"""nanotron."""

from spec.presets.variants.variant import Variant

NANOTRON = Variant(
    name="nanotron",
    of="megatron",
    source="huggingface/nanotron 67c5ebb (December 2024): models/llama.py (GLUActivation: act(gate) * up; CoreAttention: "
    "flash_attn_varlen_func; CausalSelfAttention: qkv permuted and copied, keys and values joined and copied again; LlamaForTraining.forward holds the fp32 logits), parallel/tensor_parallel/functional.py (collectives of the backward beside the other gradient, in the "
    "forward beside a rank's own shard alone), examples/config_tiny_llama_bench.yaml (ddp_bucket_cap_mb: 25, of 16-bit gradients), optim/gradient_accumulator.py (sync_gradients_across_dp: one all-reduce of all fp32 "
    "gradients after the backward; _accumulate_grad: 16-bit gradients added to fp32 ones), optim/zero.py (_all_gather_params after the update), distributed.py (all_gather_coalesced: lists of slices), "
    "models/base.py (build_model: stages cut by cost), parallel/pipeline_parallel/p2p.py (messages are waited for, their shapes read by the host), models/llama.py, get_flops (the whole matrix), LlamaDecoderLayer.forward (recompute_layer: every layer or none); config/config.py, make_vocab_size_divisible_by = 1, and helpers.py, _vocab_size_with_padding (times tp); recorded_layers: 1000 commands (solver.memory.recorded_inputs) over the 30 kernels of a layer's forward "
    "and six commands (kernel, two events, two waits, the event at its free) for each of four collectives, on one connection",
    choices={
        "log.attention": "whole",
        "data_parallel.hybrid_zero": False,
        "offload.activations": False,
        "offload.modules": (),
        "offload.optimizer": "",
        "tensor_parallel.strategies": ("mtp", "fsp", "msp"),
        "tensor_parallel.recorded_layers": 18,
        "tensor_parallel.vocab_pad_multiple": 1,
        "loss.holds_logits": True,
        "layers.fused_activation": False,
        "layers.copies_heads": True,
        "layers.splits_joined_qkv": False,
        "data_parallel.bucket_elements": 13_107_200,
        "data_parallel.bucket_elements_per_rank": 0,
        "data_parallel.gradient_sync": "all_reduce",
        "data_parallel.overlap_grad_reduce": False,
        "data_parallel.overlap_param_gather": False,
        "data_parallel.lists_of_slices": True,
        "data_parallel.keeps_buckets": True,
        "data_parallel.keeps_stand_ins": False,
        "data_parallel.accumulation": "accumulate_wide",
        "pipeline.interleaves": False,
        "pipeline.uneven_chunks": "",
        "pipeline.overlap_hops": False,
        "pipeline.deals": "costs",
        "recomputation.selective": "",
        "recomputation.partial": False,
        "recomputation.modules": (),
        "host.checks_numbers": False,
        "host.code": "nanotron",
    },
)
