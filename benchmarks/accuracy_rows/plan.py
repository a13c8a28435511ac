"""From a row's parallel degrees to plans: one where the source says everything, else the candidates.

Settings a source leaves out are resolved by one rule that never sees a measurement: the default of the
framework's own recipes where we know it (``recipes``), else among the
candidates that fit in the GPU's memory the one priced fastest, and if none fits the one that needs
least. A tuned published run is assumed to have been tuned.
"""

import re
from dataclasses import dataclass, replace

from benchmarks.accuracy_rows import recipes
from benchmarks.accuracy_rows.gaps import Gap
from benchmarks.accuracy_rows.notes import Notes
from benchmarks.accuracy_rows.remat import policy
from benchmarks.accuracy_rows.row import Row, RowError
from benchmarks.accuracy_rows.stated_schedules import INTERLEAVED
from benchmarks.accuracy_rows.stated_sharding import updates_on_host, zero_stage_of
from ops.data_parallel.offload import PARTS
from ops.layout import Layout
from ops.recompute import MODULES, Recompute
from ops.strategies import STRATEGIES
from solver.pipeline.schedules import Schedule, schedule_named
from solver.plans.plan_table import Plan
from spec.errors import ConfigError
from spec.job import JobSpec
from spec.pipeline.layout import parse_pipeline_layout

MICRO_BATCHES = (1, 2, 4, 8)
# torchtitan/distributed/pipeline_parallel.py: stages_per_rank, 2 under such a schedule and 1 under others.
TORCHTITAN_CHUNKS = 2
# Codes that cut stages with embedding and loss as a layer each: Megatron-Core's
# account_for_embedding_in_pipeline_split and account_for_loss_in_pipeline_split; Llama 3 (arXiv 2407.21783
# sec. 3.3.2) takes a layer from the first and the last stage.
COUNT_ENDS = ("Megatron-Core", "Megatron-Bridge", "NeMo", "Meta")
# Recomputation of whole layers, of none, or of the framework's selected parts, where no column says it.
STATED_RECOMPUTES = re.compile(
    r"(no|without|full|selective)[ -](?:activation[ -])?(?:AC|recompute|recomputation|checkpoint(?:ing|s)?)",
    re.IGNORECASE,
)
RECOMPUTES = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan, and the share by which the batch reaches beyond its micro-batches.

    The step is read between ``plan`` and ``longer``, the same plan with ``turn`` micro-batches more, at
    ``beyond`` in [0, 1) of the way. A turn is one micro-batch, or pp of them when stages are interleaved,
    because that schedule takes them pp at a time.
    """

    plan: Plan
    beyond: float = 0.0
    turn: int = 1

    @property
    def longer(self) -> Plan:
        """The plan with one turn more."""
        return replace(self.plan, num_micro=self.plan.num_micro + self.turn)


def candidates_of(row: Row, notes: Notes, job: JobSpec) -> tuple[list[Candidate], tuple[Gap, ...]]:
    """Every plan the row may have run, and the physics of it that is not priced.

    Raises RowError for degrees that contradict each other.
    """
    degrees = _degrees(row, job)
    zero_stage, zero_size = _zero(row, notes, degrees)
    first = Plan(
        strategy=_strategy(row, job, degrees["tp"]),
        preset=job.preset.name,
        schedule=_schedule(row, notes),
        tp=degrees["tp"],
        cp=degrees["cp"],
        pp=degrees["pp"],
        ep=degrees["ep"],
        etp=_etp(row, notes, degrees),
        dp=degrees["dp"],
        zero_stage=zero_stage,
        zero_size=zero_size,
        recompute_modules=_modules(row, notes),
        offloaded_layers=notes.offloaded_layers or 0,
        optimizer_offload=float(updates_on_host(row) and bool(job.preset.offload.optimizer)),
        offload_modules=tuple(name for name in PARTS if name in notes.offload_modules),
    )
    found: list[Candidate] = []
    for micro in _micro_batches(row, job, degrees["dp"]):
        for recompute in _recomputes(row, notes, job):
            layers = (notes.recompute_layers or 0) if recompute is Recompute.BLOCK else 0
            plan = replace(first, micro_batch=micro, recompute=recompute, num_recompute_layers=layers)
            chunked = [replace(plan, vpp=vpp) for vpp in _chunks(row, notes, plan, job)]
            found += [_with_batches(_laid_out(row, notes, one), job) for one in chunked]
    return found, _gaps(row, notes, first, found)


def _degrees(row: Row, job: JobSpec) -> dict[str, int]:
    tp, pp, cp, ep = (row.whole_or(name, 1) for name in ("tp", "pp", "cp", "ep"))
    dp = job.world_size // max(tp * pp * cp, 1)
    if tp * pp * cp * dp != job.world_size:
        raise RowError(
            f"{row.path}:{row.line}: tp {tp} x pp {pp} x cp {cp} does not divide num_gpus {job.world_size}"
        )
    stated = row.whole_or("dp", dp)
    if stated not in (dp, dp * cp):
        raise row.refuse("dp", f"num_gpus / (tp pp cp) is {dp}")
    ep = recipes.expert_ranks(row, ep, dp)
    return {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "dp": dp}


def _schedule(row: Row, notes: Notes) -> Schedule:
    """The schedule in the notes' words; 1F1B, interleaved or not, where they have none."""
    word = notes.schedule.lower()
    if not word or word.startswith("1f1b") or word == INTERLEAVED:
        return Schedule.ONE_F_ONE_B
    if word not in [schedule.value for schedule in Schedule]:
        raise row.refuse("notes", f"schedule must be 1F1B or one of {', '.join(Schedule)}")
    return schedule_named(word)


