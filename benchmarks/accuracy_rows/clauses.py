"""Every clause of a row's notes accounted for: read as a setting, stated and without a setting here, about the
measurement alone, or not read, which is an error of the report; and so are cells that would be taken for a default."""

import re
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from benchmarks.accuracy_rows.fine_tuning import ADAPTS, fine_tuning, modules_named, modules_of
from benchmarks.accuracy_rows.frameworks import framework_of
from benchmarks.accuracy_rows.hardware import fabric_of, network_sheet
from benchmarks.accuracy_rows.model import family_of
from benchmarks.accuracy_rows.notes import (
    OVERLAP,
    RECIPE_VALUES,
    REPLICAS,
    SHARDS,
    TP_OVERLAP,
    notes_of,
    recipe_settings,
)
from benchmarks.accuracy_rows.plan import STATED_RECOMPUTES
from benchmarks.accuracy_rows.remat import STATED
from benchmarks.accuracy_rows.row import OPTIONAL_COLUMNS, REQUIRED_COLUMNS, Row
from benchmarks.accuracy_rows.stated_schedules import names_schedule
from benchmarks.accuracy_rows.stated_sharding import ON_HOST, WORDS, contradicted
from spec.errors import ConfigError
from spec.frameworks import framework_preset
from spec.pipeline.layout import parse_pipeline_layout


class Reading(StrEnum):
    """What becomes of a clause."""

    TAKEN = "read"
    UNPRICED = "no setting here"
    NOTHING = "sets nothing"
    UNREAD = "not read"


