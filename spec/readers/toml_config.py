"""The TOML form of a model config: the nouns of spec.model written out, for any mix of blocks.

    source = "where the figures come from"
    [model]
    hidden = 12288
    vocab = 50257
    norm = "layernorm"          # or "rmsnorm" (default)
    position = "learned"        # or "rotary" (default), "none"
    max_positions = 2048
    [[model.blocks]]            # one table per run of equal blocks
    count = 96
    attention = { num_heads = 96, qkv_bias = true, out_bias = true }
    mlp = { ffn_hidden = 49152, gated = false, bias = true }
    [data]
    seq_len = 2048
    [plan]                      # optional: the keys of spec.settings.plan
    strategy = "mtp"
    tp = 8
    [job]                       # optional: the keys of spec.settings.job
    dropout = true
    [job.precision]
    recipe = "fp8-blockwise"
    [constraints]               # optional: what a search may not choose (spec.settings.constraints)
    fix = { tp = 8 }
    headroom = 0.1

Keys are the field names of ModelSpec, BlockSpec, MlpSpec, MoeSpec, RopeSpec and PlanSettings, and of what mixes the
block's tokens, whose own key is its name in spec.mixers.registry; any other key is refused.
"""

from pathlib import Path

from spec.files import read_toml
from spec.frameworks import framework_names
from spec.mixers.attention import RopeScaling, RopeSpec
from spec.mixers.mixer import Mixer
from spec.mixers.registry import MIXERS
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec, MoeSpec, NormKind, NormPlace, PositionKind
from spec.readers.config_file import ConfigFile
from spec.section import MAX_LAYERS, Section
from spec.settings.constraints import constraints_in
from spec.settings.job import PRECISIONS, job_settings
from spec.settings.plan import PlanSettings, plan_settings
from spec.settings.setting import section_values

MAX_RUNS = 1000
# Settings of the job, not of its plan, by section.
OF_THE_JOB = {
    "dtype": f"[job.precision] recipe: {', '.join(PRECISIONS)}",
    "use_flash_attn": "[job] flash_attention",
    "overlap_sync_grad": "[job.data_parallel] overlap_grad_reduce",
    "overlap_sync_param": "[job.data_parallel] overlap_param_gather",
    "weight_overlap": "[job.data_parallel] overlap_weights",
    "reduce_bucket_size": "[job.data_parallel] bucket_elements",
}
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "squared_relu")


def read_toml_config(path: Path) -> ConfigFile:
    """The model, sequence length, plan and job of one TOML file; raises ConfigError."""
    top = read_toml(path)
    model = _model(top.section("model"), name=path.stem, source=top.text("source"))
    data = top.section("data")
    seq_len = data.integer("seq_len", None)
    data.close()
    plan = _plan(top.section("plan")) if top.has("plan") else None
    job = _job(top.section("job"))
    constraints = constraints_in(top.section("constraints"))
    top.close()
    return ConfigFile(
        path=top.where,
        format="toml",
        model=model,
        seq_len=seq_len,
        plan=plan,
        framework=plan.preset if plan else None,
        job=job,
        constraints=constraints,
    )


def _model(section: Section, *, name: str, source: str) -> ModelSpec:
    hidden = section.integer("hidden")
    norm = NormKind(section.choice("norm", NormKind, "rmsnorm"))
    model = section.record(
        ModelSpec,
        name=name,
        blocks=tuple(_run(block, hidden, norm) for block in section.sections("blocks", maximum=MAX_RUNS)),
        source=source,
        rope=_rope(section.section("rope")) if section.has("rope") else None,
        norm_epsilon=section.number("norm_epsilon", maximum=1.0) if section.has("norm_epsilon") else None,
        assumptions=(),
    )
    if model.rope is not None and model.position is not PositionKind.ROTARY:
        section.fail("rope", "rotary positions only")
    if model.position is PositionKind.LEARNED and not model.max_positions:
        section.fail("max_positions", "required with learned positions")
    section.close()
    return model


