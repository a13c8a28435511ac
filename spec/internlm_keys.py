"""Keys of InternEvo configs that cannot change step time or memory, section by section.

A key that is neither read by the reader nor listed here is refused. Read from InternEvo 0.5
``configs/`` and ``internlm/initialize/launch.py`` (args_sanity_check).
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

# data: everything but the keys of the batch describes the data set; what reaches the step is whole
# sequences of seq_len tokens. rampup_batch_size: the step priced is that after the ramp.
# pack_sample_into_one False cuts attention at document ends, which no config knows: whole
# sequences are priced, an upper bound.
DATA = frozenset(
    {
        "type",
        "pack_sample_into_one",
        "rampup_batch_size",
        "packed_length",
        "valid_micro_num",
        "valid_every",
        "valid_pack_mode",
        "total_steps",
        "skip_batches",
        "min_length",
        "train_folder",
        "valid_folder",
        "empty_cache_and_diag_interval",
        "diag_outlier_ratio",
        "use_packed_dataset",
        "fixed_random_dataset_seqlen",
        "tokenizer_path",
        "vocab_file",
        "dataset_name",
        "dataset_weights",
        "num_worker",
        "num_workers",
        "seed",
        "text_field",
        "use_shm",
        "train_one_epoch",
        "break_mode",
        "shuffle",
        "buffer_size",
        "is_multimodal",
        "image_folder",
    }
)

# initialisation, rotary base and layout, epsilons, gradient scale of the embedding, kernel fusion
# that moves the same bytes and FLOPs
MODEL = frozenset(
    {
        "embed_split_hidden",
        "embed_grad_scale",
        "layer_norm_epsilon",
        "qk_interleaved",
        "rope_base",
        "rope_type",
        "rope_scaling_factor",
        "use_dynamic_ntk_rope",
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
        "mlp_layer_fusion",
        "enable_qkv_fusion",
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
        "normalize_expert_weights",
        "scoring_func",
        "routed_scaling_factor",
    }
)

HYBRID_ZERO = frozenset({"clip_grad_norm", "grad_clip", "check_nan", "partition_grad_order"})

PIPELINE = frozenset({"interleaved_overlap"})
