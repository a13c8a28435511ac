"""The model of a generator command: a preset, and whatever the user says instead.

A preset never overrides a flag. Presets are the shipped configs; sizes are AICB's names.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec
from spec.readers.read_config import read_config
from workload.aicb.generate.dimensions import from_dimensions
from workload.aicb.generate.layer_shape import Resized, experts_of, sized_block
from workload.aicb.generate.shape_flags import DEEPSEEK, ShapeFlags, refuse
from workload.aicb.generate.sizes import config_path, size_notes


def model_of(flags: ShapeFlags, root: Path) -> tuple[ModelSpec, tuple[str, ...]]:
    """The preset with every given flag in its place, and what to say of it; raises ConfigError for what cannot
    be built."""
    flags.check()
    path = config_path(flags, root)
    model = read_config(path, assume=flags.assume).model if path else from_dimensions(flags)
    hidden = flags.hidden_size or model.hidden
    size = Resized(hidden, hidden != model.hidden)
    runs = _layers(flags, model, size)
    mixed = any(run.block.moe is not None for run in runs)
    _check_expert_flags(flags, mixed=mixed)
    shaped = replace(
        model,
        name=flags.model_name or model.name,
        hidden=hidden,
        vocab=flags.vocab_size or model.vocab,
        max_positions=flags.max_position_embeddings or model.max_positions,
        vocab_pad_multiple=flags.make_vocab_size_divisible_by or model.vocab_pad_multiple,
        blocks=tuple(replace(run, block=sized_block(flags, run.block, size, mixed=mixed)) for run in runs),
    )
    assumed = (f"assumed: {said}" for said in model.assumptions)
    return shaped, (*assumed, *size_notes(flags), *_notes(flags, model, shaped))


def _notes(flags: ShapeFlags, preset: ModelSpec, shaped: ModelSpec) -> Iterator[str]:
    """What nobody typed."""
    groups = [
        {run.block.moe.route_groups for run in model.blocks if run.block.moe} for model in (preset, shaped)
    ]
    if groups[0] != groups[1]:
        yield "assumed: experts are chosen among all, not in the preset's groups, which these do not fill"
    dense = [run for run in shaped.blocks if run.block.mlp is not None]
    if dense and flags.frame == DEEPSEEK and not flags.model_size and flags.moe_ffn_hidden_size is None:
        count = sum(run.count for run in dense)
        yield f"assumed: {count} dense layers as wide as an expert, as in AICB (--moe_ffn_hidden_size sets experts apart)"


def _check_expert_flags(flags: ShapeFlags, *, mixed: bool) -> None:
    for name in ("moe_ffn_hidden_size", "n_shared_expert", "n_dense_layers"):
        if getattr(flags, name) is not None and not mixed:
            raise refuse(
                name, getattr(flags, name), "a model of experts: a size that has them, or --moe_enable"
            )
    if not mixed and (flags.num_experts or 1) > 1:
        raise refuse("num_experts", flags.num_experts, "experts need --moe_enable")


def _layers(flags: ShapeFlags, model: ModelSpec, size: Resized) -> tuple[BlockRun, ...]:
    """Which layers there are and which of them have experts, before their sizes."""
    has_experts = any(run.block.moe is not None for run in model.blocks)
    if flags.n_dense_layers is not None and (has_experts or flags.moe_enable):
        return _dense_first(flags, model, size)
    runs = model.blocks
    if flags.moe_enable and not has_experts:
        runs = tuple(replace(run, block=_with_experts(flags, run.block, size)) for run in runs)
    return _counted(flags, runs, model.name)


def _counted(flags: ShapeFlags, runs: tuple[BlockRun, ...], name: str) -> tuple[BlockRun, ...]:
    """The runs with --num_layers decoder layers: the last of them grows or shrinks."""
    main = [run for run in runs if not run.block.mtp]
    before = sum(run.count for run in main[:-1])
    if flags.num_layers is None or flags.num_layers == before + main[-1].count:
        return runs
    if flags.num_layers <= before:
        raise refuse("num_layers", flags.num_layers, f"more than the {before} leading layers of {name}")
    last = BlockRun(block=main[-1].block, count=flags.num_layers - before)
    return (*main[:-1], last, *(run for run in runs if run.block.mtp))


def _dense_first(flags: ShapeFlags, model: ModelSpec, size: Resized) -> tuple[BlockRun, ...]:
    """--n_dense_layers dense layers, then layers of experts."""
    main = model.main_blocks
    if [run.block.moe is not None for run in main] not in ([False], [True], [False, True]):
        raise refuse(
            "n_dense_layers", flags.n_dense_layers, f"dense layers before experts: {model.name} mixes them"
        )
    dense, layers = flags.n_dense_layers or 0, flags.num_layers or model.num_layers
    if dense >= layers:
        raise refuse("n_dense_layers", dense, f"less than the {layers} layers")
    runs = [BlockRun(block=_with_experts(flags, main[-1].block, size), count=layers - dense)]
    if dense:
        runs.insert(0, BlockRun(block=_without_experts(flags, main[0].block), count=dense))
    return (*runs, *(run for run in model.blocks if run.block.mtp))


def _with_experts(flags: ShapeFlags, block: BlockSpec, size: Resized) -> BlockSpec:
    return replace(block, mlp=None, moe=experts_of(flags, block.mlp, size)) if block.mlp else block


def _without_experts(flags: ShapeFlags, block: BlockSpec) -> BlockSpec:
    """A dense layer beside layers of experts, of the width that --ffn_hidden_size has for it."""
    if block.moe is None:
        return block
    if flags.moe_ffn_hidden_size is None or flags.ffn_hidden_size is None:
        allowed = "also --moe_ffn_hidden_size and --ffn_hidden_size: how wide an expert and a dense layer are"
        raise refuse("n_dense_layers", flags.n_dense_layers, allowed)
    mlp = MlpSpec(ffn_hidden=flags.ffn_hidden_size, gated=block.moe.gated, bias=block.moe.bias)
    return replace(block, mlp=mlp, moe=None)
