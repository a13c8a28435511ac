"""The verb ``aiob``: times the submodules of a model on this device, in AICB's file format.

Sections have AICB's names: a dense layer's as in AiobMegatron.py, latent attention's as in training/AiobDeepSeek.py, the
router's as in inference/AiobQwen3Moe.py, for its training files have none. Operations without a name of AICB's (the
permutation of tokens for experts, shared experts, mixers other than attention) are named by module and role.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from pathlib import Path

from ops.op import Comm, CpuOverhead, Op, Ops
from ops.roles import Module, OpKey, Role
from profdb.case_recorder import CaseRecorder
from profdb.cases import Case
from profdb.commands.import_measurements import import_lines
from profdb.cost_model import kernel_s
from profdb.importers.aiob import ModuleTime
from profdb.on_demand import MeasuringDevice
from profdb.sample import ProfileDatabase, Sample
from solver.estimate import estimate_memory, step_operations
from solver.plans.plan_table import Plan, PlanTable
from spec.errors import ConfigError
from spec.frameworks import framework_preset
from spec.job import JobSpec
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import BlockSpec, ModelSpec
from spec.units import US
from workload.aicb.aiob import AiobFile, write_aiob
from workload.aicb.time_source import FixedCostModel
from workload.diagnostics import WorkloadError

SECTIONS: dict[OpKey, str] = {
    OpKey(Module.EMBEDDING, Role.TABLE): "Emb",
    OpKey(Module.ATTENTION, Role.NORM): "layernorm",
    OpKey(Module.ATTENTION, Role.QKV): "atten_qkv",
    OpKey(Module.ATTENTION, Role.CORE): "atten_flash",
    OpKey(Module.ATTENTION, Role.OUT): "atten_linear",
    OpKey(Module.MLP, Role.NORM): "layernorm2",
    OpKey(Module.MLP, Role.UP): "mlp_linear_1",
    OpKey(Module.MLP, Role.ACTIVATION): "mlp_gelu",
    OpKey(Module.MLP, Role.DOWN): "mlp_linear_2",
    OpKey(Module.MOE, Role.ROUTER): "moe_route_gate",
    OpKey(Module.MOE, Role.TOP_K): "moe_route_select_experts",
    OpKey(Module.MOE, Role.UP): "mlp_linear_1",
    OpKey(Module.MOE, Role.ACTIVATION): "mlp_gelu",
    OpKey(Module.MOE, Role.DOWN): "mlp_linear_2",
    OpKey(Module.SHARED_EXPERTS, Role.UP): "mlp_shared_linear_1",
    OpKey(Module.SHARED_EXPERTS, Role.ACTIVATION): "mlp_shared_gelu",
    OpKey(Module.SHARED_EXPERTS, Role.DOWN): "mlp_shared_linear_2",
    OpKey(Module.HEAD, Role.NORM): "layernorm_post",
    OpKey(Module.HEAD, Role.LOGITS): "logit_time",
    OpKey(Module.STEP, Role.UPDATE): "param_time",
}
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


# The benchmark cases of each submodule of a model: those that the solver looks up, from the same list of operations.

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


# The times of submodules on one device: AICB's text, and samples of a profile.

DROPPED_ABOVE = 3.0
"""AICB drops trials that took longer than this many times the shortest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTimes:
    """The sample of each case; a sample of status oom or failed has no time."""

    cases: ModuleCases
    samples: Mapping[Case, Sample]

    @property
    def left_out(self) -> list[str]:
        """A line for each section that could not be measured, with the reason."""
        lines = []
        for kind, sections in (("", self.cases.usual), *self.cases.others.items()):
            for name, cases in sections.items():
                bad = next((self.samples[case] for case in cases if not self.samples[case].trials_s), None)
                if bad is not None:
                    where = f"{name} of {kind}" if kind else name
                    lines.append(f"not measured: {where}: {bad.launched.get('reason', bad.status)}")
        return lines

    def times(self, sections: SectionCases) -> dict[str, ModuleTime]:
        """Microseconds of each section of which all cases were measured."""
        return {
            name: sum_of([aiob_time(self.samples[case].trials_s) for case in cases])
            for name, cases in sections.items()
            if all(self.samples[case].trials_s for case in cases)
        }

    def file(self) -> AiobFile:
        """The file of the most common kind of layer. Raises WorkloadError when nothing was measured."""
        times = self.times(self.cases.usual)
        if not times:
            raise WorkloadError(f"no submodule could be measured: {'; '.join(self.left_out)}")
        most = max(len(one.trials_s) for one in self.samples.values())
        return AiobFile(train_iter=most, sections=times)


def aiob_time(trials_s: tuple[float, ...]) -> ModuleTime:
    """Maximum, minimum and mean of the trials that AICB keeps, in microseconds."""
    shortest_s = min(trials_s)
    trials = [trial / US for trial in trials_s if trial <= DROPPED_ABOVE * shortest_s]
    mean = sum(trials) / len(trials)
    return ModuleTime(max_us=max(trials), min_us=min(trials), avg_us=min(max(mean, min(trials)), max(trials)))


def sum_of(times: Sequence[ModuleTime]) -> ModuleTime:
    """The time of cases that run one after another."""
    return ModuleTime(
        max_us=sum(one.max_us for one in times),
        min_us=sum(one.min_us for one in times),
        avg_us=sum(one.avg_us for one in times),
    )


def time_modules(run: ModuleRun, device: MeasuringDevice) -> ModuleTimes:
    """The times of every section; equal cases (the norms) are measured once. Raises ConfigError as module_cases."""
    cases = module_cases(run)
    every_case = (
        case for sections in (cases.usual, *cases.others.values()) for section in sections.values() for case in section
    )
    return ModuleTimes(cases=cases, samples={case: device.measure(case) for case in dict.fromkeys(every_case)})


def write_times(timed: ModuleTimes, device: MeasuringDevice, output: Path, into: Path | None) -> list[str]:
    """Lines on what was written: AICB's text, and the samples merged into a profile.

    Raises WorkloadError when nothing was measured, ProfileError for a profile of another GPU.
    """
    file = timed.file()
    write_aiob(output, file)
    lines = section_lines(file.sections)
    for kind, sections in timed.cases.others.items():
        lines += [f"{kind} is another kind of layer (not in {output}):", *section_lines(timed.times(sections))]
    lines += [*timed.left_out, f"wrote {output}"]
    if into is not None:
        measured = [one for one in timed.samples.values() if one.trials_s]
        lines += import_lines(into, ProfileDatabase(machine=device.machine, samples=measured))
    return lines


def section_lines(sections: Mapping[str, ModuleTime]) -> list[str]:
    """One line for each section."""
    return [f"{name:26}{time.avg_us:12.1f} us" for name, time in sections.items()]
