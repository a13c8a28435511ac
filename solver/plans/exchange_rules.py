"""What the experts' exchange wants of settings, told before anything is priced, and of plans."""

import numpy as np

from ops.groups import group_of
from ops.op import Axis
from ops.recompute import Recompute
from solver.plans.draft import Draft
from spec.arrays import BoolArray, bools
from spec.errors import ConfigError
from spec.job import JobSpec

# HybridEP's queue pairs take less than 65,536 requests, a dispatch 3 a token and one (DeepEP, branch hybrid-ep,
# csrc/hybrid_ep/config.cuh, hybrid_ep_token_capacity_is_valid).
MOST_TOKENS_BETWEEN_DOMAINS = (65536 - 1 - 1) // 3

# DeepEP's groups: deep_ep/buffers/legacy.py (dd758ca), get_dispatch_config and get_combine_config,
# "Unsupported number of EP ranks", which Megatron-LM's fused_a2a.py, get_buffer, asks.
DEEPEP_RANKS = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160)


def beside_another_micro_batch(draft: Draft) -> BoolArray:
    """Where the exchange runs beside another micro-batch: virtual chunks if there are stages, no layer run
    again whole, nor its experts (Megatron-LM d98e8a6 ``transformer_config.py``, __post_init__,
    overlap_moe_expert_parallel_comm)."""
    whole = draft.recompute in (Recompute.FULL, Recompute.BLOCK)
    again = whole or "moe" in draft.recompute_modules
    runs = ((draft["pp"] == 1) | (draft["vpp"] > 1)) & (not again)
    return bools(runs | (draft["ep"] == 1) | (not draft.job.overlap_expert_a2a))


def tokens_between_domains(draft: Draft) -> BoolArray:
    """HybridEP over several domains: no more tokens a rank than its queues take."""
    if draft.job.moe_dispatcher != "hybridep":
        return bools(draft["ep"] > 0)
    domain = draft.cluster.domains[0].ranks
    group = group_of(Axis.EP, draft.layout, domain)
    tokens = (
        draft["micro_batch"] * draft.job.seq_len // (draft["cp"] * draft.sharding.norm_shards(draft.layout))
    )
    return bools((group.inter == 1) | (tokens <= MOST_TOKENS_BETWEEN_DOMAINS))


def deepep_ranks(draft: Draft) -> BoolArray:
    """DeepEP has settings for groups of these sizes alone; the group is that of ep x etp (Megatron-LM d98e8a6
    ``token_dispatcher.py``, _DeepepManager)."""
    held = np.isin(draft["ep"] * draft["etp"], DEEPEP_RANKS)
    return bools(held | (draft["ep"] == 1) | (draft.job.moe_dispatcher != "deepep"))


def check_exchange(job: JobSpec) -> None:
    """Raise ConfigError for weight gradients put off where no exchange runs beside another micro-batch (Megatron-LM
    ``transformer_config.py``, __post_init__)."""
    if job.delay_wgrad and not job.overlap_expert_a2a:
        raise ConfigError(
            where="--job", key="delay_wgrad", value=True, allowed="true only beside overlap_expert_a2a true"
        )
