"""Llama-2-70B at 256 Ki tokens a sequence: the model of 70B_llama2.py under isp, each sequence split
over 8 GPUs by its heads (8 kv heads, so 8 is the most) and the weights over 64.

Source of the model: huggingface.co/meta-llama/Llama-2-70b-hf config.json; of the length: InternEvo
configs/70B_llama2_long.py, which splits the context 8-fold as well (sequence_2D, not priced yet).
"""

with read_base():
    from configs._base_.training import *

model_type = "LLAMA2"

VOCAB_SIZE = 32000
SEQ_LEN = 256 * 1024
HIDDEN_SIZE = 8192
NUM_ATTENTION_HEAD = 64
NUM_KV_ATTENTION_HEAD = 8
MLP_RATIO = 3.5
NUM_LAYER = 80

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
    checkpoint=True,
    apply_post_layer_norm=False,
    num_chunks=1,
)

data = dict(seq_len=SEQ_LEN, micro_num=1, micro_bsz=1)

parallel = dict(
    zero1=dict(size=-1),
    tensor=dict(size=8, mode="isp"),
    pipeline=dict(size=1, interleaved_overlap=True),
    weight=dict(size=64, overlap=True, memory_pool=True),
)
