"""What a release of Megatron-LM does otherwise than the newest one, by the release that a row's framework names."""

import re
from collections.abc import Mapping

from benchmarks.accuracy_rows.row import Row
from benchmarks.accuracy_rows.stated_sharding import zero_stage_of

Settings = Mapping[str, object]
Release = tuple[int, ...]
NEWEST: Release = (99,)

# Releases of Megatron-Core and the month of each tag, for frameworks that are named by a month ("Megatron-LM 24.03").
# Before core 0.4 tags are v2.0 to v3.0 and the months 23.04 to 23.08.
TAGGED: tuple[tuple[str, Release], ...] = (
    ("26.02", (0, 16)),
    ("25.12", (0, 15)),
    ("25.10", (0, 14)),
    ("25.07", (0, 13)),
    ("25.05", (0, 12)),
    ("25.03", (0, 11)),
    ("25.02", (0, 10)),
    ("24.10", (0, 9)),
    ("24.08", (0, 8)),
    ("24.05", (0, 7)),
    ("24.04", (0, 6)),
    ("24.02", (0, 5)),
    ("23.12", (0, 4)),
)
V2_6: Release = (0, 0, 2, 6)
V3_0: Release = (0, 0, 3, 0)
FIRST_CORE: Release = (0, 4)
# Of a Megatron-Core without a number: arXiv 2504.14960 ran 0.9 and 0.10, which had folding first (CHANGELOG.md).
UNNUMBERED_CORE: Release = (0, 10)

# (the first release that does otherwise, what earlier ones do).
BEFORE: tuple[tuple[Release, Settings], ...] = (
    # core/transformer/attention.py and moe/experts.py: set_save_original_input
    ((0, 14), {"layers.shares_kept_inputs": False}),
    # transformer_config.py: pipeline_model_parallel_layout
    ((0, 13), {"pipeline.uneven_chunks": "ends"}),
    # moe/experts.py: permuted_probs; until 0.12.0 rows are multiplied where they come from (token_dispatcher.py)
    ((0, 12, 1), {"layers.sends_probabilities": False}),
    # arguments.py: --recompute-modules, --optimizer-cpu-offload; training.py, num_floating_point_operations
    (
        (0, 12),
        {"recomputation.modules": (), "offload.optimizer": "", "log.attention": "whole"},
    ),
    # token_dispatcher.py: chunks of one capacity are sorted like others; transformer_config.py:
    # account_for_embedding_in_pipeline_split
    ((0, 11), {"layers.turns_chunks": False, "pipeline.uneven_chunks": ""}),
    # arguments.py: --num-distributed-optimizer-instances
    ((0, 10), {"data_parallel.hybrid_zero": False}),
    # core/fusions/fused_bias_swiglu.py; model_parallel_config.py: cpu_offloading
    ((0, 5), {"layers.fused_activation": False, "offload.activations": False}),
)
# Transformer Engine from 2.3 on keeps stand-ins (module/base.py, get_dummy_wgrad); containers of core 0.13 have it.
STAND_INS, STAND_INS_IN_CORE = (2, 3), (0, 13)
# core/fusions/fused_bias_swiglu.py and --no-rope-fusion are of core 0.5.
FUSED_ROTARY: Release = (0, 5)

# Of Megatron-LM from v2.6 (August 2021) on, whose norms are persistent (megatron/model/fused_layer_norm.py).
PERSISTENT_NORMS: Settings = {"layers.two_pass_norms": False}
# From v3.0 (2022) to 23.08: before Megatron-LM overlapped reductions, gathers or messages (schedules.py,
# p2p_communication.py), with its first distributed optimizer (distrib_optimizer.py: one reduce-scatter of the
# whole buffer).
DISTRIBUTED_OPTIMIZER: Settings = {**PERSISTENT_NORMS, "data_parallel.gradient_sync": "reduce_scatter"}

# arXiv 2401.10241 sec. 4: its measurements update stage by stage.
POST_VALIDATION: Settings = {"pipeline.post_validation": True}
# Published before Megatron-Core existed.
OLD_DATASETS = frozenset(
    {"vtrain_multi", "megatron_sc21", "megatron_seqpar", "megatron_tp2020", "mtnlg", "zero_bubble"}
)
PERSISTENT_NORM_DATASETS = frozenset({"megatron_seqpar", "zero_bubble"})
# Their gradients are added up by the product (its fork is of core 0.4).
FUSED_SUMS_DATASETS = frozenset({"zero_bubble"})

# NeMo 2 and the month of its first container with performance recipes (v2.1.0, January 2025: 24.12), and that of the
# first one whose recipes are Megatron-Bridge's. Before, NeMo-Framework-Launcher ran NeMo 1.
NEMO2, FIRST_CONTAINER, NEMO2_CONTAINER, BRIDGE_CONTAINER = (2, 0), (22, 1), (24, 12), (25, 9)
# Minor releases of DeepSpeed 0: the first that gathers several parameters at once, and that all-reduces whole buckets.
GATHERS_JOINED, BUCKETS_REDUCED = 6, 13

ENGINE = re.compile(r"(?:\bte|transformer[ -]?engine) ?v?(\d+)\.(\d+)[\w.]*")


