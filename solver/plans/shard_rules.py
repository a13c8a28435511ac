"""What ZeRO may shard, over which ranks: by the framework, the strategy and the optimizer."""

import numpy as np

from ops.op import Owner
from solver.plans.draft import Draft
from spec.arrays import BoolArray, bools


def weight_shards(draft: Draft) -> BoolArray:
    """Shards divide the ranks that hold the same weights, where wp cuts these."""
    copies = draft.sharding.traits.copies
    if not copies.has_weight_groups:
        return np.ones(len(draft["tp"]), dtype=np.bool_)
    return bools(draft.copies(copies.linear_owner) % draft["zero_size"] == 0)


def experts_beside_shards(draft: Draft) -> BoolArray:
    """The strategy has experts over ep at this stage."""
    deepest = draft.sharding.traits.deepest_stage_with_ep
    return bools((draft["ep"] == 1) | (draft["zero_stage"] <= deepest))


def hybrid(draft: Draft) -> BoolArray:
    """Muon's matrices are dealt over all ranks that hold them (Megatron-LM layer_wise_optimizer.py,
    dp_cp_params_list), and parts of them are the distributed optimizer's alone (distributed_data_parallel.py:
    "Partial DistOpt cannot be used without DistOpt")."""
    whole = draft["zero_size"] == draft.copies(Owner.DENSE)
    partly = draft.job.preset.data_parallel.hybrid_zero and draft.job.optimizer != "muon"
    return bools(whole | (draft["zero_size"] == 1) | partly)


def stage_has_shards(draft: Draft) -> BoolArray:
    """A stage cuts something, and what is cut has a stage."""
    return bools((draft["zero_stage"] > 0) == (draft["zero_size"] > 1))


def stage_accepted(draft: Draft) -> BoolArray:
    """The framework has the stage."""
    return bools(np.isin(draft["zero_stage"], draft.job.preset.data_parallel.zero_stages))


def parameters_shardable(draft: Draft) -> BoolArray:
    """Gradients and parameters are cut where wp does not already, and in pipeline stages only by frameworks
    that can.
    """
    cut_already = draft.sharding.traits.copies.has_weight_groups
    staged = (draft["pp"] == 1) | draft.job.preset.pipeline.shards_weights
    return bools((draft["zero_stage"] < 2) | (staged & (not cut_already)))


def matrices_whole(draft: Draft) -> BoolArray:
    """Muon wants whole matrices: only optimizer state is cut, by matrices, and it stays on the device
    (layer_wise_optimizer.py); a strategy that cuts weights over wp has none."""
    if draft.job.optimizer != "muon":
        return np.ones(len(draft["tp"]), dtype=np.bool_)
    uncut = draft.sharding.traits.copies.linear_owner is not Owner.WEIGHT
    return bools((draft["zero_stage"] <= 1) & (draft.columns["optimizer_offload"] == 0.0) & uncut)
