"""The step time a row measured, from whichever figure its source gives. Read only after pricing.

FLOP formulas as the sources used them: Narayanan et al. 2021 (arXiv 2104.04473 eq. 3) with recompute
counted; Megatron-Core without it (72 B s l h^2 (1 + s/6h + V/12lh)).
"""

from benchmarks.accuracy_rows.row import Row, RowError
from spec.units import TERA

WITHOUT_RECOMPUTE = frozenset({"megatron_core_h100", "megascale"})


def measured_step_s(row: Row) -> float | None:
    """Seconds, or None for a row whose figures give no step time."""
    try:
        return _step_s(row)
    except RowError:
        return None


def _step_s(row: Row) -> float | None:
    given = row.number("measured_step_s")
    if given:
        return given
    gpus, batch, length = row.whole("num_gpus"), row.whole("global_batch_sequences"), row.whole("seq_len")
    tokens = row.number("measured_tokens_per_s_per_gpu")
    if tokens:
        return batch * length / (tokens * gpus)
    rate = row.number("measured_tflops_per_gpu")
    flops = _source_flops(row, batch, length)
    return flops / (rate * TERA * gpus) if rate and flops else None


def _source_flops(row: Row, batch: int, length: int) -> float | None:
    hidden, layers, vocab = row.whole("hidden"), row.whole("layers"), row.whole_or("vocab", 0)
    attention = length / (6.0 * hidden)
    if row.dataset == "megatron_sc21":
        head = vocab / (16.0 * layers * hidden)
        return 96.0 * batch * length * layers * hidden**2 * (1.0 + attention + head)
    if row.dataset in WITHOUT_RECOMPUTE:
        head = vocab / (12.0 * layers * hidden)
        return 72.0 * batch * length * layers * hidden**2 * (1.0 + attention + head)
    if row.dataset == "moe_folding":
        return _expert_flops(row, batch, length)
    return None


def _expert_flops(row: Row, batch: int, length: int) -> float:
    """Six FLOPs for each parameter a token passes through, and full attention (Megatron-Core 2025)."""
    hidden, layers = row.whole("hidden"), row.whole("layers")
    heads, kv_heads, width = row.whole("heads"), row.whole("kv_heads"), row.whole("head_dim")
    attention = 2 * hidden * width * (heads + kv_heads)
    matrices = 3 if row.text("gated_mlp") == "1" else 2
    passed = row.whole_or("topk", 0) + row.whole_or("shared_experts", 0)
    experts = passed * matrices * hidden * row.whole_or("moe_ffn_hidden", 0)
    dense = {"first3dense": 3, "first1dense": 1}.get(row.text("moe_layer_freq"), 0)
    parameters = layers * attention + (layers - dense) * experts
    parameters += dense * matrices * hidden * row.whole_or("ffn_hidden", 0)
    per_token = 6 * (parameters + row.whole("vocab") * hidden) + 12 * layers * heads * width * length
    return float(batch * length * per_token)
