"""Where experts may be: over which ranks, and cut how."""

from solver.plans.draft import Draft
from spec.arrays import BoolArray, bools


def experts_cut(draft: Draft) -> BoolArray:
    """Each rank has as many experts; a model without has none to spread."""
    if not draft.experts:
        return bools(draft["ep"] == 1)
    return bools(draft.experts % draft["ep"] == 0)


def experts_placed(draft: Draft) -> BoolArray:
    """The ranks of a stage are whole groups of experts."""
    return bools((draft["tp"] * draft["cp"] * draft.dp) % draft["ep"] == 0)


def moe_tokens(draft: Draft) -> BoolArray:
    """Tensor ranks hold each their part of the sequence, where there are experts."""
    cut = draft.sharding.norm_shards(draft.layout) == draft["tp"]
    return bools(cut | (draft.experts == 0))


def experts_folded(draft: Draft) -> BoolArray:
    """Groups of experts that are cut over etp, too; only experts can be, and not in every strategy."""
    etp = draft["etp"]
    ranks = draft["tp"] * draft["cp"] * draft.dp
    cut = draft.experts > 0 and draft.sharding.traits.cuts_experts
    return bools((ranks % (draft["ep"] * etp) == 0) & ((etp == 1) | cut))
