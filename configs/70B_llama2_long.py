"""Llama-2-70B at 256 Ki tokens a sequence: the model of 70B_llama2.py under isp, each sequence split
over 8 GPUs by its heads (8 kv heads, so 8 is the most) and the weights over 64.

Source of the model: huggingface.co/meta-llama/Llama-2-70b-hf config.json; of the length: InternEvo
configs/70B_llama2_long.py, which splits the context 8-fold as well (sequence_2D, not priced yet).
"""

with read_base():
    from configs._base_.training import *

model_type = "LLAMA2"

model = dict(
    num_layers=80,
    hidden_size=8192,
    num_attention_heads=64,
    num_kv_attention_heads=8,
    vocab_size=32000,
    mlp_ratio=3.5,
    multiple_of=256,
    no_bias=True,
    norm_type="rmsnorm",
    dtype="torch.bfloat16",
    checkpoint=True,
    apply_post_layer_norm=False,
)

data = dict(seq_len=256 * 1024, micro_num=1, micro_bsz=1)

parallel = dict(
    zero1=dict(size=-1),
    tensor=dict(size=8, mode="isp"),
    pipeline=dict(size=1, interleaved_overlap=True),
    weight=dict(size=64, overlap=True, memory_pool=True),
)
