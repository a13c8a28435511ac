"""Forward times of a plan's operations as an AIOB file: one section a module, as AICB measures them.

The file has one layer and no backward: the kind of layer that there is most of, whose sections sum to the
forward of its halves; ``param_time`` is the compute of the step.
"""

from ops.roles import Module, OpKey, Role
from workload.aicb.aiob.text import AiobFile, AiobTime
from workload.items import PieceWork, StageWork, WorkItem
from workload.workload_error import WorkloadError

# Sections of operations, with all that serves them, and of what else a module runs: with the products of
# its half. AICB's names.
SECTIONS: dict[OpKey, str] = {
    OpKey(Module.ATTENTION, Role.NORM): "layernorm",
    OpKey(Module.ATTENTION, Role.CORE): "atten_flash",
    OpKey(Module.ATTENTION, Role.RING): "atten_flash",
    OpKey(Module.ATTENTION, Role.OUT): "atten_linear",
    OpKey(Module.ATTENTION, Role.RESIDUAL): "atten_linear",
    OpKey(Module.MLP, Role.NORM): "layernorm2",
    OpKey(Module.MLP, Role.UP): "mlp_linear_1",
    OpKey(Module.MLP, Role.ACTIVATION): "mlp_gelu",
    OpKey(Module.MOE, Role.UP): "mlp_linear_1",
    OpKey(Module.MOE, Role.ACTIVATION): "mlp_gelu",
    OpKey(Module.HEAD, Role.NORM): "layernorm_post",
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
        train_iter=1, sections={name: AiobTime(max_us=us, min_us=us, avg_us=us) for name, us in sums.items()}
    )


def _section(item: WorkItem) -> str:
    section = SECTIONS.get(item.served) or MODULE_SECTIONS.get(item.module)
    if section is None:
        raise WorkloadError(f"{item.name}: AICB's file of compute times has no section for it")
    return section
