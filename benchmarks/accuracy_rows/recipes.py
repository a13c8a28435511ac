"""What a framework's own recipes set where a row leaves it open, each with the file that says so.

Recipes are read as published, before and without a look at what a row measured.
"""

from benchmarks.accuracy_rows.row import Row
from ops.recompute import Recompute

# Stated by the framework's own recipes: NeMo-Framework-Launcher, conf/training/gpt3/*.yaml,
# activations_checkpoint_num_layers 0.
RECOMPUTES: dict[str, tuple[Recompute, ...]] = {"NeMo/Megatron-Core": (Recompute.NONE,)}

# NeMo AutoModel, examples/benchmark/configs/*_te_deepep.yaml, activation_checkpointing: by the start of
# the model's name.
AUTOMODEL_RECOMPUTES: tuple[tuple[str, Recompute], ...] = (
    ("gpt-oss", Recompute.NONE),
    ("moonlight", Recompute.NONE),
    ("qwen3", Recompute.FULL),
    ("deepseek", Recompute.FULL),
    ("kimi", Recompute.FULL),
)

# The benchmark settings of the first author of arXiv 2504.14960 (yanring/Megatron-MoE-ModelZoo,
# runtime_configs/benchmarking/runtime.conf): MBS 1 for every model but a toy of 8 x 2B, at that paper's
# sequence length and global batch.
EXPERT_MICRO_BATCHES: dict[str, tuple[int, ...]] = {"Megatron-Core": (1,)}


def micro_batches(row: Row) -> tuple[int, ...]:
    """Micro-batch sizes of the framework's recipes for this kind of model; () where none is known."""
    if not row.whole_or("num_experts", 0):
        return ()
    return EXPERT_MICRO_BATCHES.get(row.text("framework"), ())


def recomputes(row: Row) -> tuple[Recompute, ...]:
    """Recompute modes of the framework's recipes for this model; () where none is known."""
    if "AutoModel" in row.text("framework"):
        name = row.text("model_name").lower()
        return tuple(kind for start, kind in AUTOMODEL_RECOMPUTES if name.startswith(start))
    return RECOMPUTES.get(row.text("framework"), ())


def expert_ranks(row: Row, stated: int, dp: int) -> int:
    """Expert parallelism: as stated, but DeepEP moves tokens between expert ranks, so a row of AutoModel
    that runs it over "1" rank left the degree out; its recipes then take all FSDP ranks
    (examples/benchmark/configs/gptoss_*_te_deepep.yaml: ep_size = GPUs).
    """
    experts = row.whole_or("num_experts", 0)
    left_out = stated == 1 and "AutoModel" in row.text("framework") and "deepep" in row.notes.lower()
    return dp if left_out and experts and experts % dp == 0 else stated
