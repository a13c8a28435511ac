"""Settings that the shipped InternLM-style configs share: InternEvo's gradient synchronisation."""

hybrid_zero_optimizer = dict(
    overlap_sync_grad=True,
    overlap_sync_param=False,
    reduce_bucket_size=512 * 1024 * 1024,
    clip_grad_norm=1.0,
)