# The optimizer on the host, in DeepSpeed's words and others'.
OFFLOADED = rf"(with )?({ON_HOST})([=: ]*cpu)?|zero[ _-]?(stage)?[ _=-]*[0-3] (with )?(cpu )?offload"
# Clauses that notes, job, plan, model and hardware read (the reader's own patterns decide what they say), and those a
# column of the row says as well.
TAKEN = (
    r"zero1 shard group=(all GPUs|\d+( GPUs)?)",
    r"(Megatron-)?FSDP shard group=\d+",
    r"FSDP over \d+ GPUs( then data parallel)?",
    r"(expert TP)?\(?ETP\)?=(\d+|not given \(MCore default = TP\))",
    r"(token drop )?capacity( factor)?[ =]\d+(\.\d+)?( \(drop\+pad\))?",
    r"variant: tokendrop",
    r"zero-bubble schedule \(B/W split\)",
    r"sharding=(FULL_SHARD|SHARD_GRAD_OP|FSDP|HSDP|_?HYBRID_SHARD(_ZERO2)?)",
    r"FSDP ?v?[12]",
    rf"(?i:(sharding=)?({WORDS}))",
    rf"(HSDP:? )?({SHARDS}|{REPLICAS})=\d+([, ]+({SHARDS}|{REPLICAS})=\d+)?",
    r"eager|((no|without) )?(torch\.)?compile( (on|off))?|(torch\.)?compile[=: ]+(on|off|[Tt]rue|[Ff]alse)",
    r"kernel=(torch|fused|flash_attention(2|v1[\d.]*|v2[\d.]*))( \+ RMS kernel)?",
    r"mp_mode=(PURE|DEFAULT)",
    r"(no )?async TP( communication)?|vanilla TP",
    r"TP overlap (True|False)",
    r"(mock data, balanced fake gate, )?no grad(ient)? clipping",
    r"DP/TP/PP comm overlap on",
    rf"(?i:{OVERLAP.pattern}|{TP_OVERLAP.pattern})",
    rf"(?i:{STATED_RECOMPUTES.pattern})",
    rf"(?i:{OFFLOADED})",
    r"DDP (torch|local) \((overlapped grad all-reduce|no grad overlap)\)",
    r"distributed optimizer, no comm overlap \(TP/DP/PP\), fp32 grad accumulation, TE [\d.]+, untied embeddings, "
    r"TE cross-entropy fusion",
    r"tp>1: REDUCE_SCATTER \(sequence parallel\) with async comm and all-gather recomputed in backward",
    r"first and last stage have one layer less than others \(layers\+2 divisible by p\)",
    r"each layer is a chunk",
    r"layers \d+ not divisible by PP \d+: uneven stages",
    r"FP8 parameters",
    r"CUDA graphs",
    r"(un)?tied embeddings( inferred from param count)?",
    r"learned pos-emb, biases on",
    r"MLA dims? .*|.*\blora\b.*rank.*",
    r"((no|without) )?(mtp|multi-token prediction)(( layers?)?[ =:]+(0|1|on|off|none|no|disabled))?",
    r"(?i:SFT|(full )?fine-?tuning)|inputs packed to \d+",
    r"(?i:Q?LoRA|PEFT)|(LoRA|QLoRA(-(bnb|gptq))?)( fine-tuning)?,? (r|rank)[= ]\d+(\.0)? on "
    r"(([a-z]+_proj[ ,]*)+|all[- ]linear( layers)?)( c_attn)?",
    r"framework_config=[\w-]+",
    r"pure 16-bit parameters and AdamW states \(torch_dtype, no mixed precision\)",
    r"packed \d+-token sequences, gradient checkpointing on, GA \d+",
    r"fp(16|32) grad(ient)?s? accum\w+( in fp\d+)?",
    r"fp16 grads accumulate in fp16",
    r"bf16 \+ distributed optimizer assumed",
    r"selective AC = fraction of layers \(see repo\)",
    r"(per-op )?selective AC( \(.*\))?",
    r"sequence parallel \+ selective recompute|full recompute, no sequence parallelism",
    r"ZeRO-3 via DeepSpeed inside Megatron codebase, no model parallelism",
    r"may have run with CUDA_LAUNCH_BLOCKING=1",
    STATED.pattern,
    r"kernels: TE( \+ (DeepEP|FlexAttn))*",
    r"(?i:((moe )?dispatcher|expert_parallel_comm_backend)[=: ]\s?(deepep|hybridep|all_?to_?all|standard)|deepep|hybridep)",
    r"LBS=\d+ GA=\d+ FSDP=\d+|grad_accum=\d+|micro_num=\d+|mbc=\d+|ga \d+|\d+ microbatches",
    r"cp column = Ulysses degree|(?i:(DeepSpeed[ -])?Ulysses( sequence parallelism)?( degree)?[ =:]*\d*|ring attention|zig-?zag)",
    r"cp_comm_type\W{0,3}(p2p|a2a|all_?gather)|(context_parallel_)?rotate_method\W{0,3}(allgather|alltoall)|(CP a2a|a2a CP)",
    r"custom 500 W / 2\.4 TB/s H100 part: .*",
    r"MoE: force-balanced routing(, dropless)?",
    r"TP spans nodes",
    r"layers trimmed to \d+",
    r"SDPA flash v2|NeMo AutoModel \(PyTorch FSDP2\)|JAX/XLA",
)
# Settings that the program has no switch for, each with what is priced instead.
UNPRICED = {
    r"(?i:zero\+\+|[hq][wpg]z)": "narrow or second copies that ZeRO++ sends (ZeRO-3 is priced)",
    r"(?i:zero[ -]?infinity)": "parameters on the host or on disks (ZeRO-3 is priced)",
    r"pack_sample_into_one=(True|False).*": "samples shorter than a sequence (whole sequences are priced)",
    r"packed Alpaca samples": "whether attention keeps packed documents apart (it sees the whole sequence)",
    r"zero1=-1 \(all DP ranks\) or fsdp": "which of two shardings ran (the column's is priced)",
}
# Where figures come from and how they were taken.
NOTHING = (
    r"FLAG .*|ANOMALY: .*|slow vs .*|source: .*|low confidence: .*|another try of this configuration crashed",
    r"(.* )?(MFU|HFU|TFLOPS?(/TGS)?|TFLOP/s|model-FLOP/s|TPS|tokens/s)\b.*",
    r"6ND = .*|total T/s=.*|published .*|reported .*|rounded .*|no chart .*|RECONSTRUCTED .*|real_reserved_gib=.*",
    r"(time|memory|mem) = .*|memory (measured on|in GB) .*|nvidia-smi .*|\"GPU Memory .*|MEMORY ONLY|iterations .*",
    r"(single iteration|median step|runs|compare only|old pipeline code: times) .*|validation steps not included",
    r"section .*|table .*|Table \d+|case=.*|method=.*|weak scaling|(strong scaling, )?plan as Table \d+|strong scaling",
    r"checkpoint=False|ffn \d+ = .*|dims = .*|seq \d+ (=|from) .*|(inter-node bandwidth|tokens/s) taken as .*",
    r".*not (given|stated)( by source| for the benchmark)?|model dimensions not in the source|interleaving not stated",
    r"(mbs|sp|GPU memory size|paper gives) .*(assumed|inferred).*|full recomputation follows from .*|memory .* inferred .*",
    r"(2[45]\.\d\d|26\.\d\d(\.\d\d)?|NeMo [\d.]+)( NeMo)? container(, FP8)?|PRETRAIN|preview system|Llama 3 \d+B",
    r"recipe@\S+ (ambiguous/)?not matched.*",
    r"outcome=.*",
    r"GPU memory size, ZeRO use and VPP not stated by source",
)
# What the cells of a column may hold where they are known; anything else would be taken for a default.
CELLS = {
    **dict.fromkeys(("sp", "flash_attention", "gated_mlp"), ("0", "1")),
    "zero_stage": ("0", "1", "2", "3"),
}
# Networks that are those of the GPUs' own sheets, or nobody says more of.
PLAIN_NETWORKS = re.compile(r"InfiniBand|\bIB\b|single node|not stated|NVLink|PCIe")


