"""Llama-2-13B. Source: Llama 2, arXiv 2307.09288, table 1 and appendix; huggingface.co/meta-llama/Llama-2-13b-hf
config.json. 13,015,864,320 parameters."""

with read_base():
    from configs._base_.training import *

model_type = "LLAMA2"

VOCAB_SIZE = 32000
SEQ_LEN = 4096
HIDDEN_SIZE = 5120
NUM_ATTENTION_HEAD = 40
MLP_RATIO = 8 / 3
NUM_LAYER = 40

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

data = dict(seq_len=SEQ_LEN, micro_num=8, micro_bsz=2)

parallel = dict(
    zero1=dict(size=-1),
    tensor=dict(size=4, mode="msp"),
    pipeline=dict(size=1, interleaved_overlap=True),
    weight=dict(size=1, overlap=True, memory_pool=True),
)