def _chunks(row: Row, notes: Notes, plan: Plan, job: JobSpec) -> tuple[int, ...]:
    """Chunks a stage's layers are cut into: stated, torchtitan's default, or every number that Megatron-LM
    accepts (it divides the stage's layers, and pp divides the micro-batches)."""
    layers = row.whole("layers")
    chunks = row.whole_or("vpp", 0)
    if plan.schedule is not Schedule.ONE_F_ONE_B:
        least, most = plan.schedule.habits.chunks
        chunks = chunks or least
        if not least <= chunks <= most:
            allowed = f"{least}" if least == most else f"{least} or more"
            raise row.refuse("vpp", f"must be {allowed} with schedule {plan.schedule.value}")
        return (chunks,)
    if row.known("vpp"):
        return (row.whole("vpp"),)
    if "torchtitan" in row.text("framework"):
        return (TORCHTITAN_CHUNKS if notes.schedule == INTERLEAVED else 1,)
    if layers % plan.pp and any(word in row.text("framework") for word in COUNT_ENDS):
        layers += 2
    in_turns = job.global_batch_sequences % (plan.dp * plan.micro_batch * plan.pp) == 0
    if plan.pp == 1 or layers % plan.pp or not in_turns:
        return (1,)
    per_stage = layers // plan.pp
    least = 2 if notes.schedule == INTERLEAVED and per_stage > 1 else 1
    return tuple(chunks for chunks in range(least, per_stage + 1) if per_stage % chunks == 0)


def _laid_out(row: Row, notes: Notes, plan: Plan) -> Plan:
    """The plan with the layout its source states; one of other stages or layers is not the plan's."""
    if not notes.layout:
        return plan
    try:
        layout = parse_pipeline_layout(notes.layout)
    except ConfigError:
        return plan
    fits = len(layout.layers) == plan.pp * plan.vpp and sum(layout.layers) == row.whole("layers")
    return replace(plan, stage_layout=notes.layout) if fits else plan


def _strategy(row: Row, job: JobSpec, tp: int) -> str:
    """Sequence parallelism as stated; unstated means with tensor parallelism, as NVIDIA's recipes do, but over
    DeepSpeed, where scripts leave it out (Megatron-DeepSpeed's --sequence-parallel and GPT-NeoX's sequence_parallel
    are off by default)."""
    usual = not job.preset.name.startswith("deepspeed")
    with_sp = row.text("sp") == "1" if row.known("sp") else usual
    if not with_sp or tp == 1:
        return "mtp"
    layout = Layout.of(tp, tp=tp)
    for name in job.preset.tensor_parallel.strategies:
        one = STRATEGIES[name]
        if one.weight_shards(layout) == one.norm_shards(layout) == tp:
            return name
    return "fsp"


