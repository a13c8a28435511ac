"""DeepEP's normal kernels (those of training), where the package is installed.

Source of names and shapes: deepseek-ai/DeepEP, deep_ep/buffers/legacy.py (Buffer: get_dispatch_layout, dispatch,
combine, get_dispatch_config, get_combine_config) and csrc/legacy/config.hpp (get_nvl_buffer_size_hint,
get_rdma_buffer_size_hint: bytes of a hidden vector, ranks).
"""

import torch

from profdb.cases import ExpertExchangeCase
from profiler.benchmarks.collectives import Place
from profiler.benchmarks.launched import Call, UnsupportedCaseError
from profiler.benchmarks.optional_packages import optional_package


def deep_ep_call(case: ExpertExchangeCase, place: Place, experts: torch.Tensor) -> Call:
    """Dispatch of this rank's tokens to the ranks of their ``experts`` (tokens x topk), as the first forward of a
    micro-batch makes it, counts and all; or the combine of what a dispatch brought.

    Raises UnsupportedCaseError without the package, and for what its kernels do not take.
    """
    package = optional_package("deep_ep") if place.where.type == "cuda" else None
    if package is None or not hasattr(package, "Buffer"):
        raise UnsupportedCaseError("DeepEP is not installed, or there is no GPU")
    if case.dtype != "bf16":
        raise UnsupportedCaseError(f"DeepEP's kernels are asked for bf16 here, not {case.dtype}")
    ranks, vector_bytes = len(place.ranks), case.hidden * 2
    configs = [package.Buffer.get_dispatch_config(ranks), package.Buffer.get_combine_config(ranks)]
    buffer = package.Buffer(
        place.handle,
        max(config.get_nvl_buffer_size_hint(vector_bytes, ranks) for config in configs),
        max(config.get_rdma_buffer_size_hint(vector_bytes, ranks) for config in configs),
    )
    tokens = torch.randn(case.tokens, case.hidden, device=place.where).to(torch.bfloat16)
    chosen = experts.to(device=place.where, dtype=getattr(package, "topk_idx_t", torch.int64))
    weights = torch.ones(case.tokens, case.topk, dtype=torch.float32, device=place.where)

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
    arrived, handle = dispatch()
    return lambda: buffer.combine(arrived, handle)
