"""AIOB compute times: the text file that AICB measures once per GPU and model, in microseconds.

    train_iter:10
    Emb:
        time_gpu_max: 857
        time_gpu_min: 782
        time_gpu_avg: 799

Values are microseconds (CUDA-event milliseconds times 1000; a comment in AICB says ms). The file holds no
model, degree, batch or GPU: whoever applies it must know that they match.
"""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from ops.op import Phase
from ops.roles import Module, OpKey, Role
from spec.files import atomic_file
from spec.program.kinds import plain_number
from workload.diagnostics import WorkloadError, read_lines
from workload.stage_work import PieceWork, StageWork, WorkItem

MAX_FILE_BYTES = 2**22
NS_PER_US = 1000
# Assumption: no module takes 1000 seconds; a longer time would be cut into millions of rows.
MOST_US = 1e9
_SECTION = re.compile(r"([A-Za-z_][\w.]*)\s*:")
_TIME = re.compile(r"time_gpu_(max|min|avg)\s*:\s*(\S+)")
_ITERATIONS = re.compile(r"train_iter\s*:\s*([0-9]{1,9})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTime:
    """One section, microseconds."""

    avg_us: float
    min_us: float
    max_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AiobFile:
    """Number of iterations and the sections in the order of the file, over the iterations (samples above 3 times the
    minimum dropped)."""

    train_iter: int
    sections: dict[str, ModuleTime]


def read_aiob(path: str | os.PathLike[str]) -> AiobFile:
    """Read ``path``; WorkloadError names the line that cannot be understood."""
    where = Path(path)
    train_iter: int | None = None
    result: dict[str, dict[str, float]] = {}
    section = ""
    for number, line in enumerate(read_lines(where, MAX_FILE_BYTES), start=1):
        content = line.strip()
        place = f"{where}: line {number}"
        if not content:
            continue
        if first := _ITERATIONS.fullmatch(content):
            train_iter = int(first[1])
        elif time := _TIME.fullmatch(content):
            if not section or time[1] in result[section]:
                raise WorkloadError(f"{place}: {content[:60]!r} is given twice or outside a section")
            result[section][time[1]] = _microseconds(time[2], place)
        elif name := _SECTION.fullmatch(content):
            section = name[1]
            if section in result:
                raise WorkloadError(f"{place}: section {section} is given twice")
            result[section] = {}
        else:
            raise WorkloadError(f"{place}: {content[:60]!r} is neither a section nor a time in us")
    if train_iter is None:
        raise WorkloadError(f"{where}: has no train_iter line")
    return AiobFile(train_iter=train_iter, sections=_complete(result, where))


def write_aiob(path: str | os.PathLike[str], file: AiobFile) -> None:
    """Write the form that AICB reads: whole microseconds, four spaces before each time."""
    with atomic_file(path) as handle:
        handle.write(f"train_iter:{file.train_iter}\n")
        for name, time in file.sections.items():
            handle.write(f"{name}:\n")
            for kind, value in (("max", time.max_us), ("min", time.min_us), ("avg", time.avg_us)):
                handle.write(f"    time_gpu_{kind}: {round(value)}\n")


def aiob_times_ns(file: AiobFile) -> dict[str, int]:
    """Nanoseconds by the keys AICB uses, rounded.

    ``attention_*`` is the sum of the sections with "atten" in their name and ``layernorm``, ``mlp_*`` that of
    those with "mlp" and ``layernorm2``, and with "moe", of which AICB's own training files have none; backward equal to
    forward. ``grad_forward`` and ``grad_backward`` are the minimum and the average of ``param_time``;
    ``attention_core`` is what a recomputed core runs again: the sections of attention with "flash" or "core" in
    their name. Other sections stand for themselves. A sum without any section is left out, so that a later look-up
    fails instead of finding 0.
    """
    times: dict[str, int] = {}
    halves = (("attention", "layernorm", ("atten",)), ("mlp", "layernorm2", ("mlp", "moe")))
    for stage, norm, words in halves:
        parts = [
            time.avg_us for name, time in file.sections.items() if name == norm or any(word in name for word in words)
        ]
        if parts:
            times[f"{stage}_forward"] = times[f"{stage}_backward"] = round(sum(parts) * NS_PER_US)
    cores = [
        time.avg_us for name, time in file.sections.items() if "atten" in name and ("flash" in name or "core" in name)
    ]
    if cores:
        times["attention_core"] = round(sum(cores) * NS_PER_US)
    for name, time in file.sections.items():
        if name == "param_time":
            times["grad_forward"] = round(time.min_us * NS_PER_US)
            times["grad_backward"] = round(time.avg_us * NS_PER_US)
        elif not ("atten" in name or "mlp" in name or name in ("layernorm", "layernorm2")) or name.startswith(
            "attention_"
        ):
            times[name] = round(time.avg_us * NS_PER_US)
    return times


def _microseconds(word: str, place: str) -> float:
    value = plain_number(word)
    if not 0 <= value < MOST_US:
        raise WorkloadError(f"{place}: {word[:40]!r} is no time in us below {MOST_US:.0f}")
    return value


def _complete(found: dict[str, dict[str, float]], where: Path) -> dict[str, ModuleTime]:
    if not found:
        raise WorkloadError(f"{where}: has no section")
    sections = {}
    for name, times in found.items():
        missing = [kind for kind in ("max", "min", "avg") if kind not in times]
        if missing:
            raise WorkloadError(f"{where}: section {name} has no time_gpu_{missing[0]}")
        if not times["min"] <= times["avg"] <= times["max"]:
            raise WorkloadError(f"{where}: section {name}: the average lies outside minimum and maximum")
        sections[name] = ModuleTime(max_us=times["max"], min_us=times["min"], avg_us=times["avg"])
    return sections


# AIOB times put on the compute of a stage.
#
# AICB's sums (workload.aicb.aiob) stand for whole halves of a layer; here each half's time is laid on its two
# matrix products, half each, as AICB does with a column and a row. Input and weight gradient take the
# forward's time each (the file measures no backward); everything else is inside those sums and takes 0, but for an
# attention core that is recomputed without its products: it takes the time of its own sections.

# Operation -> (key of aiob_times_ns without its direction, share of it).
SHARES: dict[OpKey, tuple[str, float]] = {
    OpKey(Module.ATTENTION, Role.QKV): ("attention", 0.5),
    OpKey(Module.ATTENTION, Role.Q_UP): ("attention", 0.25),
    OpKey(Module.ATTENTION, Role.KV_UP): ("attention", 0.25),
    OpKey(Module.ATTENTION, Role.OUT): ("attention", 0.5),
    OpKey(Module.MLP, Role.UP): ("mlp", 0.5),
    OpKey(Module.MLP, Role.DOWN): ("mlp", 0.5),
    OpKey(Module.MOE, Role.UP): ("mlp", 0.5),
    OpKey(Module.MOE, Role.DOWN): ("mlp", 0.5),
    OpKey(Module.EMBEDDING, Role.TABLE): ("Emb", 1.0),
    OpKey(Module.HEAD, Role.NORM): ("layernorm_post", 1.0),
    OpKey(Module.HEAD, Role.LOGITS): ("logit_time", 1.0),
    OpKey(Module.STEP, Role.UPDATE): ("grad_backward", 1.0),
}
WHOLE_HALF = ("attention", "mlp")
CORE = OpKey(Module.ATTENTION, Role.CORE)


def with_aiob_times(work: StageWork, times_ns: dict[str, int]) -> StageWork:
    """The stage with compute seconds from ``aiob_times_ns``; collectives keep theirs.

    Raises WorkloadError for a time the file does not hold.
    """

    def piece(one: PieceWork) -> PieceWork:
        return replace(
            one,
            forward=tuple(_timed(item, times_ns) for item in one.forward),
            backward=tuple(_timed(item, times_ns, core_alone=_core_alone(one)) for item in one.backward),
        )

    return replace(
        work, pieces=tuple(piece(one) for one in work.pieces), step=tuple(_timed(item, times_ns) for item in work.step)
    )


def _core_alone(piece: PieceWork) -> bool:
    """True where the core is recomputed without attention's products, which hold the time of the whole half."""
    stems = {SHARES[item.key][0] for item in piece.backward if item.phase is Phase.RECOMPUTE and item.key in SHARES}
    return "attention" not in stems


def _timed(item: WorkItem, times_ns: dict[str, int], *, core_alone: bool = False) -> WorkItem:
    if item.collective is not None:
        return item
    if core_alone and item.phase is Phase.RECOMPUTE and item.key == CORE:
        key, share = "attention_core", 1.0
    elif item.key in SHARES:
        stem, share = SHARES[item.key]
        direction = "forward" if item.phase in (Phase.FORWARD, Phase.RECOMPUTE) else "backward"
        key = f"{stem}_{direction}" if stem in WHOLE_HALF else stem
    else:
        return replace(item, seconds=0.0)
    if key not in times_ns:
        raise WorkloadError(f"no AIOB time for {item.name} ({item.phase.value}): the file has no {key}")
    return replace(item, seconds=times_ns[key] * share / NS_PER_US * 1e-6)


# Forward times of a plan's operations as an AIOB file: one section a module, as AICB measures them.
#
# The file has one layer and no backward: the kind of layer that there is most of, whose sections sum to the
# forward of its halves; ``param_time`` is the compute of the step.

# Sections of operations in AICB's names, as its AIOB times them.
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
# What AIOB leaves untimed, and what else a module runs, is with a section of its half: the file's halves are whole.
UNTIMED_SECTIONS: dict[OpKey, str] = {
    OpKey(Module.ATTENTION, Role.RING): "atten_flash",
    OpKey(Module.ATTENTION, Role.RESIDUAL): "atten_linear",
}
MODULE_SECTIONS: dict[Module, str] = {
    Module.EMBEDDING: "Emb",
    Module.ATTENTION: "atten_qkv",
    Module.MLP: "mlp_linear_2",
    Module.SHARED_EXPERTS: "mlp_linear_2",
    Module.MOE: "mlp_linear_2",
    Module.HEAD: "logit_time",
    Module.LOSS: "logit_time",
    Module.STEP: "param_time",
}


def aiob_of(works: tuple[StageWork, ...]) -> AiobFile:
    """The sections of all stages together; an operation of no section (a custom model's) is an error."""
    pieces = {piece.name: piece for work in works for piece in work.pieces}
    layers: dict[str, int] = {}
    for work in works:
        for piece in work.pieces:
            if piece.name not in ("embedding", "head"):
                layers[piece.name] = layers.get(piece.name, 0) + piece.repeat * work.count
    usual = max(layers, key=lambda name: layers[name])
    shown: list[PieceWork] = [pieces[name] for name in ("embedding", usual, "head") if name in pieces]
    items = [item for piece in shown for item in piece.forward]
    items += works[0].step
    sums: dict[str, float] = {}
    for item in items:
        if item.collective is None:
            section = _section(item)
            sums[section] = sums.get(section, 0.0) + item.seconds * 1e6
    return AiobFile(
        train_iter=1, sections={name: ModuleTime(max_us=us, min_us=us, avg_us=us) for name, us in sums.items()}
    )


def _section(item: WorkItem) -> str:
    section = (SECTIONS | UNTIMED_SECTIONS).get(item.served) or MODULE_SECTIONS.get(item.module)
    if section is None:
        raise WorkloadError(f"{item.name}: AICB's file of compute times has no section for it")
    return section
