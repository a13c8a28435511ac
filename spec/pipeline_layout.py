"""Which stage holds what, written out: Megatron-LM's --pipeline-model-parallel-layout.

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
    """Decoder layers of every virtual stage in the order a token passes them, the stage that holds the
    multi-token prediction blocks, the head's where there are none, and the stage of the head."""

    layers: tuple[int, ...]
    predicting_stage: int
    head_stage: int


def parse_pipeline_layout(text: str, *, where: str = "--plan") -> PipelineLayout:
    """The stages of a layout. Raises ConfigError for another letter, an embedding that is not first, a loss
    that is not last, or prediction blocks on several stages."""
    stages = _unrolled(text, where).split("|")
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
    """The stages of a layout of so many decoder ``layers`` on so many (virtual) ``stages``. Raises
    ConfigError for others, and as parse_pipeline_layout."""
    layout = parse_pipeline_layout(text, where=where)
    said = sum(layout.layers)
    if len(layout.layers) != stages or said != layers:
        allowed = f"{layers} t on {stages} stages, not {said} on {len(layout.layers)}"
        raise ConfigError(where=where, key="layout", value=text, allowed=allowed)
    return layout


def layout_text(layers: Sequence[int], predicted: int = 0) -> str:
    """The layout of so many decoder layers a stage, with ``predicted`` prediction blocks on the last."""
    rows = [{0: "", 1: "t"}.get(count, f"t*{count}") for count in layers]
    last = {0: "", 1: "m"}.get(predicted, f"m*{predicted}")
    return f"E{'|'.join(rows)}{last}L"


def short_layout(layers: Sequence[int], predicted: int, predicting_stage: int) -> str:
    """The layout of so many decoder layers a stage and ``predicted`` blocks on one of them; equal stages that
    follow each other are told once."""

    def letters(letter: str, count: int) -> str:
        return {0: "", 1: letter}.get(count, f"{letter}*{count}")

    blocks = [predicted if stage == predicting_stage else 0 for stage in range(len(layers))]
    inner = [letters("t", count) + letters("m", held) for count, held in zip(layers, blocks, strict=True)]
    text = f"E{inner[0]}|"
    for stage, alike in groupby(inner[1:-1]):
        times = len(list(alike))
        text += f"{stage}|" if times == 1 else f"({stage}|)*{times}"
    return f"{text}{inner[-1]}L"


def _unrolled(text: str, where: str) -> str:
    """The layout with its repetitions written out."""

    def repeated(match: re.Match[str]) -> str:
        count = int(match[2])
        if count > MOST_REPEATS:
            allowed = f"at most {MOST_REPEATS} repeats"
            raise ConfigError(where=where, key="layout", value=text, allowed=allowed)
        return match[1] * count

    plain = re.sub(r"\s|,", "", text)
    plain = re.sub(r"([EtmL|])\*(\d{1,6})", repeated, plain)
    before = ""
    while plain != before:
        before, plain = plain, re.sub(r"\(([^()]+)\)\*(\d{1,6})", repeated, plain)
    if not plain or set(plain) - LETTERS:
        allowed = "E, t, m, L and | with x*n and (...)*n"
        raise ConfigError(where=where, key="layout", value=text, allowed=allowed)
    return plain


SHARES = re.compile(r"(first|last)=(\d{1,6})(?:\+(first|last)=(\d{1,6}))?")
ENDS = ("embedding", "loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCounts:
    """Layers to partition: ``layers`` over ``pp`` stages of ``vpp`` chunks each, ``predicted`` blocks behind them."""

    layers: int
    pp: int
    vpp: int = 1
    predicted: int = 0


def full_layout(text: str, dealt: LayerCounts, *, where: str = "--plan") -> str:
    """The layout that a short way says, any other text as it is.

    Raises ConfigError for shares that leave stages without layers or do not divide, as Megatron-LM refuses them.
    """
    ends = text.split("+")
    if set(ends) <= set(ENDS):
        return layout_text(_counted(text, ends, dealt, where), dealt.predicted)
    result = SHARES.fullmatch(text)
    if result is None:
        return text
    said = {result[1]: int(result[2])} | ({result[3]: int(result[4])} if result[3] else {})
    per_stage = _shared(text, said, dealt, where)
    chunks = [count // dealt.vpp for _ in range(dealt.vpp) for count in per_stage]
    return layout_text(chunks, dealt.predicted)


def _counted(text: str, ends: list[str], dealt: LayerCounts, where: str) -> list[int]:
    """An even split in which the ends of the model count."""
    stages = dealt.pp * dealt.vpp
    each, left = divmod(dealt.layers + len(ends), stages)
    if left or len(ends) > len(set(ends)):
        allowed = f"{dealt.layers} layers and the ends counted, each once, to divide over {stages} stages"
        raise ConfigError(where=where, key="layout", value=text, allowed=allowed)
    layers = [each] * stages
    layers[0] -= "embedding" in ends
    layers[-1] -= "loss" in ends
    return layers


def _shared(text: str, said: dict[str, int], dealt: LayerCounts, where: str) -> list[int]:
    """Layers of every stage."""
    middle, rest = dealt.pp - len(said), dealt.layers - sum(said.values())
    each, left = divmod(rest, middle) if middle > 0 else (0, rest)
    per_stage = [said.get("first", each), *[each] * (dealt.pp - 2), said.get("last", each)]
    whole = all(count % dealt.vpp == 0 for count in per_stage)
    if dealt.pp < 2 or left or rest < 0 or min(per_stage) < 1 or not whole:
        allowed = (
            f"shares of {dealt.layers} layers that leave each of {dealt.pp} stages as many layers as the "
            f"others in the middle, a multiple of vpp {dealt.vpp}"
        )
        raise ConfigError(where=where, key="layout", value=text, allowed=allowed)
    return per_stage
