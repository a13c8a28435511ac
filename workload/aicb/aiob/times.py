"""AIOB times put on the compute of a stage.

AICB's sums (workload.aicb.aiob.text) stand for whole halves of a layer; here each half's time is laid on its two
matrix products, half each, as AICB does with a column and a row. Input and weight gradient take the
forward's time each (the file measures no backward); everything else is inside those sums and takes 0, but for an
attention core that is recomputed without its products: it takes the time of its own sections.
"""

from dataclasses import replace

from ops.op import Phase
from ops.roles import Module, OpKey, Role
from workload.aicb.aiob.text import NS_PER_US
from workload.items import PieceWork, StageWork, WorkItem
from workload.workload_error import WorkloadError

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
        work,
        pieces=tuple(piece(one) for one in work.pieces),
        step=tuple(_timed(item, times_ns) for item in work.step),
    )


def _core_alone(piece: PieceWork) -> bool:
    """Whether attention's products, which hold the time of the whole half, are not recomputed with its core."""
    stems = {
        SHARES[item.key][0] for item in piece.backward if item.phase is Phase.RECOMPUTE and item.key in SHARES
    }
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
