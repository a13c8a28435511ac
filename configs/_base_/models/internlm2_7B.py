"""InternLM2-7B. Source: huggingface.co/internlm/internlm2-7b config.json; InternLM2 technical
report, arXiv 2403.17297, table 1. 7,737,708,544 parameters."""

model_type = "INTERNLM2_PUBLIC"

model = dict(
    num_layers=32,
    hidden_size=4096,
    num_attention_heads=32,
    num_kv_attention_heads=8,
    vocab_size=92544,
    mlp_ratio=3.5,
    multiple_of=256,
    no_bias=True,
    norm_type="rmsnorm",
    dtype="torch.bfloat16",
    checkpoint=False,
    rope_base=1000000,
    apply_post_layer_norm=False,
)
