"""One small case of every kind of kernel: whether this machine runs them at all, in a minute."""

from collections.abc import Hashable, Sequence

from profdb.cases import (
    FAMILY_OF,
    AttentionCase,
    Case,
    CollectiveCase,
    ExpertExchangeCase,
    GemmCase,
    OverlapCase,
    SustainedCase,
)
from profdb.store.columns import label_names
from profiler.cases.sweep_plan import largest_array_bytes


def smoke_cases(cases: Sequence[Case]) -> list[Case]:
    """The smallest case of each kind, in the order of ``cases``; none of those that go on for long, whose kernels are
    those of others."""
    smallest: dict[Hashable, Case] = {}
    for case in cases:
        if isinstance(case, SustainedCase):
            continue
        key = kind_of(case)
        held = smallest.setdefault(key, case)
        if largest_array_bytes(case) < largest_array_bytes(held):
            smallest[key] = case
    return list(smallest.values())


def kind_of(case: Case) -> Hashable:
    """What decides which code runs: the words of a case, and the numbers that choose a kernel rather than a size."""
    words = tuple(str(getattr(case, name)) for name in label_names(FAMILY_OF[type(case)]))
    match case:
        case GemmCase():
            return type(case), *words, case.bias, case.batch > 1
        case AttentionCase():
            return type(case), *words, case.qk_dim, case.v_dim, case.heads != case.kv_heads
        case CollectiveCase() | ExpertExchangeCase():
            return type(case), *words, case.intra, case.inter
        case OverlapCase():
            return type(case), *words, case.intra, case.inter, case.products > 0, case.collectives > 0
    return type(case), *words
