"""Megatron-LM's short ways to say which stage holds how many layers, written out as a layout.

``first=N+last=N``, one or both: layers of the first and the last stage, the others share the rest evenly
(--decoder-first-pipeline-num-layers, --decoder-last-pipeline-num-layers); with virtual chunks each stage cuts its
own evenly. ``embedding+loss``, one or both: each counts as a layer of an even split
(--account-for-embedding-in-pipeline-split, --account-for-loss-in-pipeline-split).
Source: core/transformer/transformer_block.py, get_num_layers_to_build; transformer_config.py, "Uneven PP".
"""

import re
from dataclasses import dataclass

from spec.errors import ConfigError
from spec.pipeline.layout import layout_text

SHARES = re.compile(r"(first|last)=(\d{1,6})(?:\+(first|last)=(\d{1,6}))?")
ENDS = ("embedding", "loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealt:
    """What is dealt: ``layers`` over ``pp`` stages of ``vpp`` chunks each, ``predicted`` blocks behind them."""

    layers: int
    pp: int
    vpp: int = 1
    predicted: int = 0


def written_layout(text: str, dealt: Dealt, *, where: str = "--plan") -> str:
    """The layout that a short way says, any other text as it is.

    Raises ConfigError for shares that leave stages without layers or do not divide, as Megatron-LM refuses them.
    """
    ends = text.split("+")
    if set(ends) <= set(ENDS):
        return layout_text(_counted(text, ends, dealt, where), dealt.predicted)
    found = SHARES.fullmatch(text)
    if found is None:
        return text
    said = {found[1]: int(found[2])} | ({found[3]: int(found[4])} if found[3] else {})
    per_stage = _shared(text, said, dealt, where)
    chunks = [count // dealt.vpp for _ in range(dealt.vpp) for count in per_stage]
    return layout_text(chunks, dealt.predicted)


def _counted(text: str, ends: list[str], dealt: Dealt, where: str) -> list[int]:
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


def _shared(text: str, said: dict[str, int], dealt: Dealt, where: str) -> list[int]:
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
