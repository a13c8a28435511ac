"""InternLM 7B under isp. Source: InternEvo configs/7B_isp_sft.py.

As there, NUM_KV_ATTENTION_HEAD is defined but not put into model: kv heads are the 32 heads."""

with read_base():
    from configs._base_.training import *

model_type = "INTERNLM2"

VOCAB_SIZE = 103168
SEQ_LEN = 2048
HIDDEN_SIZE = 4096
NUM_ATTENTION_HEAD = 32
NUM_KV_ATTENTION_HEAD = 8
MLP_RATIO = 8 / 3
NUM_LAYER = 32

model = dict(
    num_layers=NUM_LAYER,
    hidden_size=HIDDEN_SIZE,
    num_attention_heads=NUM_ATTENTION_HEAD,
    vocab_size=VOCAB_SIZE,
    mlp_ratio=MLP_RATIO,
    multiple_of=256,
    no_bias=True,
    norm_type="rmsnorm",
    dtype="torch.bfloat16",
    use_flash_attn=True,
    checkpoint=False,
    apply_post_layer_norm=False,
    num_chunks=1,
)

data = dict(seq_len=SEQ_LEN, micro_num=4, micro_bsz=2)

parallel = dict(
    zero1=dict(size=-1),
    tensor=dict(size=2, mode="isp"),
    pipeline=dict(size=1, interleaved_overlap=True),
    weight=dict(size=4, overlap=True, memory_pool=True),
    sequence_2D=dict(enable=False, head_size=2, context_size=4, window_size=1),
)
