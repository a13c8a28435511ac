"""Llama-3.1-405B. Source: Llama 3, arXiv 2407.21783, table 3; huggingface.co/meta-llama/Llama-3.1-405B
config.json; pre-training at 8,192 tokens (sec. 3.4). 405,853,388,800 parameters.
The plan has the tensor and pipeline sizes of table 4 there (8 and 16)."""

with read_base():
    from configs._base_.training import *

model_type = "LLAMA2"

VOCAB_SIZE = 128256
SEQ_LEN = 8192
HIDDEN_SIZE = 16384
NUM_ATTENTION_HEAD = 128
NUM_KV_ATTENTION_HEAD = 8
MLP_RATIO = 3.25
NUM_LAYER = 126

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
    rope_base=500000,
    apply_post_layer_norm=False,
    num_chunks=1,
)

data = dict(seq_len=SEQ_LEN, micro_num=16, micro_bsz=1)

parallel = dict(
    zero1=dict(size=-1),
    tensor=dict(size=8, mode="fsp"),
    pipeline=dict(size=16, interleaved_overlap=True),
    weight=dict(size=1, overlap=True, memory_pool=True),
)
