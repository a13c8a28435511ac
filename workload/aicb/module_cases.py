"""The benchmark cases of each submodule of a model: those that the solver looks up, from the list of operations.

Sections have AICB's names: a dense layer's as in AiobMegatron.py, latent attention's as in training/AiobDeepSeek.py, the
router's as in inference/AiobQwen3Moe.py, for its training files have none. Operations without a name of AICB's (the
permutation of tokens for experts, shared experts, mixers other than attention) are named by module and role.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import lcm
from pathlib import Path

from ops.op import Comm, CpuOverhead, Op, Ops
from ops.roles import Module, OpKey, Role
from profdb.case_recorder import CaseRecorder
from profdb.cases import Case, GemmCase, OptimizerCase
from profdb.commands.import_measurements import canonical_gpu, import_lines
from profdb.cost_model import kernel_s
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from solver.estimate import estimate_memory, step_operations
from solver.plans.plan_table import Plan, PlanTable
from spec.errors import ConfigError
from spec.frameworks import framework_preset
from spec.job import JobSpec
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import BlockSpec, ModelSpec
from spec.program.command import whole
from spec.program.kinds import MOST_COUNT, MOST_GPUS, MOST_SEQUENCE_TOKENS
from spec.readers.read_config import add_config, assumption_lines, read_config
from spec.units import US
from workload.aicb.aiob import SECTIONS, ModuleTime, read_aiob
from workload.aicb.time_source import FixedCostModel
from workload.diagnostics import WorkloadError

LATENT_SECTIONS: dict[OpKey, str] = {
    OpKey(Module.ATTENTION, Role.Q_DOWN): "attention_linear_q_lora",
    OpKey(Module.ATTENTION, Role.NORM, Role.Q_UP): "attention_linear_q_lora",
    OpKey(Module.ATTENTION, Role.Q_UP): "attention_q_column",
    OpKey(Module.ATTENTION, Role.KV_DOWN): "attention_linear_kv_lora",
    OpKey(Module.ATTENTION, Role.NORM, Role.KV_UP): "attention_linear_kv_lora",
    OpKey(Module.ATTENTION, Role.KV_UP): "attention_kv_column",
    OpKey(Module.ATTENTION, Role.CORE): "attention_kv_column",
    OpKey(Module.ATTENTION, Role.OUT): "attention_o_row",
}
"""Sections of latent attention: a latent's norm is timed with the product before it, the core with that of keys and
values."""
UNTIMED = (
    Module.EMBEDDING,
    Module.ATTENTION,
    Module.MLP,
    Module.HEAD,
    Module.LOSS,
    Module.LAYER,
    Module.MTP,
    Module.STEP,
    Module.OTHER,
)
"""Modules of which AICB times the operations above and no other: no rotary embedding, no residual add, no loss."""


def section_of(op: Op, *, latent: bool) -> str | None:
    """The section of an operation; None for one that is not timed, such as a collective or host work. ``latent``: its
    layer has latent attention."""
    if isinstance(op, Comm | CpuOverhead):
        return None
    sections = SECTIONS | LATENT_SECTIONS if latent else SECTIONS
    if op.key in sections:
        return sections[op.key]
    if op.module in UNTIMED:
        return None
    return f"{op.module.value}_{op.role.value}"


SectionCases = Mapping[str, tuple[Case, ...]]
"""Cases of each section, in the order of the forward; the section's time is their sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRun:
    """What to time: a model, its tensor- and expert-parallel ranks, sequences per micro-batch and their length."""

    model: ModelSpec
    tp: int = 1
    ep: int = 1
    micro_batch: int = 1
    seq_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCases:
    """``usual`` are the sections of the most common kind of layer, with embedding, head and optimizer step; ``others``
    those in which another kind differs, by the first layer of that kind."""

    usual: SectionCases
    others: Mapping[str, SectionCases]


def module_cases(run: ModuleRun) -> ModuleCases:
    """The cases of one rank's forward under Megatron-LM and of one AdamW step over its parameters. A model with experts
    has sequence parallelism, as AICB requires.

    Raises ConfigError for degrees that do not divide the model.
    """
    _check(run)
    world = lcm(run.tp, run.ep)
    preset = framework_preset("megatron")
    job = JobSpec(
        world_size=world,
        seq_len=run.seq_len,
        global_batch_tokens=world // run.tp * run.micro_batch * run.seq_len,
        preset=preset,
    )
    table = estimate_memory(run.model, job, PlanTable.of(_plan(run, world)))
    blocks = run.model.main_blocks
    common = max(range(len(blocks)), key=lambda index: blocks[index].count)
    ops = table.layers.ops
    layers = [_sections(ops.blocks[index].forward, blocks[index].block) for index in range(len(blocks))]
    usual = {
        **_sections(ops.embedding.forward),
        **layers[common],
        **_sections(ops.head.forward),
        **_sections(step_operations(run.model, job, table)),
    }
    others: dict[str, SectionCases] = {}
    for index, sections in enumerate(layers):
        differing = {name: cases for name, cases in sections.items() if usual.get(name) != cases}
        if differing and differing not in others.values():
            others[f"layer {sum(each.count for each in blocks[:index]) + 1}"] = differing
    return ModuleCases(usual=usual, others=others)


