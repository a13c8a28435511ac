"""Forward times of a plan's operations as an AIOB file: one section a module, as AICB measures them.

The file has one layer and no backward: the kind of layer that there is most of, whose sections sum to the
forward of its halves; ``param_time`` is the compute of the step.
"""

from workload.aicb.aiob.text import AiobFile, AiobTime
from workload.items import PieceWork, StageWork, WorkItem
from workload.workload_error import WorkloadError

# Beginnings of operation names -> section; AICB's names, the first that fits. What is neither stands with
# the products of its half.
SECTIONS: tuple[tuple[str, str], ...] = (
    ("embedding", "Emb"),
    ("attention.norm", "layernorm"),
    ("attention.core", "atten_flash"),
    ("attention.ring", "atten_flash"),
    ("attention.out", "atten_linear"),
    ("attention.residual", "atten_linear"),
    ("attention", "atten_qkv"),
    ("mlp.norm", "layernorm2"),
    ("mlp.up", "mlp_linear_1"),
    ("mlp.activation", "mlp_gelu"),
    ("mlp", "mlp_linear_2"),
    ("shared", "mlp_linear_2"),
    ("moe.up", "mlp_linear_1"),
    ("moe.activation", "mlp_gelu"),
    ("moe", "mlp_linear_2"),
    ("head.norm", "layernorm_post"),
    ("head", "logit_time"),
    ("loss", "logit_time"),
    ("step", "param_time"),
)


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
    for beginning, section in SECTIONS:
        if item.name == beginning or item.name.startswith((f"{beginning}.", f"{beginning}_")):
            return section
    raise WorkloadError(f"{item.name}: AICB's file of compute times has no section for it")
