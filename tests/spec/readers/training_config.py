"""A training config as InternEvo's own are, and the same with a line changed."""

from pathlib import Path

from spec.readers.config_file import ConfigFile
from spec.readers.read_config import read_config

# Laid out as InternEvo's own training configs are: constants, docstrings between statements and
# every section its launcher asks for.
TRAINING_CONFIG = '''
JOB_NAME = "7b_train"
model_type = "INTERNLM2"
DO_ALERT = False

VOCAB_SIZE = 103168
SEQ_LEN = 2048
HIDDEN_SIZE = 4096
NUM_ATTENTION_HEAD = 32
NUM_KV_ATTENTION_HEAD = 8
MLP_RATIO = 8 / 3
NUM_LAYER = 32

SAVE_CKPT_FOLDER = "local:llm_ckpts"
LOAD_CKPT_FOLDER = None
CHECKPOINT_EVERY = 50
ckpt = dict(
    enable_save_ckpt=False,
    save_ckpt_folder=SAVE_CKPT_FOLDER,
    load_ckpt_info=dict(path=LOAD_CKPT_FOLDER, content=("model",), ckpt_type="internevo"),
    oss_snapshot_freq=int(CHECKPOINT_EVERY / 2),  # half as often
)
data = dict(
    seq_len=SEQ_LEN,
    micro_num=4,
    micro_bsz=2,
    valid_micro_num=4,
    valid_every=50,
    pack_sample_into_one=False,
    total_steps=50000,
    skip_batches="",
    rampup_batch_size="",
    min_length=50,
    train_folder=None,
    valid_folder=None,
    empty_cache_and_diag_interval=200,
    diag_outlier_ratio=1.1,
)
grad_scaler = dict(fp16=dict(initial_scale=2**16, min_scale=1), growth_factor=2, max_scale=2**24)
hybrid_zero_optimizer = dict(
    overlap_sync_grad=True,
    overlap_sync_param=False,
    reduce_bucket_size=512 * 1024 * 1024,
    clip_grad_norm=1.0,
)
loss = dict(label_smoothing=0)
adam = dict(lr=1e-4, adam_beta1=0.9, adam_beta2=0.95, adam_beta2_c=0, adam_eps=1e-8, weight_decay=0.01)
lr_scheduler = dict(total_steps=data["total_steps"], init_steps=0, eta_min=1e-5, last_epoch=-1)
beta2_scheduler = dict(init_beta2=adam["adam_beta2"], c=adam["adam_beta2_c"], cur_iter=-1)
use_fp32_norm = False
model = dict(
    checkpoint=False,
    num_attention_heads=NUM_ATTENTION_HEAD,
    embed_split_hidden=True,
    vocab_size=VOCAB_SIZE,
    embed_grad_scale=1,
    parallel_output=True,
    hidden_size=HIDDEN_SIZE,
    num_layers=NUM_LAYER,
    no_bias=True,
    mlp_ratio=MLP_RATIO,
    apply_post_layer_norm=False,
    dtype="torch.bfloat16",
    norm_type="rmsnorm",
    layer_norm_epsilon=1e-5,
    use_flash_attn=True,
    num_chunks=1,
    qk_interleaved=False,
)
"""
zero1 parallel (dict): a docstring between statements
"""
parallel = dict(
    zero1=dict(size=-1, fsdp=False),
    tensor=dict(size=2, mode="isp"),
    pipeline=dict(size=1, interleaved_overlap=True),
    weight=dict(size=4, overlap=True, memory_pool=True, launch_allgather_before="wo",
                forward_overlap_per="layer"),
    sequence_2D=dict(enable=False, head_size=2, context_size=4, window_size=1,
                     device_placement_strategy=dict(head_first=True, interleaved=False)),
)
cudnn_deterministic = False
cudnn_benchmark = False
monitor = dict(
    alert=dict(enable_feishu_alert=DO_ALERT, alert_file_path=f"llm_alter/{JOB_NAME}_alert.log"),
    tensorboard=dict(queue_max_length=10),
)
generation = dict(eos_id=[2, 0], do_sample=True, temperature=1.0)
'''


def load(tmp_path: Path, text: str) -> ConfigFile:
    path = tmp_path / "train.py"
    path.write_text(text, encoding="utf-8")
    return read_config(path)


def changed(old: str, new: str) -> str:
    assert TRAINING_CONFIG.count(old) == 1, old
    return TRAINING_CONFIG.replace(old, new)
