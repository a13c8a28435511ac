"""A 70B model with full multi-head attention under isp at 128 Ki tokens a sequence. Source of the model:
InternEvo configs/70B_isp_sft.py (kv heads are the 64 heads); its plan there is a placeholder, this
one splits sequences 8-fold and weights 32-fold.

As in 7B_isp_sft.py, InternEvo's file defines NUM_KV_ATTENTION_HEAD but does not put it into model.
"""

with read_base():
    from configs._base_.training import *

model_type = "INTERNLM2"

model = dict(
    num_layers=80,
    hidden_size=8192,
    num_attention_heads=64,
    vocab_size=32000,
    mlp_ratio=3.5,
    multiple_of=256,
    no_bias=True,
    norm_type="rmsnorm",
    dtype="torch.bfloat16",
    checkpoint=True,
    apply_post_layer_norm=False,
)

data = dict(seq_len=128 * 1024, micro_num=4, micro_bsz=1)

parallel = dict(
    zero1=dict(size=-1),
    tensor=dict(size=8, mode="isp"),
    pipeline=dict(size=1, interleaved_overlap=True),
    weight=dict(size=32, overlap=True, memory_pool=True),
    sequence_2D=dict(enable=False, head_size=2, context_size=4, window_size=1),
)
