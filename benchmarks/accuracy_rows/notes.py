"""Settings that a row writes into its notes because no column holds them."""

import re
from dataclasses import dataclass

from benchmarks.accuracy_rows.row import Row
from benchmarks.accuracy_rows.stated_schedules import schedule_in
from ops.cpu_overhead.issuing import GRAPHED
from ops.data_parallel.offload import PARTS
from ops.recompute import MODULES

# Hybrid sharding in the words of PyTorch, torchtitan, OLMo and accelerate: shards in a group, copies over groups.
HYBRID = re.compile(
    r"(?<!no )(?<!without )(\bHSDP\b|HYBRID_SHARD|\bhybrid[ -]shard(ing|ed)?\b)", re.IGNORECASE
)
SHARDS = r"\b(?:dp_shard|dp_shard_size|data_parallel_shard_degree)"
REPLICAS = r"\b(?:dp_replicate|dp_replicate_size|data_parallel_replicate_degree|num_model_replicas)"
# Switches of what runs beside what as DeepSpeed's configurations and Megatron-LM's arguments write them.
OVERLAP = re.compile(
    r"(no |without |--)?overlap[_-](comm|grad[_-]reduce|param[_-]gather)(?:[=: ]*(true|false|on|off))?",
    re.IGNORECASE,
)
TP_OVERLAP = re.compile(
    r"(no |without |--)?(?:ub_)?tp[_-]comm[_-]overlap(?:[=: ]*(true|false|on|off))?", re.IGNORECASE
)
# Graphs of whole layers: "full" in Megatron-Core's words, "CUDA graphs" in those of MLPerf's NeMo (custom_callbacks.py:
# one graph for each decoder layer, mlcommons/training_results_v4.1, LAYER_CUDA_GRAPH).
WHOLE_LAYERS = frozenset({"attn", "mamba", "mlp"})
GRAPH_SCOPES: dict[str, frozenset[str]] = {name: frozenset({name}) for name in GRAPHED}
GRAPH_SCOPES |= {"full": WHOLE_LAYERS}
# What the keys of a recipe may hold in words beside None; None: a number. ``cuda_graph`` is implementation:scopes.
RECIPE_VALUES: dict[str, frozenset[str] | None] = {
    "recompute_modules": frozenset({*MODULES, "core_attn"}),
    "recompute_num_layers": None,
    "cpu_offload_layers": None,
    "offload_modules": frozenset(PARTS),
    "cuda_graph": frozenset({"local", "transformer_engine", *GRAPH_SCOPES}),
    "moe_a2a_overlap": frozenset({"True", "False"}),
    "dispatcher": frozenset({"deepep", "hybridep", "alltoall", "allgather"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """What the notes of one row state; None or "" where they do not.

    ``zero_group`` ranks that share one optimizer state (0: all data-parallel ranks); ``shard_group``
    the same for fully sharded parameters, of which there are ``replicas`` copies; ``tied`` embeddings;
    ``offloaded_layers`` whose activations wait on the host; ``etp`` expert tensor parallelism; ``capacity`` the
    experts' capacity factor; ``recompute_layers`` per stage; ``recompute_modules`` names in the source's words, ``offload_modules`` too.
    """

    zero_group: int | None
    shard_group: int | None
    replicas: int | None
    etp: int | None
    capacity: float | None
    schedule: str
    sharding: str
    kernel: str
    recompute_layers: int | None
    recompute_modules: tuple[str, ...]
    offload_modules: tuple[str, ...]
    pure_precision: bool
    async_tp: bool
    overlapped_tp: bool | None
    overlapped_ddp: bool
    no_overlap: bool
    expert_overlap: bool
    dispatcher: str
    tied: bool | None
    fp8_parameters: bool
    offloaded_layers: int | None
    cuda_graphs: frozenset[str]
    layout: str
    multi_token_prediction: bool


def notes_of(row: Row) -> Notes:
    """Read the settings listed in the schema's README out of a row's notes and framework."""
    notes = row.notes
    lower = notes.lower()
    capacity = re.search(r"capacity(?: factor)?[ =](\d+(?:\.\d+)?)", lower)
    tied = re.search(r"\b(un)?tied embeddings", lower)
    return Notes(
        zero_group=_group(notes, r"zero1 shard group=(\w+)"),
        shard_group=_group(
            notes, rf"(?:Megatron-FSDP|FSDP) shard group=(\w+)|FSDP over (\d+) GPUs|{SHARDS}=(\d+)"
        ),
        replicas=_whole(notes, rf"{REPLICAS}=(\d+)"),
        etp=_whole(notes, r"(?:\(ETP\)|\bETP)=(\d+)"),
        capacity=float(capacity[1]) if capacity else None,
        schedule=schedule_in(notes),
        sharding="HSDP"
        if HYBRID.search(f"{row.text('framework')}; {notes}")
        else _word(notes, r"sharding=(\w+)"),
        kernel=_word(f"{row.text('framework')}; {notes}", r"kernel=([\w.+]+)"),
        recompute_layers=_whole(notes, r"recompute_num_layers=(\d+)"),
        recompute_modules=_names(notes, "recompute_modules"),
        offload_modules=_names(notes, "offload_modules"),
        pure_precision="mp_mode=PURE" in notes,
        async_tp=re.search(r"(?<!no )async tp", lower) is not None
        or "asynctp" in row.text("framework").lower(),
        overlapped_tp=_overlapped_tp(lower),
        overlapped_ddp="ddp torch" in lower,
        no_overlap="no comm overlap" in lower or "no grad overlap" in lower,
        expert_overlap="moe_a2a_overlap=true" in lower,
        dispatcher=_word(lower, r"dispatcher=(\w+)"),
        tied=None if tied is None else tied[1] is None,
        fp8_parameters="fp8 parameters" in lower,
        offloaded_layers=_whole(notes, r"cpu_offload_layers=(\d+)"),
        cuda_graphs=_graphs(notes),
        layout=_word(notes, r"pp_layout=['\"]?([EtmL|()*0-9,]+)"),
        multi_token_prediction=re.search(r"\bmtp\b|multi-token", lower) is not None
        and re.search(r"(no|without) (mtp|multi-token)|mtp[ =:]*(off|0|none|no\b|disabled)", lower) is None,
    )


def _names(notes: str, key: str) -> tuple[str, ...]:
    """What stands in ``key=[...]``."""
    found = re.search(rf"\b{key}=\[([^\]]*)\]", notes)
    return tuple(re.findall(r"\w+", found[1])) if found else ()


def recipe_settings(clause: str) -> dict[str, str]:
    """Keys and values of a clause "recipe@tag: key=value key=value"; {} for another."""
    if not re.match(r"recipe@\S+: ", clause):
        return {}
    return dict(re.findall(r"(\w+)=(\[[^\]]*\]|\w+:\[[^\]]*\]|\S+)", clause.split(" (", maxsplit=1)[0]))


def switches(notes: str) -> dict[str, bool]:
    """Reductions and gathers beside other work, by the settings of the switches that notes write."""
    names = {"comm": "overlap_grad_reduce", "grad": "overlap_grad_reduce", "param": "overlap_param_gather"}
    return {
        f"data_parallel.{names[re.split('[_-]', found[2].lower())[0]]}": is_on(found[1], found[3])
        for found in OVERLAP.finditer(notes)
    }


def clips(notes: str) -> dict[str, bool]:
    """Without clipping of gradients where notes say so."""
    without = re.search(r"\b(no|without) grad(ient)? clipping", notes, re.IGNORECASE)
    return {"data_parallel.clips_gradients": False} if without else {}


def is_on(before: str | None, after: str | None) -> bool:
    """Whether a switch is on by the word before it and the value after it."""
    return (before or "").strip() not in ("no", "without") and (after or "on").lower() in ("on", "true")


def _overlapped_tp(lower: str) -> bool | None:
    """Whether tensor-parallel collectives are split and hidden in the products, where the notes say."""
    if "tp overlap false" in lower:
        return False
    switch = TP_OVERLAP.search(lower)
    if switch:
        return is_on(switch[1], switch[2])
    return True if "tp overlap true" in lower or "dp/tp/pp comm overlap on" in lower else None


def _graphs(notes: str) -> frozenset[str]:
    """What CUDA graphs replay: a recipe's scopes (none named: whole layers, Megatron-Core's default), or
    whole layers. From Megatron-Bridge v0.5.0 on "full_iteration" is an implementation of its own, without
    scopes."""
    stated = re.search(r"cuda_graph=(\w+):(\[[^\]]*\]|\w+)", notes)
    if stated is None:
        return WHOLE_LAYERS if re.search(r"(^|; )CUDA graphs(;|$)", notes) else frozenset()
    if stated[1] == "None":
        return frozenset()
    scopes = [name for name in re.findall(r"\w+", stated[2]) if name != "None"]
    if stated[1] in GRAPHED:
        scopes.append(stated[1])
    found = [GRAPH_SCOPES.get(name, frozenset()) for name in scopes] or [WHOLE_LAYERS]
    return frozenset[str]().union(*found)


def _word(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    return found[1] if found else ""


def _whole(text: str, pattern: str) -> int | None:
    found = re.search(pattern, text)
    return int(found[1]) if found else None


def _group(text: str, pattern: str) -> int | None:
    """A number of ranks; 0 for "all" (the words "all GPUs")."""
    found = re.search(pattern, text)
    if not found:
        return None
    ranks = next(one for one in found.groups() if one is not None)
    return int(ranks) if ranks.isdigit() else 0
