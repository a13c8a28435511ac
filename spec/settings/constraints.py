"""Constraints on the plans of a search: values and bounds by key of a plan, and free memory."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated, Any, Literal

from spec.errors import ConfigError
from spec.frameworks import STRATEGIES
from spec.program.kinds import MOST_BYTES, MOST_GPUS, Number, Percentage, Several, Whole, Word
from spec.section import Section
from spec.settings.plan import plan_settings
from spec.settings.setting import Setting, Settings, keys_near, section_values, settings_of
from spec.units import GIB

# A layout describes the stages of one plan only, and a search chooses the recomputed layers itself.
NOT_CONSTRAINED = frozenset({"layout", "recompute_layers", "preset"})
BY_KEY = ("fix", "max", "min")
WORDS = {"fix": "a value of", "max": "the largest", "min": "the smallest"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintSettings:
    """The constraints with names of their own; ``fix``, ``max`` and ``min`` are by key of a plan."""

    modes: Annotated[tuple[str, ...], Several(Word(STRATEGIES), least=1)] = ()
    """Strategies to try."""
    zero: Annotated[tuple[int, ...], Several(Whole(least=0, most=3), least=1)] = ()
    """ZeRO stages to try."""
    no_recompute: bool = False
    """No recomputation in the backward."""
    memory_gib: Annotated[float | None, Number(least=1e-3, most=MOST_BYTES / GIB)] = None
    """GiB that a plan may need of each device."""
    headroom: Annotated[float, Percentage()] = 0.1
    """Share of a device's usable memory that a search leaves free; 0 beside memory_gib."""
    keep_tp_in_node: bool = False
    """Tensor-parallel groups stay inside a node, or inside a larger NVLink domain."""
    rank_by: Literal["simple", "time"] = "simple"
    """First of the plans that no prediction tells apart: the simplest one, or the one with the shortest step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Allowed values of ``key`` of a plan: ``among`` where that is not None, and numbers from ``least`` to ``most``."""

    key: str
    among: tuple[Any, ...] | None = None
    least: float = -inf
    most: float = inf

    def words(self) -> str:
        """``tp = 8``, ``strategy = mtp or fsp``, ``tp at most 8``."""
        if self.among is not None:
            return f"{self.key} = {' or '.join(_value_text(value) for value in self.among)}"
        bounds = [f"at least {_value_text(self.least)}"] * (self.least > -inf)
        bounds += [f"at most {_value_text(self.most)}"] * (self.most < inf)
        return f"{self.key} {' and '.join(bounds)}"

    def within(self, other: "Bound") -> "Bound":
        """Returns the values that both allow, which may be none."""
        least, most = max(self.least, other.least), min(self.most, other.most)
        lists = [one.among for one in (self, other) if one.among is not None]
        among = None
        if lists:
            allowed_values = [value for value in lists[0] if all(value in more for more in lists)]
            bounded = least > -inf or most < inf
            among = tuple(value for value in allowed_values if not bounded or least <= value <= most)
        return replace(self, among=among, least=least, most=most)

    @property
    def empty(self) -> bool:
        """True where no value is left."""
        return self.among == () or self.least > self.most


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """A bound a key, the memory that a plan may need at most (``memory_gib``, inf for all there is) and must leave free
    (``headroom``, a share), whether tensor-parallel groups stay inside a node, and which of the plans that no
    prediction tells apart comes first (``rank_by``)."""

    bounds: tuple[Bound, ...] = ()
    memory_gib: float = inf
    headroom: float = 0.0
    keep_tp_in_node: bool = False
    rank_by: str = "time"

    def words(self) -> list[str]:
        """Returns each constraint in words."""
        values = list(map(Bound.words, self.bounds))
        values += [f"at most {self.memory_gib:g} GiB needed"] * (self.memory_gib < inf)
        values += [f"{100 * self.headroom:g} % of memory left free"] * (self.headroom > 0)
        return [*values, *["tp inside a node"] * self.keep_tp_in_node]


NO_CONSTRAINTS = Constraints()
# Assumption: fragmentation, a longer sequence and one more communicator take so much of a device.
HEADROOM = ConstraintSettings().headroom
DEFAULT_CONSTRAINTS = Constraints(headroom=HEADROOM, rank_by=ConstraintSettings().rank_by)


def constraint_settings() -> Settings:
    """Returns the constraints with names of their own."""
    return settings_of(ConstraintSettings)


