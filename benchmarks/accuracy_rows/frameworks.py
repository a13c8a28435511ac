"""From the name of a row's framework to a preset, and to what its code sets otherwise."""

from collections.abc import Mapping

from benchmarks.accuracy_rows import recipes
from benchmarks.accuracy_rows.row import Row

Settings = Mapping[str, object]

# fms-fsdp with nightly builds of 2024: compiled, but with FSDP1, and joined matrices (fms/models/llama.py: fused_weights).
FSDP1: Settings = {
    **dict.fromkeys(("data_parallel.joins_gradients", "layers.joined_gate", "layers.joined_qkv"), True),
    "data_parallel.copies_parameters": False,
}
# torchtitan models/llama/model.py, Attention and FeedForward: wq, wk, wv; repeat_kv; w2(silu(w1(x)) * w3(x)).
APART: Settings = {
    **dict.fromkeys(("layers.joined_gate", "layers.joined_qkv", "layers.fused_activation"), False),
    "layers.repeats_keys": True,
}
# Transformer Engine's modules, its attention too.
AUTOMODEL: Settings = {
    **dict.fromkeys(("layers.fused_sums", "layers.repeats_keys"), False),
    "host.code": "modules",
    "tensor_parallel.partial_attention": "fused",
}
# (word in the framework column, preset, settings beside it); the first that occurs wins.
FRAMEWORKS: tuple[tuple[str, str, Settings], ...] = (
    ("InternEvo", "internlm", {}),
    ("llm-foundry", "composer", {}),
    ("torchtitan FSDP2 eager", "fsdp", APART),
    ("torchtitan", "fsdp-compiled", {}),
    ("FMS PyTorch", "fsdp-compiled", FSDP1),
    ("HF Trainer", "hf-trainer", {}),
    ("TRL", "hf-trainer", {}),
    ("XTuner", "xtuner", {}),
    ("nanotron", "nanotron", {}),
    ("HAI-LLM", "hai-llm", {}),
    ("AutoModel", "fsdp-compiled", AUTOMODEL),
    ("AA-Scaling", "aleph-alpha", {}),
    ("Megatron-LM/Megatron-DeepSpeed", "megatron-2021", {}),
    ("Megatron-DeepSpeed", "deepspeed", {}),
    ("zero-bubble", "megatron-2021", {}),
    ("Megatron-Bridge", "megatron-bridge", {}),
    ("MLPerf", "nemo2", {}),
    ("MaxText", "maxtext", {}),
    ("NeMo (DGX Cloud", "nemo2", {}),
    ("NeMo SFT", "nemo2", {}),
    ("NeMo LoRA", "nemo2", {}),
    ("NeMo", "nemo", {}),
    # Releases 0.9 and 0.10 (which had folding first, CHANGELOG.md) sort chunks of one capacity like others.
    ("Megatron-Core", "megatron", {"layers.turns_chunks": False}),
    ("Mega", "megatron", {}),
)
UNKNOWN_FRAMEWORK: tuple[str, Settings] = ("megatron", {})
# Published before Megatron-Core existed.
OLD_DATASETS = frozenset(
    {"vtrain_multi", "megatron_sc21", "megatron_seqpar", "megatron_tp2020", "mtnlg", "zero_bubble"}
)
# Of Megatron-LM from v2.6 (August 2021) on, whose norms are persistent (megatron/model/fused_layer_norm.py).
PERSISTENT_NORMS: Settings = {"layers.two_pass_norms": False}
PERSISTENT_NORM_DATASETS = frozenset({"megatron_seqpar", "zero_bubble"})


def framework_of(row: Row) -> tuple[str, Settings]:
    """The preset of the row's framework, with what it sets beside it; Megatron-Core's for an unknown one."""
    if row.dataset in OLD_DATASETS:
        norms = PERSISTENT_NORMS if row.dataset in PERSISTENT_NORM_DATASETS else {}
        return ("deepspeed-2021" if row.whole_or("zero_stage", 0) == 3 else "megatron-2021"), norms
    word = row.text("framework")
    if word == "Megatron-DeepSpeed" and row.text("precision").lower() == "bf16":
        return "deepspeed-bf16", {}
    if recipes.runs_xtuner_v1(row):
        return "xtuner-v1", {}
    return next(((name, beside) for part, name, beside in FRAMEWORKS if part in word), UNKNOWN_FRAMEWORK)
