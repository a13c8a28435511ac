"""Module times of an AIOB file as samples, for the model and degrees that the caller names.

An AIOB file states neither model nor GPU nor degrees; workload.aicb.aiob reads its text. Its sections are
whole modules timed on their own (forward only, avg over the iterations), which ``launched`` of each sample
records. Sections that correspond to no operation (param_time, DeepSeek's low-rank parts,
the pieces of unfused attention) are returned by name and not imported.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from profdb.cases import AttentionCase, Case, GemmCase, MemoryBoundCase
from profdb.sample import Sample
from spec.errors import ConfigError
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import BlockSpec, ModelSpec
from spec.units import US

DTYPE = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTime:
    """One section, microseconds."""

    avg_us: float
    min_us: float
    max_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AiobRun:
    """The run of the file: the model, its tensor-parallel degree, sequences per micro-batch and their length."""

    model: ModelSpec
    tp: int
    micro_batch: int
    seq_len: int


def module_samples(sections: Mapping[str, ModuleTime], run: AiobRun) -> tuple[list[Sample], tuple[str, ...]]:
    """Returns (samples, names of the sections that were not imported). Raises ConfigError when the degrees do not fit
    the model or the model is no dense transformer."""
    cases = module_cases(run)
    samples = [
        Sample(
            case=cases[name],
            trials_s=(time.avg_us * US,),
            launched={"source": "aiob", "module": name, "min_s": time.min_us * US, "max_s": time.max_us * US},
        )
        for name, time in sections.items()
        if name in cases
    ]
    return samples, tuple(name for name in sections if name not in cases)


def module_cases(run: AiobRun) -> dict[str, Case]:
    """Returns the operation of each section. Raises ConfigError as module_samples."""
    block: BlockSpec = run.model.blocks[0].block
    attention, mlp = block.mixer, block.mlp
    if not isinstance(attention, AttentionSpec) or len(run.model.main_blocks) > 1:
        names = ", ".join(sorted({mixer.name for mixer in run.model.mixers}))
        raise ConfigError(
            where="AIOB import", key="model", value=run.model.name, allowed=f"equal layers of attention, not {names}"
        )
    for key, value in (("tp", run.tp), ("micro_batch", run.micro_batch), ("seq_len", run.seq_len)):
        if value < 1:
            raise ConfigError(where="AIOB import", key=key, value=value, allowed="1 or more")
    if mlp is None or attention.kind is AttentionKind.MLA:
        raise ConfigError(where="AIOB import", key="model", value=run.model.name, allowed="a dense model without MLA")
    if attention.num_heads % run.tp or mlp.ffn_hidden % run.tp:
        raise ConfigError(where="AIOB import", key="tp", value=run.tp, allowed="a divisor of the heads and of the ffn")
    tokens, hidden = run.micro_batch * run.seq_len, run.model.hidden
    heads, kv_heads = attention.num_heads // run.tp, max(attention.num_kv_heads // run.tp, 1)
    # Widths of the sharded projections: of query, key and value together, and of the attention's output.
    queries, values = heads * attention.qk_dim, heads * attention.v_dim
    fused = queries + kv_heads * (attention.qk_dim + attention.v_dim)
    ffn = mlp.ffn_hidden // run.tp
    # One norm before attention, one before the feed-forward layer and one after the last layer, all of one shape.
    norm = MemoryBoundCase(kernel=block.norm.kernel, direction="forward", rows=tokens, width=hidden, dtype=DTYPE)
    return {
        "Emb": MemoryBoundCase(kernel="embedding", direction="forward", rows=tokens, width=hidden, dtype=DTYPE),
        "layernorm": norm,
        "layernorm2": norm,
        "layernorm_post": norm,
        "atten_qkv": GemmCase(m=tokens, k=hidden, n=fused),
        "atten_flash": AttentionCase(
            batch=run.micro_batch,
            q_len=run.seq_len,
            kv_len=run.seq_len,
            heads=heads,
            kv_heads=kv_heads,
            qk_dim=attention.qk_dim,
            v_dim=attention.v_dim,
        ),
        "atten_linear": GemmCase(m=tokens, k=values, n=hidden),
        "mlp_linear_1": GemmCase(m=tokens, k=hidden, n=(2 if mlp.gated else 1) * ffn),
        "mlp_gelu": MemoryBoundCase(
            kernel="swiglu" if mlp.gated else "gelu", direction="forward", rows=tokens, width=ffn, dtype=DTYPE
        ),
        "mlp_linear_2": GemmCase(m=tokens, k=ffn, n=hidden),
        "logit_time": GemmCase(m=tokens, k=hidden, n=-(-run.model.vocab // run.tp)),
    }