def bounded_settings() -> Settings:
    """Returns the keys that ``fix`` takes, and ``max`` and ``min`` where they are numbers: those of a plan that a search chooses,
    and the data-parallel ranks that its degrees leave."""
    result = {key: one for key, one in plan_settings().items() if key not in NOT_CONSTRAINED}
    dp = Setting(key="dp", kind=Whole(most=MOST_GPUS), words="Data-parallel ranks.", default=None)
    return {**result, "dp": dp}


def keys_of(verb: str) -> Settings:
    """Returns the keys that fix, max or min takes; the last two those that are numbers."""
    settings = bounded_settings()
    if verb == "fix":
        return settings
    return {key: one for key, one in settings.items() if isinstance(one.kind, Whole | Number)}


def constraints_in(section: Section) -> dict[str, Any]:
    """Returns the constraints of a section of a file: the named ones, and tables fix, max and min by key of a plan."""
    values = section_values(section, constraint_settings())
    for verb in BY_KEY:
        if section.has(verb):
            inside = section.section(verb)
            values[verb] = section_values(inside, keys_of(verb))
            inside.close()
    section.close()
    return values


def constraints_of(values: Mapping[str, Any], where: str = "constraints") -> Constraints:
    """``{"fix": {"tp": 8}, "max": {"micro_batch": 4}, "modes": ["mtp"], "headroom": 0.1}`` as constraints.

    Raises ConfigError for an unknown key, a value that it does not take, and values of one key that contradict.
    """
    table = constraint_settings()
    bounds: list[Bound] = []
    for verb in (key for key in values if key in BY_KEY):
        bounds += _bounds(values[verb], verb, where)
    named: dict[str, Any] = {}
    for key, value in values.items():
        if key in BY_KEY or value is None:
            continue
        if key not in table:
            known = ", ".join([*BY_KEY, *table])
            raise ConfigError(where=where, key=key, value=value, allowed=f"a constraint: {known}")
        named[key] = table[key].accept(value, where)
    of_names = {"modes": "strategy", "zero": "zero_stage"}
    bounds += [Bound(key=of, among=named[key]) for key, of in of_names.items() if named.get(key)]
    if named.get("no_recompute"):
        bounds.append(Bound(key="recompute", among=("none",)))
    return Constraints(
        bounds=_intersection(bounds, where),
        memory_gib=named.get("memory_gib", inf),
        headroom=named.get("headroom", 0.0),
        keep_tp_in_node=named.get("keep_tp_in_node", False),
        rank_by=named.get("rank_by", "time"),
    )


def requested_constraints(values: Mapping[str, Any]) -> Constraints:
    """Returns the constraints of a user: those of constraints_of over DEFAULT_CONSTRAINTS, whose headroom another
    limit on memory replaces."""
    limits = any(values.get(key) is not None for key in ("memory_gib", "headroom"))
    headroom = {} if limits else {"headroom": DEFAULT_CONSTRAINTS.headroom}
    return constraints_of({"rank_by": DEFAULT_CONSTRAINTS.rank_by} | headroom | dict(values))


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Returns two sets of constraints as one; the ``second`` overrides keys of the first."""
    result = {**first, **second}
    for verb in BY_KEY:
        if verb in first and verb in second:
            result[verb] = {**first[verb], **second[verb]}
    return result


def _bounds(values: object, verb: str, where: str) -> list[Bound]:
    """Returns the bounds of one of BY_KEY."""
    settings = keys_of(verb)
    if not isinstance(values, Mapping):
        raise ConfigError(where=where, key=verb, value=values, allowed="values by key of a plan")
    result = []
    for key, value in values.items():
        if key not in settings:
            allowed = f"{WORDS[verb]} a searched key: {keys_near(str(key), settings)}"
            raise ConfigError(where=where, key=f"{verb} {key}", value=value, allowed=allowed)
        accepted: Any = settings[key].accept(value, where)
        limit: dict[str, Any] = {"fix": {"among": (accepted,)}, "max": {"most": accepted}, "min": {"least": accepted}}
        result.append(Bound(key=key, **limit[verb]))
    return result


def _intersection(bounds: list[Bound], where: str) -> tuple[Bound, ...]:
    """Returns one bound per key; raises ConfigError for two that exclude each other."""
    result: dict[str, Bound] = {}
    for bound in bounds:
        before = result.get(bound.key)
        both = bound if before is None else before.within(bound)
        if both.empty:
            words = bound.words().removeprefix(f"{bound.key} ").removeprefix("= ")
            allowed = f"what does not contradict {before.words()}" if before else "some value"
            raise ConfigError(where=where, key=bound.key, value=words, allowed=allowed)
        result[bound.key] = both
    return tuple(result.values())


def _value_text(value: object) -> str:
    if isinstance(value, tuple):
        return "+".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
