"""The keys of a parallel plan: the one table for --plan, [plan], CSV columns, rules, result files and launch settings."""

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

from spec.frameworks import STRATEGIES, OffloadedPart, RecomputedPart
from spec.program.kinds import MOST_GPUS, MOST_LAYERS, MOST_STEP_TOKENS, Number, Text, Whole, Word
from spec.settings.setting import Column, Settings, settings_of

DEGREE = Whole(most=MOST_GPUS)
# The command line has options of their own for these.
IN_FILES_ONLY = frozenset({"num_micro", "preset"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """A parallel plan as a user states it; None where it is left open."""

    strategy: Annotated[str | None, Word(STRATEGIES)] = None
    """How a layer's weights and tokens are split."""
    tp: Annotated[int | None, DEGREE, Column()] = None
    """Tensor-parallel ranks."""
    pp: Annotated[int | None, DEGREE, Column()] = None
    """Pipeline stages."""
    wp: Annotated[int | None, DEGREE, Column()] = None
    """Ranks that share the weights, under isp."""
    ep: Annotated[int | None, Whole(least=0, most=MOST_GPUS), Column()] = None
    """Expert-parallel ranks; 0 for as many as experts and ranks allow."""
    etp: Annotated[int | None, DEGREE, Column()] = None
    """Tensor-parallel ranks of an expert (default 1)."""
    cp: Annotated[int, DEGREE, Column()] = 1
    """Context-parallel ranks."""
    vpp: Annotated[int, Whole(most=MOST_LAYERS), Column()] = 1
    """Virtual chunks of a stage."""
    zero_stage: Annotated[int | None, Whole(least=0, most=3), Column()] = None
    """What is sharded over data-parallel ranks: optimizer state (1), gradients (2), parameters (3)."""
    zero_size: Annotated[int | None, Whole(least=0, most=MOST_GPUS), Column()] = None
    """Ranks that shard one copy; 0 for the whole data-parallel group."""
    micro_batch: Annotated[int | None, Whole(most=MOST_STEP_TOKENS), Column()] = None
    """Sequences of a micro-batch."""
    recompute: Literal["none", "selective", "full"] | None = None
    """What of a layer is recomputed in the backward."""
    recompute_layers: Annotated[int | None, Whole(most=MOST_LAYERS), Column()] = None
    """Layers of every chunk of a stage that are recomputed, with recompute=full (default: all)."""
    recompute_modules: tuple[RecomputedPart, ...] = ()
    """Parts of layers that are recomputed in addition."""
    schedule: Annotated[str | None, Text(means="a schedule such as zb-h1")] = None
    """Pipeline schedule (solver.plans.schedules)."""
    layout: Annotated[str | None, Text(means="stages such as Ett|tt|tL, first=7+last=7 or embedding+loss")] = None
    """What each stage holds, the number of layers of the first and last stage, or what counts as a layer
    (spec.pipeline_layout); default: an even partition."""
    optimizer_offload: Annotated[float, Number(least=0, most=1), Column()] = 0.0
    """Share of the optimizer state that is offloaded to the host and updated there."""
    offloaded_layers: Annotated[int, Whole(least=0, most=MOST_LAYERS), Column()] = 0
    """Layers whose saved activations are offloaded to the host."""
    offload_modules: tuple[OffloadedPart, ...] = ()
    """Parts of layers whose saved activations are offloaded."""
    num_micro: Annotated[int | None, Whole(most=MOST_STEP_TOKENS), Column()] = None
    """Micro-batches of a step; defines the batch if none is given."""
    preset: Annotated[str | None, Text(means="a framework of configs/frameworks")] = None
    """The framework that runs the plan."""


@cache
def plan_settings() -> Settings:
    """Returns every key of a plan in a file."""
    return settings_of(PlanSettings)


def plan_option_settings() -> Settings:
    """Returns every key that --plan takes."""
    return dict(setting for setting in plan_settings().items() if setting[0] not in IN_FILES_ONLY)