def _sections(ops: Ops, block: BlockSpec | None = None) -> dict[str, tuple[Case, ...]]:
    mixer = None if block is None else block.mixer
    latent = isinstance(mixer, AttentionSpec) and mixer.kind is AttentionKind.MLA
    result: dict[str, tuple[Case, ...]] = {}
    for op in ops:
        name = section_of(op, latent=latent)
        if name is not None:
            result[name] = (*result.get(name, ()), *_cases(op))
    return result


def _cases(op: Op) -> tuple[Case, ...]:
    recorder = CaseRecorder(cost_model=FixedCostModel(seconds=1.0))
    kernel_s(recorder, op)
    return tuple(recorder.cases)


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
            raise ConfigError(where="aiob", key="--tp", value=run.tp, allowed="a divisor of the heads and of the ffn")
    experts = [each.block.moe.num_experts for each in run.model.blocks if each.block.moe is not None]
    if any(count % run.ep for count in experts) or (run.ep > 1 and not experts):
        allowed = f"a divisor of {experts[0]} experts" if experts else "1 for a model without experts"
        raise ConfigError(where="aiob", key="--ep", value=run.ep, allowed=allowed)


# The verb ``import-aiob``: AICB's module times into a profile.
#
# The text file names neither model nor GPU nor degrees, so all of them are options. Its sections are whole modules timed on
# their own (forward only, mean over the iterations).


def add_import_aiob(verb: argparse.ArgumentParser) -> None:
    """All options of the verb."""
    verb.add_argument("file", type=Path, help="AICB's text file of module times (microseconds)")
    add_config(verb, "model that was timed", required=True)
    verb.add_argument("--gpu", required=True, help="GPU of the times, by a name in a hardware spec or the profile")
    verb.add_argument("--cluster", default="", help="hardware spec in configs/clusters, for a new profile")
    verb.add_argument("--tp", type=whole(1, MOST_GPUS), required=True, help="tensor-parallel ranks")
    verb.add_argument("--micro_batch", type=whole(1, MOST_COUNT), required=True, help="sequences a micro-batch")
    verb.add_argument("--seq_len", type=whole(1, MOST_SEQUENCE_TOKENS), required=True, help="tokens a sequence")
    verb.add_argument("--into", type=Path, required=True, help="profile to merge into, made when absent")


def import_aiob(options: argparse.Namespace) -> list[str]:
    """Merge the file's sections into the profile; lines that say what was done. A UserError leaves the
    profile as it was."""
    model = read_config(options.config, assume=options.assume).model
    run = ModuleRun(model=model, tp=options.tp, micro_batch=options.micro_batch, seq_len=options.seq_len)
    samples, left = module_samples(read_aiob(options.file).sections, run)
    if not samples:
        raise WorkloadError(f"{options.file}: no section that stands for an operation; nothing imported")
    gpu, spec_name = canonical_gpu(options.gpu, options.file)
    machine = MachineFacts(gpu=gpu, cluster=options.cluster or spec_name)
    lines = import_lines(options.into, ProfileDatabase(machine=machine, samples=samples))
    return assumption_lines(model) + lines + ([f"not imported, no single operation: {', '.join(left)}"] if left else [])


def module_samples(sections: Mapping[str, ModuleTime], run: ModuleRun) -> tuple[list[Sample], list[str]]:
    """A sample of each section that is one operation, and the names of the others (param_time, DeepSeek's low-rank parts,
    the pieces of unfused attention). Raises ConfigError as module_cases, and for layers of several kinds or experts."""
    found = module_cases(run)
    if found.others or any(each.block.mlp is None for each in run.model.blocks):
        raise ConfigError(where="AIOB import", key="model", value=run.model.name, allowed="equal dense layers")
    cases = {
        # AICB's file does not say whether a product adds a bias.
        name: replace(case, bias=False) if isinstance(case, GemmCase) else case
        for name, (case, *more) in found.usual.items()
        if not more and not isinstance(case, OptimizerCase)
    }
    samples = [
        Sample(
            case=cases[name],
            trials_s=(time.avg_us * US,),
            launched={"source": "aiob", "module": name, "min_s": time.min_us * US, "max_s": time.max_us * US},
        )
        for name, time in sections.items()
        if name in cases
    ]
    return samples, [name for name in sections if name not in cases]