def clauses_of(notes: str) -> list[str]:
    """The notes cut at the semicolons that stand in no bracket."""
    found, depth, start = [], 0, 0
    for place, letter in enumerate(f"{notes};"):
        depth += (letter in "([") - (letter in ")]")
        if letter == ";" and (depth <= 0 or place == len(notes)):
            found.append(notes[start:place].strip())
            start, depth = place + 1, 0
    return [clause for clause in found if clause]


def reading_of(clause: str) -> tuple[Reading, str]:
    """What becomes of a clause, and the setting in question ("" where there is none)."""
    for pattern, what in UNPRICED.items():
        if re.fullmatch(pattern, clause):
            return Reading.UNPRICED, what
    if names_schedule(clause) or any(re.fullmatch(pattern, clause) for pattern in TAKEN):
        return Reading.TAKEN, ""
    if any(re.fullmatch(pattern, clause, flags=re.IGNORECASE) for pattern in NOTHING):
        return Reading.NOTHING, ""
    return Reading.UNREAD, clause


def readings(row: Row) -> list[tuple[Reading, str]]:
    """One reading for each clause and each key of a recipe's settings, and one for each cell that nobody can read."""
    found = [(Reading.UNREAD, what) for what in unread_cells(row)]
    for clause in clauses_of(row.notes):
        if clause.startswith("pp_layout="):
            found.append(_layout_reading(row, clause))
            continue
        said = recipe_settings(clause)
        if said:
            found += [_recipe_reading(key, value) for key, value in said.items()]
            found += [(Reading.UNREAD, f"recipe: {word}") for word in _loose_words(clause)]
        elif _passed_over(row, clause):
            found.append((Reading.UNREAD, clause))
        else:
            found.append(reading_of(clause))
    return found