def _rope(section: Section) -> RopeSpec:
    """``rope = { base = 10000, share = 1.0, scaling = { kind = "yarn", factor = 40 } }``: RopeSpec, RopeScaling."""
    scaling = None
    if section.has("scaling"):
        inside = section.section("scaling")
        optional = ("slow", "fast", "mscale", "mscale_all_dim")
        given = {key: inside.number(key, positive=False) for key in optional if inside.has(key)}
        scaling = RopeScaling(
            kind=inside.text("kind"),
            factor=inside.number("factor", 1.0),
            original_positions=inside.integer("original_positions", 0),
            **given,
        )
        inside.close()
    rope = RopeSpec(
        base=section.number("base", 10_000.0), share=section.number("share", 1.0, maximum=1.0), scaling=scaling
    )
    section.close()
    return rope


def _run(section: Section, hidden: int, norm: NormKind) -> BlockRun:
    if section.has("mlp") == section.has("moe"):
        section.fail("mlp", "exactly one of mlp and moe in each block (mlp = false: it has neither)")
    has_mlp = section.has("mlp") and section.values["mlp"] is not False
    block = section.record(
        BlockSpec,
        mixer=_mixer(section, hidden),
        mlp=_mlp(section.section("mlp")) if has_mlp else None,
        moe=_moe(section.section("moe")) if section.has("moe") else None,
        norm=norm,
        norm_place=_norm_place(section),
        high_precision=False,
    )
    count = section.integer("count", maximum=MAX_LAYERS)
    section.close()
    return BlockRun(block=block, count=count)


def _norm_place(block: Section) -> NormPlace:
    place = NormPlace(block.choice("norm_place", NormPlace, "before"))
    two_halves = block.values.get("mixer") is not False and block.values.get("mlp") is not False
    if place is NormPlace.SHARED and not two_halves:
        block.fail("norm_place", "shared only by two halves: a mixer and an mlp or moe")
    return place


def _mixer(block: Section, hidden: int) -> Mixer | None:
    """Returns what the block's one key among MIXERS describes; None with ``mixer = false``."""
    kinds = [name for name in MIXERS if block.has(name)]
    if not block.flag("mixer", True):
        if kinds or block.values.get("mlp") is False:
            block.fail("mixer", f"true, or none of {', '.join(MIXERS)} and an mlp or moe")
        return None
    if len(kinds) != 1:
        allowed = f"exactly one of {', '.join(MIXERS)} in each block (mixer = false: it has none)"
        block.fail(kinds[-1] if kinds else next(iter(MIXERS)), allowed)
    return MIXERS[kinds[0]].read(block.section(kinds[0]), hidden)


def _mlp(section: Section) -> MlpSpec:
    gated = section.flag("gated", True)
    mlp = section.record(MlpSpec, gated=gated, activation=_activation(section, gated))
    section.close()
    return mlp


def _activation(section: Section, gated: bool) -> str:
    return section.choice("activation", ACTIVATIONS, "silu" if gated else "gelu")


def _moe(section: Section) -> MoeSpec:
    num_experts, gated = section.integer("num_experts"), section.flag("gated", True)
    moe = section.record(
        MoeSpec,
        topk=section.integer("topk", maximum=num_experts),
        gated=gated,
        activation=_activation(section, gated),
        score=section.choice("score", ("softmax", "sigmoid"), "softmax"),
    )
    section.close()
    chosen, groups = moe.route_chosen_groups, moe.route_groups
    if chosen > groups or num_experts % groups or num_experts // groups * chosen < moe.topk:
        section.fail("route_groups", f"a divisor of {num_experts} experts, with topk in the chosen ones")
    return moe


def _plan(section: Section) -> PlanSettings:
    for key, place in OF_THE_JOB.items():
        if section.has(key):
            section.fail(key, f"under {place}")
    plan = PlanSettings(**section_values(section, plan_settings()))
    if plan.preset not in (None, *framework_names(legacy=True)):
        section.fail("preset", f"one of {', '.join(framework_names())}")
    section.close()
    return plan


def _job(section: Section) -> dict[str, object]:
    settings = section_values(section, job_settings())
    section.close()
    return settings
