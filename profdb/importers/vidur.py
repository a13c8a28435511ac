"""Vidur's profiling folders: forward times of one model's layers, and two network operations.

Layout: ``compute/<sku>/<model>/{mlp,attention}.csv`` and ``network/<device>/{all_reduce,send_recv}.csv``;
times in milliseconds, fp16, statistics of the trials (we keep the median). The caller names the GPU of a
folder. Rows of mlp.csv have the model's sizes and the tensor-parallel degree;
attention.csv rows of the decode phase (one query token) are skipped: training has none.
"""

from collections.abc import Iterator
from pathlib import Path

from profdb.cases import AttentionCase, Case, CollectiveCase, GemmCase, MemoryBoundCase
from profdb.importers.csv_rows import CsvRow, read_rows
from profdb.sample import Sample
from spec.collectives import Collective
from spec.errors import ProfileError
from spec.units import MS

MLP_COLUMNS = (
    "n_head",
    "n_kv_head",
    "n_embd",
    "n_expanded_embd",
    "use_gated_mlp",
    "num_tokens",
    "num_tensor_parallel_workers",
)
ATTENTION_COLUMNS = (
    "n_embd",
    "n_q_head",
    "n_kv_head",
    "num_tensor_parallel_workers",
    "batch_size",
    "prefill_chunk_size",
    "kv_cache_size",
    "is_prefill",
)
NETWORK_COLUMNS = ("num_workers", "size", "devices_per_node")

DTYPE = "fp16"


def median_column(operation: str) -> str:
    """Returns the name of the column of an operation's median."""
    return f"time_stats.{operation}.median"


def read_vidur_folder(folder: str | Path) -> list[Sample]:
    """Returns the samples of every mlp.csv, attention.csv, all_reduce.csv and send_recv.csv below ``folder``, which
    must have files of one GPU only. Raises ProfileError (file, line, reason); then nothing is imported."""
    readers = {
        "mlp.csv": read_mlp,
        "attention.csv": read_attention,
        "all_reduce.csv": read_network,
        "send_recv.csv": read_network,
    }
    result = [path for path in sorted(Path(folder).rglob("*.csv")) if path.name in readers]
    if not result:
        raise ProfileError(f"{folder}: no {', '.join(readers)} below; nothing imported")
    return [sample for path in result for sample in readers[path.name](path)]


def read_mlp(path: str | Path) -> list[Sample]:
    """Returns the samples of an mlp.csv: linears, norms, activation, rotary, residual and embedding, forward."""
    samples = []
    for row in read_rows(Path(path), MLP_COLUMNS):
        for operation, case in mlp_cases(row):
            if median_column(operation) in row.cells:
                samples.append(_sample(row, operation, case))
    return samples


def mlp_cases(row: CsvRow) -> Iterator[tuple[str, Case]]:
    """Yields (operation, case) of one row: fused query-key-value and, in gated models, fused gate and up."""
    tp, tokens, hidden = (
        row.whole("num_tensor_parallel_workers"),
        row.whole("num_tokens"),
        row.whole("n_embd"),
    )
    heads, kv_heads, ffn = row.whole("n_head"), row.whole("n_kv_head"), row.whole("n_expanded_embd")
    gated = _flag(row, "use_gated_mlp")
    if hidden % heads or heads % tp or ffn % tp:
        raise row.refuse("num_tensor_parallel_workers", "must divide heads and n_expanded_embd")
    # Sizes of one tensor-parallel rank. Grouped-query models with fewer key heads than ranks replicate them.
    width = hidden // heads
    queries, keys = heads // tp * width, max(kv_heads // tp, 1) * width

    def gemm(inputs: int, outputs: int) -> GemmCase:
        return GemmCase(m=tokens, k=inputs, n=outputs, dtype_in=DTYPE, dtype_out=DTYPE)

    def kernel(name: str, columns: int) -> MemoryBoundCase:
        return MemoryBoundCase(kernel=name, direction="forward", rows=tokens, width=columns, dtype=DTYPE)

    norm = kernel("rmsnorm" if gated else "layernorm", hidden)
    # Names are Vidur's (vidur/profiling/mlp); a gated activation reads two halves of the up projection.
    yield "attn_pre_proj", gemm(hidden, queries + 2 * keys)
    yield "attn_post_proj", gemm(queries, hidden)
    yield "mlp_up_proj", gemm(hidden, (2 if gated else 1) * ffn // tp)
    yield "mlp_down_proj", gemm(ffn // tp, hidden)
    yield "mlp_act", kernel("swiglu" if gated else "gelu", ffn // tp)
    yield "input_layernorm", norm
    yield "post_attention_layernorm", norm
    yield "attn_rope", kernel("rotary", queries + keys)
    yield "add", kernel("add", hidden)
    yield "emb", kernel("embedding", hidden)


def read_attention(path: str | Path) -> list[Sample]:
    """Returns the samples of the prefill rows: a chunk of queries over the cached keys and its own, causal."""
    samples = []
    for row in read_rows(Path(path), (*ATTENTION_COLUMNS, median_column("attn_prefill"))):
        # A decode row has one query per sequence, which training never launches.
        if not _flag(row, "is_prefill"):
            continue
        tp, heads, hidden = (
            row.whole("num_tensor_parallel_workers"),
            row.whole("n_q_head"),
            row.whole("n_embd"),
        )
        if hidden % heads or heads % tp:
            raise row.refuse("n_q_head", "must divide n_embd and be divided by the tensor-parallel workers")
        chunk = row.whole("prefill_chunk_size")
        # ``whole`` accepts 1 or more, and most rows have an empty cache.
        cached = 0 if row.text("kv_cache_size") in ("0", "0.0") else row.whole("kv_cache_size")
        case = AttentionCase(
            batch=row.whole("batch_size"),
            q_len=chunk,
            kv_len=chunk + cached,
            heads=heads // tp,
            kv_heads=max(row.whole("n_kv_head") // tp, 1),
            qk_dim=hidden // heads,
            v_dim=hidden // heads,
            dtype=DTYPE,
        )
        samples.append(_sample(row, "attn_prefill", case))
    return samples


def read_network(path: str | Path) -> list[Sample]:
    """Returns the samples of an all_reduce.csv or send_recv.csv; ``size`` is in bytes of one rank's tensor."""
    source = Path(path)
    operation = source.name.removesuffix(".csv")
    kinds = {"all_reduce": Collective.ALL_REDUCE, "send_recv": Collective.P2P}
    if operation not in kinds:
        raise ProfileError(f"{source}: must be named all_reduce.csv or send_recv.csv; nothing imported")
    samples = []
    for row in read_rows(source, (*NETWORK_COLUMNS, median_column(operation))):
        ranks, intra = row.whole("num_workers"), row.whole("devices_per_node")
        # A node may have more GPUs than the group uses.
        intra = min(intra, ranks)
        if ranks % intra:
            raise row.refuse("num_workers", f"must be a multiple of devices_per_node {intra}")
        case = CollectiveCase(
            collective=kinds[operation],
            size_bytes=row.whole("size"),
            intra=intra,
            inter=ranks // intra,
            dtype=DTYPE,
        )
        samples.append(_sample(row, operation, case))
    return samples


def _sample(row: CsvRow, operation: str, case: Case) -> Sample:
    return Sample(
        case=case,
        trials_s=(row.seconds(median_column(operation), MS),),
        launched={"source": "vidur", "operation": operation},
    )


def _flag(row: CsvRow, column: str) -> bool:
    text = row.text(column).lower()
    if text not in ("true", "false", "1", "0"):
        raise row.refuse(column, "must be True or False")
    return text in ("true", "1")
