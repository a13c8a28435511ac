"""Benchmark: tokens to the ranks of their experts and back, with the unequal parts of random routing.

``all2all``: rows in the order of their experts' ranks are exchanged in one all-to-all of unequal parts, and
back (Megatron-Core token_dispatcher.py, MoEAlltoAllTokenDispatcher). Their permutation before and after is a
kernel of its own (ops.memory_bound, permute). ``deepep``: DeepEP's normal kernels (those of
training), where the package is installed. Source of names and shapes: deepseek-ai/DeepEP, deep_ep/buffers/legacy.py
(Buffer: get_dispatch_layout, dispatch, combine, get_dispatch_config, get_combine_config) and csrc/legacy/config.hpp
(get_nvl_buffer_size_hint, get_rdma_buffer_size_hint: bytes of a hidden vector, ranks).
"""

from collections.abc import Callable

import torch

from profdb.cases import ExpertExchangeCase
from profiler.benchmarks import torch_collectives
from profiler.benchmarks.collectives import GroupMember, tiling_for
from profiler.benchmarks.launched import Call, Launched, UnsupportedCaseError
from profiler.benchmarks.optional_packages import optional_package
from profiler.benchmarks.torch_dtypes import random_operand
from profiler.distributed.world import World


def launch_expert_exchange(case: ExpertExchangeCase, world: World) -> Launched:
    """Returns the call that sends this rank's tokens to their experts or returns them, in every group at once.

    Raises UnsupportedCaseError for an unknown direction or kernel, experts that do not divide over the ranks, and
    groups that this world cannot form.
    """
    if case.direction not in ("dispatch", "combine"):
        raise UnsupportedCaseError(f"direction {case.direction!r} is neither dispatch nor combine")
    if case.kernel not in KERNELS:
        raise UnsupportedCaseError(f"kernel {case.kernel!r} is none of {', '.join(KERNELS)}")
    tiling = tiling_for(case, world)
    ranks = tiling.group_of(world.rank)
    if case.experts % len(ranks) or case.topk > case.experts:
        raise UnsupportedCaseError(f"{case.topk} of {case.experts} experts over {len(ranks)} ranks")
    member = GroupMember(ranks=ranks, rank=world.rank, handle=world.group_for(tiling), where=world.device.torch_device)
    call, name = KERNELS[case.kernel](case, member)
    return Launched(case=case, calls=(call,), implementation=name, collective=True)


def chosen_experts(case: ExpertExchangeCase, rank: int) -> torch.Tensor:
    """Returns the experts of each token of a rank (tokens x topk); every rank can compute those of any other."""
    # Seeded by the rank, so that counts need not be exchanged.
    generator = torch.Generator().manual_seed(rank)
    return torch.rand(case.tokens, case.experts, generator=generator).topk(case.topk, dim=-1).indices


def all_to_all_call(case: ExpertExchangeCase, member: GroupMember) -> tuple[Call, str]:
    """Returns one exchange of rows that are sorted by the rank of their expert, or its reverse."""
    # Experts are spread over the group in blocks: expert e belongs to rank e // experts_per_rank.
    experts_per_rank = case.experts // len(member.ranks)
    # Per rank of the group: the rows that it sends to each member (length: ranks of the group).
    counts = {
        rank: torch.bincount(chosen_experts(case, rank).flatten() // experts_per_rank, minlength=len(member.ranks))
        for rank in member.ranks
    }
    own = member.ranks.index(member.rank)
    sent_rows = counts[member.rank].tolist()
    # This rank's column of the same table.
    received_rows = [int(counts[rank][own]) for rank in member.ranks]
    here, there = (
        random_operand((sum(rows), case.hidden), case.dtype, member.where) for rows in (sent_rows, received_rows)
    )

    def dispatch() -> None:
        torch_collectives.all_to_all_rows(there, here, received_rows, sent_rows, member.handle)

    def combine() -> None:
        torch_collectives.all_to_all_rows(here, there, sent_rows, received_rows, member.handle)

    return (dispatch if case.direction == "dispatch" else combine), "torch all_to_all_single, unequal parts"


def deep_ep_exchange(case: ExpertExchangeCase, member: GroupMember) -> tuple[Call, str]:
    """Returns DeepEP's call on the same tokens."""
    return deep_ep_call(case, member, chosen_experts(case, member.rank)), "deep_ep.Buffer"


KERNELS: dict[str, Callable[[ExpertExchangeCase, GroupMember], tuple[Call, str]]] = {
    "all2all": all_to_all_call,
    "deepep": deep_ep_exchange,
}


def deep_ep_call(case: ExpertExchangeCase, member: GroupMember, experts: torch.Tensor) -> Call:
    """Returns the dispatch of this rank's tokens to the ranks of their ``experts`` (tokens x topk), as in the first
    forward of a micro-batch, with the counts; or the combine of a dispatch's result.

    Raises UnsupportedCaseError without the package, and for what its kernels do not accept.
    """
    # DeepEP's interface with a Buffer; other releases of the package may have another one.
    package = optional_package("deep_ep") if member.where.type == "cuda" else None
    if package is None or not hasattr(package, "Buffer"):
        raise UnsupportedCaseError("DeepEP is not installed, or there is no GPU")
    if case.dtype != "bf16":
        raise UnsupportedCaseError(f"DeepEP's kernels are asked for bf16 here, not {case.dtype}")
    # bf16: 2 bytes per channel of a token.
    ranks, vector_bytes = len(member.ranks), case.hidden * 2
    configs = [package.Buffer.get_dispatch_config(ranks), package.Buffer.get_combine_config(ranks)]
    buffer = package.Buffer(
        member.handle,
        max(config.get_nvl_buffer_size_hint(vector_bytes, ranks) for config in configs),
        max(config.get_rdma_buffer_size_hint(vector_bytes, ranks) for config in configs),
    )
    tokens = torch.randn(case.tokens, case.hidden, device=member.where).to(torch.bfloat16)
    chosen = experts.to(device=member.where, dtype=getattr(package, "topk_idx_t", torch.int64))
    weights = torch.ones(case.tokens, case.topk, dtype=torch.float32, device=member.where)

    def dispatch() -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        of_rank, of_node, of_expert, in_rank, _ = buffer.get_dispatch_layout(chosen, case.experts)
        arrived, _, _, _, handle, _ = buffer.dispatch(
            tokens,
            topk_idx=chosen,
            topk_weights=weights,
            num_tokens_per_rank=of_rank,
            num_tokens_per_rdma_rank=of_node,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=of_expert,
        )
        return arrived, handle

    if case.direction == "dispatch":
        return dispatch
    # A combine needs the handle of the dispatch that it reverses.
    arrived, handle = dispatch()
    return lambda: buffer.combine(arrived, handle)
