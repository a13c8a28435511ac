"""Which tokens of a sequence attend to each other."""

import numpy as np

from ops.context import LayerContext
from spec.arrays import IntArray, ceil_div
from spec.job import JobSpec
from spec.mixers.attention import AttentionSpec


def span(job: JobSpec, attention: AttentionSpec) -> int:
    """Tokens that attend to each other: a document, or a chunk where that is less; 0 where all of a sequence do."""
    spans = [span for span in (job.document_tokens, attention.chunk or 0) if 0 < span < job.seq_len]
    return min(spans, default=0) if job.flash_attention else 0


def documents_of(
    context: LayerContext, attention: AttentionSpec, length: IntArray
) -> tuple[IntArray, IntArray]:
    """Documents of a sequence that a rank attends within at a time, and tokens of each: the mask of packed
    documents, and of chunks, is block-diagonal (flash-attn, flash_attn_varlen_func: cu_seqlens). A ring hands on
    whole blocks of keys, so under it a sequence counts as one."""
    tokens = span(context.job, attention)
    if not tokens:
        return np.ones_like(length), length
    one = np.minimum(length, tokens)
    whole = (context.layout.cp > 1) & (not context.exchanges_context)
    document = np.where(whole, length, one)
    return ceil_div(length, document), document
