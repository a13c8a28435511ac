"""InternLM 7B with four experts a layer, two per token. Source: InternEvo configs/7B_MoE4_sft.py.

The first InternLM generation (model_type INTERNLM_MoE) has biases on q, k, v and the output.
"""

with read_base():
    from configs._base_.training import *

model_type = "INTERNLM_MoE"

model = dict(
    num_layers=32,
    hidden_size=4096,
    num_attention_heads=32,
    vocab_size=103168,
    mlp_ratio=4 / 3,
    norm_type="rmsnorm",
    dtype="torch.bfloat16",
    checkpoint=False,
    apply_post_layer_norm=False,
    moe_type="GShard",
    num_experts=4,
    top_k=2,
)

data = dict(seq_len=2048, micro_num=4, micro_bsz=2)

parallel = dict(
    zero1=dict(size=-1, fsdp=False),
    tensor=dict(size=1, mode="mtp"),
    pipeline=dict(size=1, interleaved_overlap=True),
    weight=dict(size=1, overlap=True, memory_pool=True),
    expert=dict(size=-1, no_tp=False),
    expert_weight=dict(size=1, overlap=True, memory_pool=True),
)
