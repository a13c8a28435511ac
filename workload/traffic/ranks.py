"""The groups of ranks of each kind of parallelism, by an order string such as tp-cp-ep-dp-pp.

The semantics of Megatron-LM's ``RankGenerator`` (megatron/core/parallel_state.py): the first word runs
fastest; with ``independent_ep`` the data-parallel axis is split into ep and dp/ep, in the order in which the
two words stand; without it the word ep is dropped. Words may be joined: ``tp-ep`` is the group of both.
"""

from dataclasses import dataclass

import numpy as np

from workload.diagnostics import WorkloadError

DEFAULT_ORDER = "tp-cp-ep-dp-pp"
WORDS = ("tp", "cp", "ep", "dp", "pp")
# Rank lists of larger worlds are of no use to a reader and take long to print.
MAX_WORLD = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOrder:
    """Degrees and the order of their axes, fastest first. world = tp x cp x dp x pp; ep divides dp.

    Raises WorkloadError for degrees below 1, an unknown or repeated word, a degree above 1 whose word is
    missing, ep that does not stand beside dp, and dp that ep does not divide.
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1
    order: str = DEFAULT_ORDER

    def __post_init__(self) -> None:
        words = self.order.lower().split("-")
        for word in words:
            if word not in WORDS or words.count(word) > 1:
                raise WorkloadError(f"order {self.order!r}: {word!r}; each of {', '.join(WORDS)} at most once")
        for word in WORDS:
            degree = getattr(self, word)
            if degree < 1:
                raise WorkloadError(f"{word} = {degree}: must be at least 1")
            if degree > 1 and word not in words:
                raise WorkloadError(f"order {self.order!r} has no {word}, but {word} = {degree}")
        if self.dp % self.ep:
            raise WorkloadError(f"ep = {self.ep} does not divide dp = {self.dp}")
        if "ep" in words and "dp" in words and abs(words.index("ep") - words.index("dp")) != 1:
            raise WorkloadError(f"order {self.order!r}: ep must stand beside dp")
        if self.world_size > MAX_WORLD:
            raise WorkloadError(f"a world of {self.world_size} ranks; at most {MAX_WORLD} are listed")

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.tp * self.cp * self.dp * self.pp

    def axes(self, *, independent_ep: bool) -> dict[str, int]:
        """Word -> size, fastest first; degrees of 1 that the order leaves out come last."""
        words = self.order.lower().split("-")
        words += [word for word in WORDS if word not in words]
        sizes = {word: int(getattr(self, word)) for word in words}
        if independent_ep:
            return {**sizes, "dp": self.dp // self.ep}
        return {word: size for word, size in sizes.items() if word != "ep"}


def rank_groups(order: RankOrder, token: str, *, independent_ep: bool = False) -> tuple[tuple[int, ...], ...]:
    """All groups of ``token`` (one word or several joined by ``-``), each in ascending rank order.

    ``independent_ep`` splits dp by ep: ``ep`` then names the expert-parallel groups and ``dp`` the expert
    data-parallel ones. Groups are counted over the remaining axes, fastest first. Raises WorkloadError for a
    word that is not an axis.
    """
    axes = order.axes(independent_ep=independent_ep)
    wanted = token.lower().split("-")
    for word in wanted:
        if word not in axes:
            hint = " (needs independent_ep)" if word == "ep" else ""
            raise WorkloadError(f"group {token!r}: {word!r} is no axis{hint}; known: {', '.join(axes)}")
    names = list(axes)
    grid = np.arange(order.world_size).reshape([axes[word] for word in reversed(names)])
    # numpy's last axis runs fastest, so the first word is the last axis.
    place = {word: len(names) - 1 - index for index, word in enumerate(names)}
    outside = sorted(place[word] for word in names if word not in wanted)
    inside = sorted(place[word] for word in set(wanted))
    members = int(np.prod([axes[word] for word in set(wanted)]))
    groups = grid.transpose([*outside, *inside]).reshape(-1, members)
    return tuple(tuple(group) for group in groups.tolist())


def named_groups(order: RankOrder) -> dict[str, tuple[tuple[int, ...], ...]]:
    """The groups a training job forms, by the names Megatron-LM gives them."""
    plain = ("tp", "cp", "dp", "dp_cp", "pp", "tp_pp", "tp_dp_cp")
    expert = {"ep": "ep", "expert_tp_ep": "tp-ep", "expert_dp": "dp"}
    return {
        **{name: rank_groups(order, name.replace("_", "-")) for name in plain},
        **{name: rank_groups(order, token, independent_ep=True) for name, token in expert.items()},
    }