def release_of(word: str) -> Release:
    """The release of Megatron-LM that a framework's name says; the newest where it says none."""
    said = ENGINE.sub("", word.lower())
    core = re.search(r"(?<![\d.])0\.(\d+)(?:\.(\d+)(rc\d+)?)?", said)
    if core:
        # a candidate of a release with a patch is of before it
        return (0, int(core[1]), 0 if core[3] else int(core[2] or 0))
    old = re.search(r"\bv([123])\.(\d+)", said)
    if old:
        return (0, 0, int(old[1]), int(old[2]))
    month = re.search(r"\b(2[1-9]\.[01]\d)\b", said)
    if month:
        return next((release for tagged, release in TAGGED if month[1] >= tagged), V3_0)
    return UNNUMBERED_CORE if re.search(r"(megatron|m)-?core\b", said) else NEWEST


def megatron_of(row: Row) -> tuple[str, Settings]:
    """The preset of a row of Megatron-LM, by its release, with what that release does otherwise."""
    word = row.text("framework")
    release = release_of(word)
    if release < FIRST_CORE:
        since = {} if release < V2_6 else PERSISTENT_NORMS if release < V3_0 else DISTRIBUTED_OPTIMIZER
        return "megatron-2021", {**since, **sums_of(row, fuses=release >= V3_0)}
    found: dict[str, object] = {}
    for first, choices in reversed(BEFORE):
        if release < first:
            # what the earliest later release changed beats what those after it did
            found = {**choices, **found}
    engine = ENGINE.search(word.lower())
    stands_in = (int(engine[1]), int(engine[2])) >= STAND_INS if engine else release >= STAND_INS_IN_CORE
    if not stands_in:
        found["data_parallel.keeps_stand_ins"] = False
    return "megatron", {**found, **sums_of(row, fuses=True)}


def nemo_of(word: str) -> str:
    """The preset of NeMo by its version or its container's month; NeMo 1 where it says neither."""
    found = re.search(r"\bnemo[ @-]*(?:framework)?[ @(-]*[vr]?(\d+)\.(\d+)", word.lower())
    said = (int(found[1]), int(found[2])) if found else (1, 0)
    if said >= BRIDGE_CONTAINER:
        return "megatron-bridge"
    version = said < FIRST_CONTAINER
    return "nemo2" if said >= (NEMO2 if version else NEMO2_CONTAINER) else "nemo"


def deepspeed_of(row: Row, name: str) -> tuple[str, Settings]:
    """DeepSpeed by the release that a framework's name says: stage 3 gathers parameter by parameter before 0.6
    (AllGatherCoalescedHandle of partition_parameters.py), and every slice of a gradient is reduced to its owner
    before 0.13 (zero/config.py: use_multi_rank_bucket_allreduce)."""
    found = re.search(r"deepspeed[ @(-]*v?0\.(\d+)", row.text("framework").lower())
    release = int(found[1]) if found else BUCKETS_REDUCED
    if release < GATHERS_JOINED and name == "deepspeed" and zero_stage_of(row) == 3:
        return "deepspeed-2021", {}
    return name, {} if release >= BUCKETS_REDUCED else {"data_parallel.gradient_sync": "reduce_scatter"}


def sums_of(row: Row, *, fuses: bool) -> dict[str, object]:
    """The format in which gradients are added up, and by which kernel: fp32 under bf16, 16 bits under fp16 unless asked
    otherwise (arguments.py of every release from v2.2 on: "bfloat16 requires gradient accumulation and all-reduce to be
    done in fp32"), by the product (``fuses``; tensor_parallel/layers.py: wgrad_gemm_accum_fp32 since February 2022,
    wgrad_gemm_accum_fp16 since September) or in a pass (v2.5 megatron/model/distributed.py: main_grad.add_)."""
    half = row.text("precision").lower() in ("fp16", "16-bit")
    if fuses:
        kernel = "accumulate_16bit" if half else "accumulate_fp32"
    else:
        kernel = "accumulate" if half else "accumulate_wide"
    return {"data_parallel.fp32_gradients": not half, "data_parallel.accumulation": kernel}


def unfused_in_release(row: Row) -> frozenset[str]:
    """What releases before core 0.5 leave to elementwise PyTorch: rotary embeddings (23.08
    megatron/model/transformer.py: apply_rotary_pos_emb) and RMSNorm (megatron/model/rms_norm.py), which models of
    gated activations have."""
    if release_of(row.text("framework")) >= FUSED_ROTARY:
        return frozenset()
    return frozenset({"rotary", "norm"} if row.text("gated_mlp") == "1" else {"rotary"})


def of_2023(row: Row) -> bool:
    """Whether a row ran the Megatron-LM of 2022 and 2023 with its first distributed optimizer and flash-attn 1
    (flash_attn_unpadded_func): what MegaScale is compared with (arXiv 2402.15627, sec. 6: 285068c8, January
    2023), or a release of before core 0.4."""
    word = row.text("framework")
    if row.dataset == "megascale" and word.startswith("Megatron"):
        return True
    of_megatron = word.startswith("Megatron-LM") and "deepspeed" not in word.lower()
    return of_megatron and V3_0 <= release_of(word) < FIRST_CORE


def before_core(row: Row) -> tuple[str, Settings] | None:
    """The preset of rows known to be of before Megatron-Core, by their datasets; None for others."""
    if of_2023(row):
        return "megatron-2021", {**DISTRIBUTED_OPTIMIZER, **sums_of(row, fuses=True)}
    if row.dataset not in OLD_DATASETS:
        return None
    if zero_stage_of(row) == 3:
        return "deepspeed-2021", {}
    norms = PERSISTENT_NORMS if row.dataset in PERSISTENT_NORM_DATASETS else {}
    apart = POST_VALIDATION if "zero-bubble" in row.text("framework") else {}
    return "megatron-2021", {
        **norms,
        **apart,
        **sums_of(row, fuses=row.dataset in FUSED_SUMS_DATASETS),
    }
