"""InternLM2-7B. Source: huggingface.co/internlm/internlm2-7b config.json; InternLM2 technical
report, arXiv 2403.17297, table 1. 7,737,708,544 parameters."""

model_type = "INTERNLM2_PUBLIC"

VOCAB_SIZE = 92544
HIDDEN_SIZE = 4096
NUM_ATTENTION_HEAD = 32
NUM_KV_ATTENTION_HEAD = 8
MLP_RATIO = 3.5
NUM_LAYER = 32

model = dict(
    num_layers=NUM_LAYER,
    hidden_size=HIDDEN_SIZE,
    num_attention_heads=NUM_ATTENTION_HEAD,
    num_kv_attention_heads=NUM_KV_ATTENTION_HEAD,
    vocab_size=VOCAB_SIZE,
    mlp_ratio=MLP_RATIO,
    multiple_of=256,
    no_bias=True,
    norm_type="rmsnorm",
    dtype="torch.bfloat16",
    use_flash_attn=True,
    checkpoint=False,
    rope_base=1000000,
    apply_post_layer_norm=False,
    num_chunks=1,
)
