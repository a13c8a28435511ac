"""InternLM2-7B at 4,096 tokens a sequence; the model and its source are in _base_/models.

Plan as written: eight GPUs of a node share each layer, full ZeRO-1; on 128 GPUs
16 data-parallel ranks x 4 x 16 sequences of 4,096 make 4 Mi tokens a step.
"""

with read_base():
    from configs._base_.models.internlm2_7B import *
    from configs._base_.training import *

data = dict(seq_len=4096, micro_num=16, micro_bsz=4)

parallel = dict(
    zero1=dict(size=-1),
    tensor=dict(size=8, mode="msp"),
    pipeline=dict(size=1, interleaved_overlap=True),
    weight=dict(size=1, overlap=True, memory_pool=True),
)
