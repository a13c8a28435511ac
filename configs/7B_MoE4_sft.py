"""InternLM 7B with four experts a layer, two per token. Source: InternEvo configs/7B_MoE4_sft.py.

The first InternLM generation (model_type INTERNLM_MoE) has biases on q, k, v and the output.
"""

with read_base():
    from configs._base_.training import *

model_type = "INTERNLM_MoE"

SEQ_LEN = 2048
HIDDEN_SIZE = 4096
NUM_ATTENTION_HEAD = 32
MLP_RATIO = 4 / 3
NUM_LAYER = 32
VOCAB_SIZE = 103168

model = dict(
    num_layers=NUM_LAYER,
    hidden_size=HIDDEN_SIZE,
    num_attention_heads=NUM_ATTENTION_HEAD,
    vocab_size=VOCAB_SIZE,
    mlp_ratio=MLP_RATIO,
    norm_type="rmsnorm",
    dtype="torch.bfloat16",
    use_flash_attn=True,
    checkpoint=False,
    apply_post_layer_norm=False,
    num_chunks=1,
    moe_type="GShard",
    num_experts=4,
    top_k=2,
)

data = dict(seq_len=SEQ_LEN, micro_num=4, micro_bsz=2)

parallel = dict(
    zero1=dict(size=-1, fsdp=False),
    tensor=dict(size=1, mode="mtp"),
    pipeline=dict(size=1, interleaved_overlap=True),
    weight=dict(size=1, overlap=True, memory_pool=True),
    expert=dict(size=-1, no_tp=False),
    expert_weight=dict(size=1, overlap=True, memory_pool=True),
)
