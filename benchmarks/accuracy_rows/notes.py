"""Settings that a row writes into its notes because no column holds them."""

import re
from dataclasses import dataclass

from benchmarks.accuracy_rows.row import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """What the notes of one row state; None or "" where they do not.

    ``zero_group`` ranks that share one optimizer state (0: all data-parallel ranks); ``shard_group``
    the same for fully sharded parameters; ``etp`` expert tensor parallelism; ``capacity`` the experts'
    capacity factor; ``recompute_layers`` per stage; ``recompute_modules`` names in the source's words.
    """

    zero_group: int | None
    shard_group: int | None
    etp: int | None
    capacity: float | None
    schedule: str
    sharding: str
    kernel: str
    recompute_layers: int | None
    recompute_modules: tuple[str, ...]
    pure_precision: bool
    async_tp: bool
    overlapped_tp: bool
    overlapped_ddp: bool
    no_overlap: bool
    expert_overlap: bool
    dispatcher: str
    lighter_ends: bool
    cuda_graphs: frozenset[str]
    layout: str
    multi_token_prediction: bool


def notes_of(row: Row) -> Notes:
    """Read the settings listed in the schema's README out of a row's notes and framework."""
    notes = row.notes
    lower = notes.lower()
    capacity = re.search(r"capacity(?: factor)?[ =](\d+(?:\.\d+)?)", lower)
    modules = re.search(r"recompute_modules=\[([^\]]*)\]", notes)
    graph = re.search(r"cuda_graph=(?:local|transformer_engine):(\[[^\]]*\]|\w+)", notes)
    return Notes(
        zero_group=_group(notes, r"zero1 shard group=(\w+)"),
        shard_group=_group(notes, r"(?:Megatron-FSDP|FSDP) shard group=(\w+)"),
        etp=_whole(notes, r"(?:\(ETP\)|\bETP)=(\d+)"),
        capacity=float(capacity[1]) if capacity else None,
        schedule=_word(notes, r"schedule=([\w-]+)"),
        sharding=_word(notes, r"sharding=(\w+)"),
        kernel=_word(f"{row.text('framework')}; {notes}", r"kernel=([\w.+]+)"),
        recompute_layers=_whole(notes, r"recompute_num_layers=(\d+)"),
        recompute_modules=tuple(re.findall(r"\w+", modules[1])) if modules else (),
        pure_precision="mp_mode=PURE" in notes,
        async_tp="async tp" in lower or "asynctp" in row.text("framework").lower(),
        overlapped_tp="dp/tp/pp comm overlap on" in lower,
        overlapped_ddp="ddp torch" in lower,
        no_overlap="no comm overlap" in lower or "no grad overlap" in lower,
        expert_overlap="moe_a2a_overlap=true" in lower,
        dispatcher=_word(lower, r"dispatcher=(\w+)"),
        lighter_ends="first and last stage have one layer less" in lower,
        cuda_graphs=frozenset(re.findall(r"\w+", graph[1])) if graph else frozenset(),
        layout=_word(notes, r"pp_layout=['\"]?([EtmL|()*0-9,]+)"),
        multi_token_prediction=re.search(r"\bmtp\b|multi-token", lower) is not None
        and re.search(r"(no|without) (mtp|multi-token)|mtp[ =:]*(off|0|none|no\b|disabled)", lower) is None,
    )


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
    return int(found[1]) if found[1].isdigit() else 0