def _zero(row: Row, notes: Notes, degrees: dict[str, int]) -> tuple[int, int]:
    """Stage as stated, else by the recipe, and the ranks one copy is cut over."""
    stage = zero_stage_of(row)
    ranks = degrees["dp"] * degrees["cp"]
    if stage == 0:
        return 0, 1
    group = notes.zero_group if notes.zero_group is not None else notes.shard_group
    if notes.replicas and ranks % notes.replicas:
        raise row.refuse("notes", f"copies must divide {ranks} data-parallel ranks")
    if notes.replicas:
        group = ranks // notes.replicas
    elif notes.sharding == "HSDP" and not group:
        group = row.whole("gpus_per_node")
    return stage, min(group, ranks) if group else ranks


def _etp(row: Row, notes: Notes, degrees: dict[str, int]) -> int:
    """Expert tensor parallelism as stated, else tp (Megatron-Core's default for experts) where it fits."""
    if not row.whole_or("num_experts", 0):
        return 1
    ranks = degrees["tp"] * degrees["cp"] * degrees["dp"]
    wanted = (notes.etp,) if notes.etp else (degrees["tp"], 1)
    fits = [etp for etp in wanted if ranks % (degrees["ep"] * etp) == 0]
    if not fits:
        raise row.refuse("ep", f"ep x expert tp must divide the {ranks} ranks of a stage")
    return fits[0]


def _micro_batches(row: Row, job: JobSpec, dp: int) -> tuple[int, ...]:
    if row.known("micro_batch"):
        return (row.whole("micro_batch"),)
    per_rank = max(job.global_batch_sequences // dp, 1)
    sizes = recipes.micro_batches(row) or MICRO_BATCHES
    return tuple(size for size in sizes if per_rank % size == 0)


def _recomputes(row: Row, notes: Notes, job: JobSpec) -> tuple[Recompute, ...]:
    """What is stated, or every kind that the framework has; of named modules only the attention core is a kind."""
    word = row.text("recompute")
    if notes.recompute_modules:
        core = "core_attn" in notes.recompute_modules
        return (Recompute.SELECTIVE,) if core else (Recompute.NONE,)
    if notes.recompute_layers is not None:
        return (Recompute.BLOCK,)
    if not row.known("recompute") or policy(row):
        stated = STATED_RECOMPUTES.search(row.notes)
        if stated and not policy(row):
            word = stated[1].lower()
            return (Recompute.NONE if word in ("no", "without") else Recompute(word),)
        habits = job.preset.recomputation
        refused = {Recompute.FULL: not habits.layers, Recompute.SELECTIVE: not habits.selective}
        return recipes.recomputes(row) or tuple(kind for kind in RECOMPUTES if not refused.get(kind))
    if word == "selective" and "fraction of layers" in row.notes:
        return (Recompute.NONE, Recompute.FULL)
    if word not in [kind.value for kind in RECOMPUTES]:
        raise row.refuse("recompute", "must be none, selective, full or unknown")
    return (Recompute(word),)


def _modules(row: Row, notes: Notes) -> tuple[str, ...]:
    """Parts of layers that run again, as stated or by the framework's recipe; those not priced are left out."""
    wanted = recipes.recompute_modules(row, notes.recompute_modules)
    return tuple(name for name in MODULES if name in wanted)


def _with_batches(plan: Plan, job: JobSpec) -> Candidate:
    """Micro-batches per step; a batch that they do not divide leaves a smaller last turn."""
    turn = plan.pp if plan.vpp > 1 else 1
    turns = job.global_batch_sequences / plan.dp / plan.micro_batch / turn
    whole = max(int(turns), 1)
    beyond = max(turns - whole, 0.0)
    return Candidate(
        plan=replace(plan, num_micro=whole * turn),
        beyond=beyond if beyond > 1e-9 else 0.0,
        turn=turn,
    )


def _gaps(row: Row, notes: Notes, plan: Plan, found: list[Candidate]) -> tuple[Gap, ...]:
    needed = {
        Gap.MODULE_RECOMPUTE: not set(notes.recompute_modules) <= {*MODULES, "core_attn"},
        Gap.LAYER_RECOMPUTE: "fraction of layers" in row.notes,
        Gap.UNEVEN_BATCH: any(one.beyond for one in found),
    }
    return tuple(gap for gap, wanted in needed.items() if wanted)
