"""Which ranks hold copies of a strategy's weights: over them gradients are summed and ZeRO shards."""

from dataclasses import dataclass

from ops.op import Axis, Owner


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightCopies:
    """Groups of the weights of each owner.

    ``linear_owner`` owns the linears' weights; norms, embedding and head's norm are DENSE. ``dense`` is the
    group that holds the same DENSE weights; ZeRO cuts over ``zero_shard``, a part of it, and repeats over
    ``zero_replicate``.
    """

    linear_owner: Owner = Owner.DENSE
    dense: Axis = Axis.DP_CP
    zero_shard: Axis = Axis.ZERO_SHARD
    zero_replicate: Axis = Axis.ZERO_REPLICATE

    @property
    def has_weight_groups(self) -> bool:
        """Whether weights are cut over wp; elsewhere wp is 1."""
        return self.linear_owner is Owner.WEIGHT

    @property
    def over_sequence(self) -> bool:
        """Whether ranks that hold parts of one sequence over tp hold the same DENSE weights."""
        return self.dense is Axis.SDP

    def copy_axis(self, owner: Owner) -> Axis:
        """Ranks over which gradients of ``owner``'s weights are summed."""
        return {Owner.DENSE: self.dense, Owner.WEIGHT: Axis.WDP, Owner.EXPERT: Axis.EDP}[owner]

    def shard_axis(self, owner: Owner) -> Axis:
        """Ranks over which ZeRO cuts what belongs to ``owner``'s weights."""
        return {Owner.DENSE: self.zero_shard, Owner.WEIGHT: Axis.WDP, Owner.EXPERT: Axis.EDP}[owner]
