"""Small models, and the words that most questions share."""

from tests.solver.questions import ROOT

SHAPES = ROOT / "tests" / "spec" / "readers" / "huggingface" / "shapes"

SMALL_TOML = b"""\
source = "made up"

[model]
hidden = 1024
vocab = 32000
norm = "rmsnorm"
position = "rotary"
max_positions = 4096
tied_embeddings = false

[[model.blocks]]
count = 1
attention = { num_heads = 16, num_kv_heads = 8 }
mlp = { ffn_hidden = 2816, gated = true }

[[model.blocks]]
count = 3
attention = { num_heads = 16, num_kv_heads = 8 }
moe = { num_experts = 8, topk = 2, expert_ffn_hidden = 512, gated = true }

[data]
seq_len = 2048

[plan]
strategy = "fsp"
tp = 2
pp = 1
zero_stage = 1
zero_size = 2
micro_batch = 1
num_micro = 2
recompute = "none"
preset = "megatron"
"""
DENSE_TOML = (ROOT / "configs" / "7B_gpt.toml").read_bytes()
SMALL_PY = b"""\
model_type = "INTERNLM2_PUBLIC"
SEQ_LEN = 256
model = dict(num_layers=4, hidden_size=256, num_attention_heads=8, num_kv_attention_heads=4, vocab_size=1024,
    mlp_ratio=3.5, multiple_of=64, no_bias=True, norm_type="rmsnorm", dtype="torch.bfloat16", use_flash_attn=True,
    checkpoint=False)
data = dict(seq_len=SEQ_LEN, micro_num=4, micro_bsz=1)
parallel = dict(zero1=dict(size=-1), tensor=dict(size=2, mode="msp"), pipeline=dict(size=1, interleaved_overlap=True),
    weight=dict(size=1, overlap=True, memory_pool=True))
"""
PRICE = "--world_size 8 --global_batch_size 65536 --json answer.json"
PLAN = "--plan strategy=fsp,tp=2,zero_stage=1,micro_batch=1"
GENERATE = "generate --world_size 16 --global_batch 32"
