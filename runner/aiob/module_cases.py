"""The benchmark cases behind each submodule of a model: those that the solver asks for, read from the same
list of operations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm

from ops.op import Op, Ops
from profdb.case_recorder import CaseRecorder
from profdb.cases import Case
from profdb.lookup.op_queries import kernel_s
from runner.aiob.sections import section_of
from solver.estimate import estimate_memory, step_operations
from solver.plans.plan_table import Plan, PlanTable
from spec.errors import ConfigError
from spec.job import JobSpec
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import BlockSpec, ModelSpec
from spec.presets.registry import preset_named
from workload.aicb.time_source import FixedCostModel

SectionCases = Mapping[str, tuple[Case, ...]]
"""Cases of each section, in the order of the forward; their times add up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRun:
    """What to time: a model, the ranks that share each layer and those that share the experts, sequences per
    micro-batch and their length."""

    model: ModelSpec
    tp: int = 1
    ep: int = 1
    micro_batch: int = 1
    seq_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCases:
    """``usual`` are the sections of the kind of layer that there is most of, with embedding, head and optimizer step;
    ``others`` those of the other kinds, as far as they differ, by what the kind is."""

    usual: SectionCases
    others: Mapping[str, SectionCases]


def module_cases(run: ModuleRun) -> ModuleCases:
    """The cases of one rank's forward under Megatron-LM, tokens cut over tp where there are experts (as AICB demands),
    and of one AdamW step over what the rank holds.

    Raises ConfigError for degrees that do not divide what they cut.
    """
    _check(run)
    world = lcm(run.tp, run.ep)
    preset = preset_named("megatron")
    job = JobSpec(
        world_size=world,
        seq_len=run.seq_len,
        global_batch_tokens=world // run.tp * run.micro_batch * run.seq_len,
        preset=preset,
    )
    table = estimate_memory(run.model, job, PlanTable.of(_plan(run, world)))
    blocks = run.model.main_blocks
    most = max(range(len(blocks)), key=lambda place: blocks[place].count)
    pieces = table.layers.ops
    layers = [_sections(pieces.blocks[place].forward, one.block) for place, one in enumerate(blocks)]
    usual = {
        **_sections(pieces.embedding.forward),
        **layers[most],
        **_sections(pieces.head.forward),
        **_sections(step_operations(run.model, job, table)),
    }
    others: dict[str, SectionCases] = {}
    for place, layer in enumerate(layers):
        beside = {name: cases for name, cases in layer.items() if usual.get(name) != cases}
        if beside and beside not in others.values():
            others[f"layer {sum(each.count for each in blocks[:place]) + 1}"] = beside
    return ModuleCases(usual=usual, others=others)


def _sections(ops: Ops, block: BlockSpec | None = None) -> dict[str, tuple[Case, ...]]:
    mixer = None if block is None else block.mixer
    latent = isinstance(mixer, AttentionSpec) and mixer.kind is AttentionKind.MLA
    found: dict[str, tuple[Case, ...]] = {}
    for op in ops:
        name = section_of(op, latent=latent)
        if name is not None:
            found[name] = (*found.get(name, ()), *_cases(op))
    return found


def _cases(op: Op) -> tuple[Case, ...]:
    asked = CaseRecorder(cost_model=FixedCostModel(seconds=1.0))
    kernel_s(asked, op)
    return tuple(asked.asked)


def _plan(run: ModuleRun, world: int) -> Plan:
    experts = any(each.block.moe is not None for each in run.model.blocks)
    return Plan(
        strategy="fsp" if experts and run.tp > 1 else "mtp",
        preset="megatron",
        tp=run.tp,
        ep=run.ep,
        dp=world // run.tp,
        micro_batch=run.micro_batch,
    )


def _check(run: ModuleRun) -> None:
    for each in run.model.blocks:
        block = each.block
        heads = block.mixer.num_heads if isinstance(block.mixer, AttentionSpec) else run.tp
        widths = [heads, *([block.mlp.ffn_hidden] if block.mlp is not None else [])]
        if block.moe is not None:
            widths.append(block.moe.shared_ffn_hidden)
        if any(width % run.tp for width in widths):
            raise ConfigError(
                where="aiob", key="--tp", value=run.tp, allowed="a divisor of the heads and of the ffn"
            )
    experts = [each.block.moe.num_experts for each in run.model.blocks if each.block.moe is not None]
    if any(count % run.ep for count in experts) or (run.ep > 1 and not experts):
        allowed = f"a divisor of {experts[0]} experts" if experts else "1 for a model without experts"
        raise ConfigError(where="aiob", key="--ep", value=run.ep, allowed=allowed)
