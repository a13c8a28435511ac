"""nanotron and Picotron.

Of Picotron parameters, gradients of the update and moments are bf16 without a master copy: say ``precision.master`` =
"none" and ``precision.moments`` = "bf16"; without data parallelism ``data_parallel.fp32_gradients`` = false and
``data_parallel.accumulation`` = "accumulate".
"""

from spec.presets.variants.variant import Variant

NANOTRON = Variant(
    name="nanotron",
    of="megatron",
    source="huggingface/nanotron 67c5ebb (December 2024): models/llama.py (GLUActivation: act(gate) * up; CoreAttention: "
    "flash_attn_varlen_func; CausalSelfAttention: qkv permuted and copied, keys and values joined and copied again; LlamaForTraining.forward holds the fp32 logits), parallel/tensor_parallel/functional.py (collectives of the backward beside the other gradient, in the "
    "forward beside a rank's own shard alone), examples/config_tiny_llama_bench.yaml (ddp_bucket_cap_mb: 25, of 16-bit gradients), optim/gradient_accumulator.py (sync_gradients_across_dp: one all-reduce of all fp32 "
    "gradients after the backward; _accumulate_grad: 16-bit gradients added to fp32 ones), optim/zero.py (_all_gather_params after the update), distributed.py (all_gather_coalesced: lists of slices), "
    "models/base.py (build_model: stages cut by cost), parallel/pipeline_parallel/p2p.py (messages are waited for, their shapes read by the host), models/llama.py, get_flops (the whole matrix), LlamaDecoderLayer.forward (recompute_layer: every layer or none); config/config.py, make_vocab_size_divisible_by = 1, and helpers.py, _vocab_size_with_padding (times tp)",
    choices={
        "log.attention": "whole",
        "data_parallel.hybrid_zero": False,
        "offload.activations": False,
        "offload.modules": (),
        "offload.optimizer": "",
        "tensor_parallel.strategies": ("mtp", "fsp", "msp"),
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
PICOTRON = Variant(
    name="picotron",
    of="megatron",
    source="huggingface/picotron 59714b1 (August 2025): train.py (model.to(bfloat16) and torch.optim.AdamW, whose fused form device == 'cuda' never "
    "asks for; no gradient norm; F.cross_entropy on bf16 logits that the caller holds), picotron/model.py (q, k, v, gate and up apart; "
    "repeat_interleave of keys and values; flash_attn's Triton norms and rotary embeddings; F.silu(gate) * up; no checkpoints), "
    "picotron/tensor_parallel/tensor_parallel.py (apply_tensor_parallel: async_all_reduce False, so that every column-parallel linear waits for "
    "its own all-reduce; final_proj with gather_output), picotron/data_parallel (DataParallelBucket: fp32 buckets of 25 MB that are views, "
    "divided and all-reduced beside the last backward; main_grad.add_), picotron/pipeline_parallel (1F1B and AFAB; layers dealt evenly, the first "
    "stages get one more; every message is waited for, outputs stay), picotron/utils.py, get_mfu (12 layers hidden seq_len)",
    choices={
        "log.attention": "whole",
        "data_parallel.zero_stages": (0,),
        "data_parallel.hybrid_zero": False,
        "data_parallel.bucket_elements": 6_553_600,
        "data_parallel.bucket_elements_per_rank": 0,
        "data_parallel.gradient_sync": "all_reduce",
        "data_parallel.overlap_param_gather": False,
        "data_parallel.clips_gradients": False,
        "data_parallel.keeps_stand_ins": False,
        "data_parallel.update_copies": True,
        "data_parallel.accumulation": "accumulate_wide",
        "tensor_parallel.strategies": ("mtp",),
        "tensor_parallel.vocab_pad_multiple": 1,
        "tensor_parallel.overlap_backward": False,
        # its ring of plain products over blocks of scores is not priced
        "tensor_parallel.cuts_sequences": False,
        "tensor_parallel.spreads_experts": False,
        "loss.narrow": True,
        "loss.gathers_logits": True,
        "layers.fused_activation": False,
        "layers.joined_gate": False,
        "layers.joined_qkv": False,
        "layers.splits_joined_qkv": False,
        "layers.repeats_keys": True,
        "layers.shares_kept_inputs": False,
        "layers.turns_chunks": False,
        "layers.sends_probabilities": False,
        "pipeline.schedules": ("1f1b", "gpipe"),
        "pipeline.interleaves": False,
        "pipeline.uneven_chunks": "",
        "pipeline.overlap_hops": False,
        "pipeline.keeps_stage_outputs": True,
        "recomputation.layers": False,
        "recomputation.selective": "",
        "recomputation.partial": False,
        "recomputation.modules": (),
        "host.checks_numbers": False,
        "host.code": "picotron",
        "offload.optimizer": "",
        "offload.activations": False,
        "offload.modules": (),
    },
)