def unread_cells(row: Row) -> list[str]:
    """Cells whose words no reader knows, and those of columns that the schema has not."""
    columns = {*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS}
    found = [f"column {name}" for name in row.cells if name not in columns and row.known(name)]
    found += [
        f"{name} = {row.text(name)}"
        for name, allowed in CELLS.items()
        if row.known(name) and row.text(name) not in allowed
    ]
    network = row.text("inter_node")
    figure = fabric_of(network, row.whole_or("gpus_per_node", 1)) is not None
    if row.known("inter_node") and not (
        figure or network_sheet(row.text("gpu"), network) or PLAIN_NETWORKS.search(network)
    ):
        found.append(f"inter_node = {network}")
    return found


def _passed_over(row: Row, clause: str) -> bool:
    """Whether a clause that the patterns know says what this row is not priced with."""
    if ADAPTS.search(clause):
        told = fine_tuning(row)
        named = modules_named(clause)
        adapted = f"{told.get('adapted', '')}".split("+")
        return not told.get("adapter_rank") or bool(named and named != modules_of(adapted))
    if contradicted(row, clause):
        return True
    if re.fullmatch(OFFLOADED, clause, flags=re.IGNORECASE):
        return not framework_preset(framework_of(row)[0]).offload.optimizer
    if clause.startswith("framework_config="):
        return clause.removeprefix("framework_config=") not in row.text("framework").split()
    if clause.startswith("MLA dim"):
        told = family_of(row).latent or ()
        return any(int(figure) not in told for figure in re.findall(r"\d+", clause))
    return False


def _layout_reading(row: Row, clause: str) -> tuple[Reading, str]:
    """A layout is read where it is one, of the row's layers and of whole stages."""
    if clause == "pp_layout=None":
        return Reading.TAKEN, ""
    try:
        layout = parse_pipeline_layout(notes_of(row).layout)
    except ConfigError:
        return Reading.UNREAD, clause
    whole = len(layout.layers) % row.whole_or("pp", 1) == 0
    fits = whole and sum(layout.layers) == row.whole_or("layers", 0)
    return (Reading.TAKEN, "") if fits else (Reading.UNREAD, clause)


def _recipe_reading(key: str, value: str) -> tuple[Reading, str]:
    """A key of a recipe is read where the reader knows it and every word of its value."""
    if key not in RECIPE_VALUES:
        return Reading.UNREAD, f"recipe: {key}={value}"
    allowed = RECIPE_VALUES[key]
    words = [word for word in re.findall(r"\w+", value) if word != "None"]
    if all(word.isdigit() if allowed is None else word in allowed for word in words):
        return Reading.TAKEN, ""
    return Reading.UNREAD, f"recipe: {key}={value}"


def _loose_words(clause: str) -> list[str]:
    """What stands between a recipe's keys and is none of them."""
    stated = clause.split(": ", maxsplit=1)[1].split(" (", maxsplit=1)[0]
    return re.sub(r"\w+=(\[[^\]]*\]|\w+:\[[^\]]*\]|\S+)", "", stated).split()


def stated_lines(rows: Iterable[Row]) -> list[str]:
    """How many clauses were read, and each one that was not, with its datasets."""
    counts: Counter[Reading] = Counter()
    named: dict[tuple[Reading, str], Counter[str]] = {}
    for row in rows:
        for reading, what in readings(row):
            counts[reading] += 1
            if what:
                plain = re.sub(r"\d+(\.\d+)?", "#", what) if reading is Reading.UNREAD else what
                named.setdefault((reading, plain), Counter())[row.dataset] += 1
    told = ", ".join(f"{counts[reading]} {reading.value}" for reading in Reading)
    lines = [f"settings in the notes: {told}"]
    for (reading, what), of in sorted(named.items(), key=lambda one: (one[0][0].value, -one[1].total())):
        where = ", ".join(f"{dataset} {count}" for dataset, count in of.most_common())
        mark = "ERROR, not read" if reading is Reading.UNREAD else reading.value
        lines.append(f"{of.total():5d}  {mark}: {what}: {where}")
    return lines
