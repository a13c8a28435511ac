"""Cases of a modelled profile: a grid of sizes over the whole range of the curves.

Lines run along the tokens (or bytes), dense enough to interpolate between. The other sizes are spread
over those of published transformers, whole and divided by tensor parallelism.
"""

from collections.abc import Iterable, Iterator
from itertools import product

from ops.memory_bound import KERNELS, bytes_moved_per_element
from profdb.cases import (
    AttentionCase,
    Case,
    CollectiveCase,
    GemmCase,
    GroupedGemmCase,
    HostCase,
    MemoryBoundCase,
    OptimizerCase,
)
from spec.cluster.cluster import ClusterSpec
from spec.collectives import GROUP_COLLECTIVES, Collective
from spec.dtypes import dtype_bytes
from spec.units import GIB, KIB

TOKENS = tuple(64 << step for step in range(12))
FEW_TOKENS = TOKENS[1::2]
FEATURES = (256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 28672, 53248)
VOCABULARIES = (32768, 131072)
HIDDENS = (1024, 2048, 4096, 8192, 16384)
EXPERTS = (1, 2, 4, 8, 16, 32, 64, 128)
EXPERT_FEATURES = (1024, 2048, 4096, 7168, 14336)

HEADS = ((1, 1), (2, 1), (4, 1), (4, 4), (8, 1), (8, 2), (8, 8), (16, 2), (16, 16), (32, 4), (32, 8))
MORE_HEADS = ((32, 32), (64, 8), (64, 64), (128, 128))
HEAD_DIMS = ((64, 64), (128, 128), (192, 128))
LENGTHS = tuple(512 << step for step in range(9))
WINDOW = 4096
CORE_LENGTHS = (512, 1024, 2048, 4096, 8192)

ROWS = tuple(256 << (2 * step) for step in range(8))
WIDTHS = (1, 64, 512, 2048, 8192, 32768, 131072)
SHARDS = tuple(1 << step for step in range(10, 37))
TENSORS = (1, 64, 512)

SIZES = (KIB, 4 * KIB, 16 * KIB, 64 * KIB, *(128 * KIB << step for step in range(14)), 4 * GIB, 16 * GIB)
MOST_DOMAINS = 2048
MOST_ELEMENTS = 64 * GIB


def main_dtype(cluster: ClusterSpec) -> str:
    """Returns the format in which training computes on this GPU: bf16, else fp16, else fp32."""
    formats = cluster.gpu.peak_flops
    return next((dtype for dtype in ("bf16", "fp16") if dtype in formats), "fp32")


def gemm_cases(cluster: ClusterSpec) -> Iterator[GemmCase]:
    """Yields Linears in three layouts, with and without bias, in the main format, fp8 and fp16, and batched products
    of unfused attention."""
    dtype = main_dtype(cluster)
    yield from _linears(TOKENS, dtype)
    yield from _linears(FEW_TOKENS, dtype, bias=True)
    if "fp16" in cluster.gpu.peak_flops and dtype != "fp16":
        yield from _linears(FEW_TOKENS, "fp16")
    if "fp8" in cluster.gpu.peak_flops:
        yield from _linears(FEW_TOKENS, "fp8", scale_recipe="tensor")
    for batch, length, layout in product((8, 32, 128), (512, 2048, 8192), ("NT", "NN", "TN")):
        # Scores over a head size of 128, or values of that size over the keys.
        k, n = (128, length) if layout == "NT" else (length, 128)
        yield GemmCase(batch=batch, m=length, k=k, n=n, layout=layout, dtype_in=dtype, dtype_out=dtype)


def _linears(tokens: Iterable[int], dtype: str, *, bias: bool = False, scale_recipe: str = "") -> Iterator[GemmCase]:
    """Yields forward NT, input gradient NN and weight gradient TN of every Linear (profdb.cases.GemmCase)."""
    out = dtype if dtype_bytes(dtype) >= 2 else "bf16"
    pairs = [*product(FEATURES, FEATURES), *product(HIDDENS, VOCABULARIES), *product(VOCABULARIES, HIDDENS)]
    for (inputs, outputs), count in product(pairs, tokens):
        for layout, m, k, n in (
            ("NT", count, inputs, outputs),
            ("NN", count, inputs, outputs),
            ("TN", outputs, count, inputs),
        ):
            yield GemmCase(
                m=m, k=k, n=n, layout=layout, dtype_in=dtype, dtype_out=out, bias=bias, scale_recipe=scale_recipe
            )


def grouped_cases(cluster: ClusterSpec) -> Iterator[GroupedGemmCase]:
    """Yields products of experts: every pair of widths in three layouts, few to many rows."""
    dtypes = [(main_dtype(cluster), "")]
    if "fp8" in cluster.gpu.peak_flops:
        dtypes.append(("fp8", "tensor"))
    for (dtype, recipe), groups, layout in product(dtypes, EXPERTS, ("NT", "NN", "TN")):
        for k, n, rows in product(EXPERT_FEATURES, EXPERT_FEATURES, FEW_TOKENS[1:]):
            out = dtype if dtype_bytes(dtype) >= 2 else "bf16"
            case = GroupedGemmCase(
                groups=groups, m=rows, k=k, n=n, layout=layout, dtype_in=dtype, dtype_out=out, scale_recipe=recipe
            )
            # An expert's two widths differ, and a group has at least one row.
            if rows >= groups and k != n:
                yield case


