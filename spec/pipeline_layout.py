"""The contents of every pipeline stage: Megatron-LM's --pipeline-model-parallel-layout.

Form (core/transformer/pipeline_parallel_layer_layout.py): E embedding, t decoder layer, m multi-token
prediction block, L loss with the head, | the border of a (virtual) stage; (...)*n and x*n repeat; commas
are decoration. ``Et*3|(tt|)*29,m|L`` has 32 stages. Shorter ways
(core/transformer/transformer_block.py, get_num_layers_to_build; transformer_config.py, "Uneven PP"):

``first=N+last=N``, one or both: layers of the first and the last stage, the others share the rest evenly
(--decoder-first-pipeline-num-layers, --decoder-last-pipeline-num-layers); with virtual chunks each stage cuts its own
evenly. ``embedding+loss``, one or both: each counts as a layer of an even split
(--account-for-embedding-in-pipeline-split, --account-for-loss-in-pipeline-split).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from spec.errors import ConfigError

LETTERS = frozenset("EtmL|")
MOST_REPEATS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineLayout:
    """Decoder layers of every virtual stage in the order of a token's way, the stage of the multi-token prediction blocks
    (the head's if there are none), and the stage of the head."""

    layers: tuple[int, ...]
    predicting_stage: int
    head_stage: int


def parse_pipeline_layout(text: str, *, where: str = "--plan") -> PipelineLayout:
    """Returns the stages of a layout. Raises ConfigError for another letter, an embedding that is not first, a loss
    that is not last, or prediction blocks on several stages."""
    stages = _expanded(text, where).split("|")
    plain = "".join(stages)
    predicting = [index for index, stage in enumerate(stages) if "m" in stage]
    faults = {
        "one E, first of all": plain.count("E") != 1 or not stages[0].startswith("E"),
        "one L, last of all": plain.count("L") != 1 or not stages[-1].endswith("L"),
        "every m on one stage, behind all t": len(predicting) > 1 or "t" in plain.partition("m")[2],
        "no empty stage": not all(stages),
    }
    for allowed, broken in faults.items():
        if broken:
            raise ConfigError(where=where, key="layout", value=text, allowed=allowed)
    return PipelineLayout(
        layers=tuple(stage.count("t") for stage in stages),
        predicting_stage=predicting[0] if predicting else len(stages) - 1,
        head_stage=len(stages) - 1,
    )


def layout_of_model(text: str, *, layers: int, stages: int, where: str = "--plan") -> PipelineLayout:
    """Returns the stages of a layout for a model with this number of decoder ``layers`` on this number of (virtual)
    ``stages``. Raises ConfigError for any other number, and as parse_pipeline_layout."""
    layout = parse_pipeline_layout(text, where=where)
    total = sum(layout.layers)
    if len(layout.layers) != stages or total != layers:
        allowed = f"{layers} t on {stages} stages, not {total} on {len(layout.layers)}"
        raise ConfigError(where=where, key="layout", value=text, allowed=allowed)
    return layout


def layout_text(layers: Sequence[int], predictions: int = 0) -> str:
    """Returns the layout with these numbers of decoder layers by stage, and ``predictions`` prediction blocks on the
    last."""
    rows = [{0: "", 1: "t"}.get(count, f"t*{count}") for count in layers]
    last = {0: "", 1: "m"}.get(predictions, f"m*{predictions}")
    return f"E{'|'.join(rows)}{last}L"


def short_layout(layers: Sequence[int], predictions: int, predicting_stage: int) -> str:
    """Returns the layout with these numbers of decoder layers by stage, and ``predictions`` prediction blocks on one of
    them; equal stages in a row are written once, as ``(tt|)*6``."""

    def letters(letter: str, count: int) -> str:
        return {0: "", 1: letter}.get(count, f"{letter}*{count}")

    blocks = [predictions if stage == predicting_stage else 0 for stage in range(len(layers))]
    inner = [
        letters("t", count) + letters("m", num_predictions)
        for count, num_predictions in zip(layers, blocks, strict=True)
    ]
    text = f"E{inner[0]}|"
    for stage, alike in groupby(inner[1:-1]):
        times = len(list(alike))
        text += f"{stage}|" if times == 1 else f"({stage}|)*{times}"
    return f"{text}{inner[-1]}L"


def _expanded(text: str, where: str) -> str:
    """Returns the layout without repetitions, ``(x)*n`` replaced by n times x."""

    def expand(match: re.Match[str]) -> str:
        count = int(match[2])
        if count > MOST_REPEATS:
            allowed = f"at most {MOST_REPEATS} repeats"
            raise ConfigError(where=where, key="layout", value=text, allowed=allowed)
        return match[1] * count

    plain = re.sub(r"\s|,", "", text)
    plain = re.sub(r"([EtmL|])\*(\d{1,6})", expand, plain)
    before = ""
    while plain != before:
        before, plain = plain, re.sub(r"\(([^()]+)\)\*(\d{1,6})", expand, plain)
    if not plain or set(plain) - LETTERS:
        allowed = "E, t, m, L and | with x*n and (...)*n"
        raise ConfigError(where=where, key="layout", value=text, allowed=allowed)
    return plain


END_LAYERS = re.compile(r"(first|last)=(\d{1,6})(?:\+(first|last)=(\d{1,6}))?")
ENDS = ("embedding", "loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCounts:
    """Layers to partition: ``layers`` over ``pp`` stages of ``vpp`` chunks each, with ``predictions`` prediction blocks
    behind them."""

    layers: int
    pp: int
    vpp: int = 1
    predictions: int = 0


def full_layout(text: str, counts: LayerCounts, *, where: str = "--plan") -> str:
    """Returns the full layout of a short form (``first=7+last=7``, ``embedding+loss``), any other text unchanged.

    Raises ConfigError for numbers that leave stages without layers or do not divide, which Megatron-LM refuses as well.
    """
    ends = text.split("+")
    if set(ends) <= set(ENDS):
        return layout_text(_split_with_ends(text, ends, counts, where), counts.predictions)
    result = END_LAYERS.fullmatch(text)
    if result is None:
        return text
    end_layers = {result[1]: int(result[2])} | ({result[3]: int(result[4])} if result[3] else {})
    per_stage = _split_with_given_ends(text, end_layers, counts, where)
    chunks = [count // counts.vpp for _ in range(counts.vpp) for count in per_stage]
    return layout_text(chunks, counts.predictions)


def _split_with_ends(text: str, ends: list[str], counts: LayerCounts, where: str) -> list[int]:
    """Returns the layers of every virtual stage of an even split in which each of the ``ends`` counts as a layer."""
    stages = counts.pp * counts.vpp
    each, remainder = divmod(counts.layers + len(ends), stages)
    if remainder or len(ends) > len(set(ends)):
        allowed = f"{counts.layers} layers and the ends counted, each once, to divide over {stages} stages"
        raise ConfigError(where=where, key="layout", value=text, allowed=allowed)
    layers = [each] * stages
    layers[0] -= "embedding" in ends
    layers[-1] -= "loss" in ends
    return layers


def _split_with_given_ends(text: str, end_layers: dict[str, int], counts: LayerCounts, where: str) -> list[int]:
    """Returns the layers of every stage if the first or last one have ``end_layers`` and the others the same number."""
    middle, rest = counts.pp - len(end_layers), counts.layers - sum(end_layers.values())
    each, remainder = divmod(rest, middle) if middle > 0 else (0, rest)
    per_stage = [end_layers.get("first", each), *[each] * (counts.pp - 2), end_layers.get("last", each)]
    whole = all(count % counts.vpp == 0 for count in per_stage)
    if counts.pp < 2 or remainder or rest < 0 or min(per_stage) < 1 or not whole:
        allowed = (
            f"shares of {counts.layers} layers that leave each of {counts.pp} stages as many layers as the "
            f"others in the middle, a multiple of vpp {counts.vpp}"
        )
        raise ConfigError(where=where, key="layout", value=text, allowed=allowed)
    return per_stage
