"""How much is sharded, and what lies on the host, in the words of frameworks and of those who publish runs."""

import re

from benchmarks.accuracy_rows.row import Row

# Words of a stage, the first that occurs wins: DeepSpeed's (runtime/zero/config.py, stage 0 to 3; ZeRO++ and ZeRO-Infinity
# are of stage 3), PyTorch's (torch/distributed/fsdp/api.py, ShardingStrategy), Megatron-LM's.
STAGES: tuple[tuple[str, int | None], ...] = (
    (r"\bzero[ _-]?(?:stage|dp)?[ =_:-]*([0-3])\b", None),
    (r"\bzero\+\+|\bhpz\b|\bqwz\b|\bzero[ -]?infinity", 3),
    (r"\bno_shard\b", 0),
    (r"shard_grad_op|hybrid_shard_zero2", 2),
    (r"full_shard|hybrid_shard\b|\bhybrid[ -]shard|\bhsdp\b|\bfully_shard\b", 3),
    (r"\bdistributed[ _-]optimizer\b|\bdistopt\b", 1),
    # torchtitan config (fsdp_reshard_after_forward), FSDP2's fully_shard
    (r"reshard_after_forward[=: ]*(?:never|false)", 2),
    # FSDP means whole sharding where nobody says more (FULL_SHARD is the default of FSDP1, FSDP2 has no other), and so do
    # frameworks that know nothing else: Composer's yamls (sharding_strategy FULL_SHARD), torchtune's distributed recipes,
    # litgpt's pretrain.py, llama-recipes (configs/fsdp.py), AutoModel and MaxText (configs/base.yml, ici_fsdp_parallelism -1)
    (
        r"fsdp|torchtitan|\bolmo|llm[ -]?foundry|mosaicml|composer|torchtune|litgpt|lit-gpt|llama-(?:recipes|cookbook)|automodel|maxtext",
        3,
    ),
)
WORDS = "|".join(pattern for pattern, _ in STAGES[:-1])
# The optimizer's states and its update on the host: DeepSpeed's ZeRO-Offload (offload_optimizer: device cpu).
ON_HOST = r"(?:optimizer[ _-]?(?:cpu[ _-]?)?offload|offload[ _-]optimizer|zero[ -]?offload|cpu[ _-]offload(?:ing)?(?![ _-]layers))"
OFFLOADS = re.compile(rf"(?<!no )(?<!without )\b{ON_HOST}|\bzero[^;]*\boffload", re.IGNORECASE)
# Assumption: XTuner's benchmark ran deepspeed_zero3, in which its 70B fits.
XTUNER_STAGE = 3


def zero_stage_of(row: Row) -> int:
    """The stage of the row's column, else as framework or notes say it, else 0."""
    if row.known("zero_stage"):
        return row.whole_or("zero_stage", 0)
    framework = row.text("framework").lower()
    if "xtuner" in framework:
        return XTUNER_STAGE
    # Megatron-FSDP's strategy is "no_shard" unless told otherwise
    said = re.sub(r"megatron[ -]fsdp", "", f"{framework}; {row.notes.lower()}")
    for pattern, stage in STAGES:
        found = re.search(pattern, said)
        if found:
            return int(found[1]) if stage is None else stage
    return 0


def contradicted(row: Row, clause: str) -> bool:
    """Whether a clause says a numbered stage that the row is not priced with."""
    said = re.fullmatch(STAGES[0][0], clause.lower())
    return said is not None and int(said[1]) != zero_stage_of(row)


def updates_on_host(row: Row) -> bool:
    """Whether the row says that its optimizer lies on the host."""
    return OFFLOADS.search(f"{row.text('framework')}; {row.notes}") is not None
