"""A 70B model with full multi-head attention under isp at 128 Ki tokens a sequence. Source of the model:
InternEvo configs/70B_isp_sft.py (kv heads are the 64 heads); its plan there is a placeholder, this
one splits sequences 8-fold and weights 32-fold.

As in 7B_isp_sft.py, NUM_KV_ATTENTION_HEAD is defined but not put into model.
"""

with read_base():
    from configs._base_.training import *

model_type = "INTERNLM2"

VOCAB_SIZE = 32000
SEQ_LEN = 128 * 1024
HIDDEN_SIZE = 8192
NUM_ATTENTION_HEAD = 64
NUM_KV_ATTENTION_HEAD = 8
MLP_RATIO = 3.5
NUM_LAYER = 80

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
    checkpoint=True,
    apply_post_layer_norm=False,
    num_chunks=1,
)

data = dict(seq_len=SEQ_LEN, micro_num=4, micro_bsz=1)

parallel = dict(
    zero1=dict(size=-1),
    tensor=dict(size=8, mode="isp"),
    pipeline=dict(size=1, interleaved_overlap=True),
    weight=dict(size=32, overlap=True, memory_pool=True),
    sequence_2D=dict(enable=False, head_size=2, context_size=4, window_size=1),
)
