"""The communication words of a SimAI workload file: which collective and which group each one means.

Source: SimAI 1.6/1.7, astra-sim Workload.cc, ``Workload::initialize_workload``: the prefix of a word
decides the collective, the whole word decides the group, and the column decides whether a plain word
means tensor or data parallel.
"""

from enum import StrEnum

from spec.collectives import Collective
from spec.errors import ExportError

NO_COMM = "NONE"


class Column(StrEnum):
    """The three passes of a row, in the order of the file: fields 3-5, 6-8 and 9-11."""

    FORWARD = "forward"
    INPUT_GRAD = "input_grad"
    WEIGHT_GRAD = "weight_grad"


class SimaiGroup(StrEnum):
    """The groups of ranks the format knows. There is none for context or pipeline parallel."""

    TP = "tp"
    DP = "dp"
    EP = "ep"
    DP_EP = "dp_ep"
    NONE = "none"


# In the order in which the parser tests them.
PREFIXES: dict[str, Collective] = {
    "ALLREDUCE": Collective.ALL_REDUCE,
    "ALLTOALL": Collective.ALL_TO_ALL,
    "ALLGATHER": Collective.ALL_GATHER,
    "REDUCESCATTER": Collective.REDUCE_SCATTER,
}

# What each column can carry for the group whose size the simulator then uses. A DP_EP word in the first
# two columns is timed with tp ranks, an EP word in the last with dp ranks, so neither is ever written.
GROUPS_OF_COLUMN: dict[Column, tuple[SimaiGroup, ...]] = {
    Column.FORWARD: (SimaiGroup.TP, SimaiGroup.EP),
    Column.INPUT_GRAD: (SimaiGroup.TP, SimaiGroup.EP),
    Column.WEIGHT_GRAD: (SimaiGroup.DP, SimaiGroup.DP_EP),
}


def read_token(token: str, column: Column) -> tuple[Collective | None, SimaiGroup]:
    """The collective and the group SimAI takes ``token`` for; (None, NONE) when it moves nothing.

    As the simulator does it: lower case, unknown words and unknown endings mean no communication.
    """
    prefix = next((prefix for prefix in PREFIXES if token.startswith(prefix)), None)
    if prefix is None:
        return None, SimaiGroup.NONE
    plain = SimaiGroup.DP if column is Column.WEIGHT_GRAD else SimaiGroup.TP
    endings = {"": plain, "_EP": SimaiGroup.EP, "_DP_EP": SimaiGroup.DP_EP}
    group = endings.get(token[len(prefix) :], SimaiGroup.NONE)
    return (None, group) if group is SimaiGroup.NONE else (PREFIXES[prefix], group)


def write_token(collective: Collective, group: SimaiGroup, column: Column) -> str:
    """The word for ``collective`` over ``group`` in ``column``; ExportError when there is none."""
    word = next((word for word, kind in PREFIXES.items() if kind is collective), None)
    if word is None:
        raise ExportError(
            f"a SimAI workload has no word for {collective.value}; known: {', '.join(PREFIXES)}"
        )
    if group not in GROUPS_OF_COLUMN[column]:
        allowed = ", ".join(known.value for known in GROUPS_OF_COLUMN[column])
        raise ExportError(
            f"a SimAI workload has no {group.value} group in the {column.value} column; allowed: {allowed}"
        )
    ending = {SimaiGroup.EP: "_EP", SimaiGroup.DP_EP: "_DP_EP"}.get(group, "")
    return word + ending
