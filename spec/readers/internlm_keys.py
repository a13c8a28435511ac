"""Keys of InternEvo configs that cannot change step time or memory, section by section.

A key of the top level, ``model``, ``moe``, ``parallel`` or ``hybrid_zero_optimizer`` that is neither
read by the reader nor listed here is refused. Read from InternEvo 0.5 ``configs/`` and
``internlm/initialize/launch.py`` (args_sanity_check).
"""

# whole top-level settings: names, checkpoints, logging, schedules of learning rate and loss scale,
# generation after training
TOP_LEVEL = frozenset(
    {
        "JOB_NAME",
        "DO_ALERT",
        "model_type",
        "ckpt",
        "loss",
        "adam",
        "lr_scheduler",
        "beta2_scheduler",
        "grad_scaler",
        "grad_profiling",
        "monitor",
        "alert_address",
        "generation",
        "cudnn_deterministic",
        "cudnn_benchmark",
        "enable_tb",
        "tensorboard_folder",
        "resume_tb_folder",
        "metric_dtype",
        "batch_count",
        "enable_save_ckpt",
        "use_apex_adam",
    }
)

# initialisation, layout of queries and keys, gradient scale of the embedding, kernel fusion that
# moves the same bytes and FLOPs
MODEL = frozenset(
    {
        "embed_split_hidden",
        "embed_grad_scale",
        "qk_interleaved",
        "rope_type",
        "rot_embed_HF_impl",
        "adapt_hf",
        "max_window_layers",
        "use_scaled_init",
        "use_swiglu_init",
        "init_type",
        "embedding_init_std",
        "attn_wqkv_init_std",
        "attn_other_init_std",
        "ffn_uplayer_init_std",
        "ffn_other_init_std",
        "out_head_init_std",
        "norm_head",
        "dropout_selective_checkpoint",
    }
)

MOE = frozenset(
    {
        "eval_capacity_factor",
        "min_capacity",
        "noisy_gate_policy",
        "use_rts",
        "use_fused_gating",
        "enable_fused_routing",
        "enable_token_rearrange_opt",
        "use_tutel",
        "aux_loss_by_layer",
    }
)

HYBRID_ZERO = frozenset({"clip_grad_norm", "grad_clip", "check_nan", "partition_grad_order"})
