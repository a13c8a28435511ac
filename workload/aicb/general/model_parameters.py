"""A model's parameter tensors one by one, module by module, as its checkpoint names them.

DeepSpeed and FSDP cut what they send along these tensors; their sizes sum to spec.parameters.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from spec.model import (
    BlockSpec,
    MlpSpec,
    ModelSpec,
    MoeSpec,
    NormKind,
    PositionKind,
)
from spec.weights import Module, Tensor, linear_module, norm_module


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Modules that belong together: a layer, the embedding, or the end of the model."""

    name: str
    modules: tuple[Module, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTree:
    """A module and those inside of it, in forward order."""

    module: Module
    children: tuple["ModuleTree", ...] = ()

    def before_children(self, *, reverse: bool = False) -> Iterator[Module]:
        """Every module before those inside of it; with ``reverse`` those from the last to the first."""
        yield self.module
        for child in reversed(self.children) if reverse else self.children:
            yield from child.before_children(reverse=reverse)


def module_tree(modules: tuple[Module, ...]) -> ModuleTree:
    """Leaf modules in forward order under the modules their names say: ``layers.0.attention.q`` stands in an
    attention in a layer. Those around others own no parameters."""
    return _grown("", [(_path(module.name), module) for module in modules])


def _path(name: str) -> tuple[str, ...]:
    """Words of a name; a number belongs to the word before it."""
    words: list[str] = []
    for word in name.split("."):
        if word.isdecimal() and words:
            words[-1] += f".{word}"
        else:
            words.append(word)
    return tuple(words)


def _grown(name: str, leaves: list[tuple[tuple[str, ...], Module]]) -> ModuleTree:
    children: list[ModuleTree] = []
    for word, group in groupby(leaves, key=lambda leaf: leaf[0][0]):
        below = list(group)
        if len(below) == 1 and len(below[0][0]) == 1:
            children.append(ModuleTree(module=below[0][1]))
        else:
            path = f"{name}.{word}" if name else word
            children.append(_grown(path, [(words[1:], module) for words, module in below]))
    return ModuleTree(module=Module(name=name or "model", tensors=()), children=tuple(children))


def model_units(model: ModelSpec) -> tuple[Unit, ...]:
    """Embedding, every decoder layer, final norm and head, in forward order. A tied head owns nothing;
    multi-token-prediction blocks are left out, as in the published counts."""
    hidden = model.hidden
    first = [linear_module("embed_tokens", (model.vocab, hidden))]
    if model.position is PositionKind.LEARNED:
        first.append(linear_module("embed_positions", (model.max_positions, hidden)))
    if model.embedding_norm:
        first.append(_norm("embed_norm", hidden, model.norm))
    units = [Unit(name="embedding", modules=tuple(first))]
    layer = 0
    for run in model.main_blocks:
        for _ in range(run.count):
            modules = tuple(block_modules(run.block, hidden, f"layers.{layer}"))
            units.append(Unit(name=f"layers.{layer}", modules=modules))
            layer += 1
    last = [_norm("norm", hidden, model.norm)]
    if not model.tied_embeddings:
        last.append(linear_module("lm_head", (model.vocab, hidden), bias=model.head_bias))
    return (*units, Unit(name="head", modules=tuple(last)))


def block_modules(block: BlockSpec, hidden: int, prefix: str) -> Iterator[Module]:
    """The modules of one block in forward order."""
    place = block.norm_place
    if block.mixer is not None:
        if place.leads:
            yield _norm(f"{prefix}.input_norm", hidden, block.norm)
        yield from block.mixer.modules(hidden, f"{prefix}.{block.mixer.name}")
        if place.follows:
            yield _norm(f"{prefix}.mixer_output_norm", hidden, block.norm)
    if block.feeds_forward and place.leads_second:
        yield _norm(f"{prefix}.post_norm", hidden, block.norm)
    if block.moe is not None:
        yield from _experts(block.moe, hidden, f"{prefix}.moe")
    elif block.mlp is not None:
        yield from _mlp(block.mlp, hidden, f"{prefix}.mlp")
    if block.feeds_forward and place.follows:
        yield _norm(f"{prefix}.output_norm", hidden, block.norm)


def _norm(name: str, width: int, kind: NormKind) -> Module:
    return norm_module(name, width, bias=kind.has_bias)


def _mlp(mlp: MlpSpec, hidden: int, prefix: str) -> Iterator[Module]:
    names = ("gate", "up") if mlp.gated else ("up",)
    for name in names:
        yield linear_module(f"{prefix}.{name}", (mlp.ffn_hidden, hidden), bias=mlp.bias)
    yield linear_module(f"{prefix}.down", (hidden, mlp.ffn_hidden), bias=mlp.bias)


def _experts(moe: MoeSpec, hidden: int, prefix: str) -> Iterator[Module]:
    router = [Tensor(name=f"{prefix}.router.weight", shape=(moe.num_experts, hidden))]
    if moe.router_bias:
        router.append(Tensor(name=f"{prefix}.router.bias", shape=(moe.num_experts,)))
    yield Module(name=f"{prefix}.router", tensors=tuple(router))
    if moe.latent_hidden:
        yield linear_module(f"{prefix}.latent_down", (moe.latent_hidden, hidden), bias=moe.bias)
        yield linear_module(f"{prefix}.latent_up", (hidden, moe.latent_hidden), bias=moe.bias)
    for expert in range(moe.num_experts):
        one = MlpSpec(ffn_hidden=moe.expert_ffn_hidden, gated=moe.gated, bias=moe.bias)
        yield from _mlp(one, moe.routed_hidden(hidden), f"{prefix}.experts.{expert}")
    if moe.shared_ffn_hidden:
        shared = MlpSpec(ffn_hidden=moe.shared_ffn_hidden, gated=moe.gated, bias=moe.bias)
        yield from _mlp(shared, hidden, f"{prefix}.shared")
        if moe.shared_gate:
            yield linear_module(f"{prefix}.shared_gate", (1, hidden))