def attention_cases(cluster: ClusterSpec) -> Iterator[AttentionCase]:
    """Yields flash attention under every mask, queries shorter than the keys, and unfused products."""
    dtype = main_dtype(cluster)
    for (heads, kv_heads), direction in product((*HEADS, *MORE_HEADS), ("forward", "backward")):

        def case(
            length: int,
            dims: tuple[int, int],
            *,
            heads: int = heads,
            kv_heads: int = kv_heads,
            direction: str = direction,
            **labels: object,
        ) -> AttentionCase:
            values: dict[str, object] = {
                "batch": 1,
                "q_len": length,
                "kv_len": length,
                "heads": heads,
                "kv_heads": kv_heads,
                "qk_dim": dims[0],
                "v_dim": dims[1],
                "direction": direction,
                "dtype": dtype,
            }
            return AttentionCase(**{**values, **labels})  # type: ignore[arg-type]

        for length, dims, batch in product(LENGTHS, HEAD_DIMS, (1, 4)):
            for mask in ("causal", "varlen", "full"):
                yield case(length, dims, batch=batch, mask=mask)
        # A sliding window; then context parallelism, whose ranks have a part of the queries; then unfused products,
        # whose score matrix limits the length.
        for length, batch in product(LENGTHS, (1, 4)):
            yield case(length, (128, 128), batch=batch, mask="window", window=WINDOW)
        for length, parts, mask in product(LENGTHS[1:], (2, 4, 8), ("causal", "full")):
            yield case(length, (128, 128), q_len=length // parts, mask=mask)
        for length, batch, mask in product(CORE_LENGTHS, (1, 4), ("causal", "full")):
            yield case(length, (128, 128), batch=batch, mask=mask, kernel="core")


def kernel_cases(cluster: ClusterSpec) -> Iterator[MemoryBoundCase]:
    """Yields every kernel of ops.memory_bound that moves bytes, in the main format and fp32."""
    dtypes = dict.fromkeys((main_dtype(cluster), "fp32"))
    for kernel, direction, dtype in product(KERNELS, ("forward", "backward"), dtypes):
        if bytes_moved_per_element(kernel, backward=direction == "backward", dtype=dtype) == 0.0:
            continue
        for width in WIDTHS:
            # Width 1: kernels over flat buffers, such as gradients, whose sizes are those of optimizer shards.
            rows = SHARDS[::3] if width == 1 else ROWS
            for count in rows:
                if count * width <= MOST_ELEMENTS:
                    yield MemoryBoundCase(kernel=kernel, direction=direction, rows=count, width=width, dtype=dtype)


def optimizer_cases() -> Iterator[OptimizerCase]:
    """Yields AdamW over shards of a thousand to 64 billion parameters."""
    for elements, tensors, gradient in product(SHARDS, TENSORS, ("fp32", "bf16")):
        yield OptimizerCase(elements=elements, tensors=tensors, gradient_dtype=gradient)


def collective_cases(cluster: ClusterSpec) -> Iterator[CollectiveCase]:
    """Yields every split of powers of two (and 3/2 of them across domains), the domain filled with siblings, and
    messages between two ranks, alone and with every rank of the domain sending."""
    # Groups of every power of two of ranks in a domain, on every number of domains up to the size of the machine.
    domain = cluster.scale_up_ranks
    domains = max(min(MOST_DOMAINS, cluster.max_nodes * cluster.gpus_per_node // domain), 1)
    inside = sorted({1 << step for step in range(domain.bit_length())} | {domain})
    powers = {1 << step for step in range(domains.bit_length())}
    across = sorted(n for n in powers | {3 * p // 2 for p in powers if p > 1} if n <= domains)
    for intra, inter in product((n for n in inside if n <= domain), across):
        if intra * inter == 1:
            continue
        # All ranks of a domain are busy, as with tensor parallelism of the same degree in every group.
        siblings = max(domain // intra, 1)
        for kind, size in product(GROUP_COLLECTIVES, SIZES):
            yield _collective(kind, size, (intra, inter, siblings))
    pairs = [(2, 1, max(domain // 2, 1))] if domain > 1 else []
    pairs += [(1, 2, siblings) for siblings in (n for n in inside if n <= domain)] if domains > 1 else []
    for size, shape in product(SIZES, dict.fromkeys([*pairs, *[(2, 1, 1)][: len(pairs)]])):
        yield _collective(Collective.P2P, size, shape)


def _collective(kind: Collective, size: int, shape: tuple[int, int, int]) -> CollectiveCase:
    """Returns a case whose size is rounded up to whole elements of 2 bytes for every rank."""
    intra, inter, siblings = shape
    unit = 2 * intra * inter
    return CollectiveCase(
        collective=kind, size_bytes=-(-size // unit) * unit, intra=intra, inter=inter, siblings=siblings
    )


def all_cases(cluster: ClusterSpec) -> list[Case]:
    """Returns every case of a modelled profile, each once."""
    cases: list[Case] = [
        *gemm_cases(cluster),
        *grouped_cases(cluster),
        *attention_cases(cluster),
        *kernel_cases(cluster),
        *optimizer_cases(),
        *collective_cases(cluster),
        HostCase(kind="launch"),
        HostCase(kind="call"),
    ]
    return list(dict.fromkeys(cases))
