"""Softmax attention: multi-head, grouped-query and multi-head latent attention, full or windowed, and rotary embeddings."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Self

from spec.errors import ExportError
from spec.mixers.mixer import LeafModule, Mixer, linear_module, norm_module, parameter_module
from spec.section import Section


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Extension of the context beyond that of pre-training.

    ``kind`` is "linear", "dynamic", "llama3", "yarn" or another name as its config writes it; ``factor`` how
    many times the context grows; ``original_positions`` the context before it (0: unknown). ``slow`` and
    ``fast`` are llama3's low_freq_factor and high_freq_factor, or yarn's beta_slow and beta_fast;
    ``mscale`` and ``mscale_all_dim`` yarn's temperature as DeepSeek-V2 sets it (None: absent).
    """

    kind: str
    factor: float = 1.0
    original_positions: int = 0
    slow: float | None = None
    fast: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """``base`` of the rotation's frequencies, and the ``share`` of a head's channels that is rotated."""

    base: float = 10_000.0
    share: float = 1.0
    scaling: RopeScaling | None = None


class QkNormWeights(StrEnum):
    """Weights of the norms of queries and of keys: one vector for all heads (Qwen3), with a bias beside it (Persimmon),
    one for the channels of all heads (OLMo 2, over all of them at once; StableLM 2, head by head), that and a bias
    (Chameleon), or nothing (Llama 4)."""

    HEAD = "head"
    HEAD_WITH_BIAS = "head_with_bias"
    ALL_HEADS = "all_heads"
    ALL_HEADS_WITH_BIAS = "all_heads_with_bias"
    NONE = "none"


OF_ALL_HEADS = (QkNormWeights.ALL_HEADS, QkNormWeights.ALL_HEADS_WITH_BIAS)
WITH_BIAS = (QkNormWeights.HEAD_WITH_BIAS, QkNormWeights.ALL_HEADS_WITH_BIAS)


class AttentionKind(StrEnum):
    """Multi-head and grouped-query attention share a formula; MLA has its own projections."""

    MHA = "mha"
    GQA = "gqa"
    MLA = "mla"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """One attention layer.

    ``qk_dim`` and ``v_dim`` are per head. For MLA (DeepSeek-V2, arXiv 2405.04434 sec. 2.1) ``qk_dim`` = nope
    + rope, ``rope_dim`` is the part shared by all heads, ``q_lora_rank`` 0 means that queries are projected
    directly. ``output_gate``: the query projection also gives a gate for each channel of the heads' outputs,
    which their sigmoid multiplies (Qwen3-Next), or with ``head_gate`` one for each head (Step 3.5). ``softcap``: scores are cap * tanh(scores / cap) (Gemma 2).
    ``alibi``: a slope times the distance is added to the scores (arXiv 2108.12409). ``chunk``: tokens attend
    within chunks of this many tokens, as if these were documents (Llama 4). ``index_topk``: tokens attend to this many
    others, which ``index_heads`` heads of ``index_dim`` channels select (DeepSeek-V3.2, arXiv 2512.02556 sec. 2.1);
    without heads a layer takes the selection of the one before.

    Of few models: ``gate_bias``, a number for each head that its gates add (Beam); ``value_norm``, a norm without weights on
    each head's values, and ``keys_as_values``, whose projection is that of the keys (Gemma 4); ``inner_norm``, as many vectors of a norm over
    all heads' outputs before the output matrix (BitNet, arXiv 2504.12285 sec. 2); ``rope_key_norm``, a norm of the rotated channels that all heads of MLA share (dots3);
    ``differential``, half of the heads' outputs less a learned share of the other half's, each over values twice as wide, in a norm
    without weights (arXiv 2410.05258 sec. 2.1); ``latent_gates``, gates that come with the queries from their latent, normed and not (A.X K2);
    ``position_scale``, a scale and a bias a head, of the logarithm of a query's position, that multiply queries (Mistral Large 4).
    """

    name: ClassVar[str] = "attention"

    kind: AttentionKind
    num_heads: int
    num_kv_heads: int
    qk_dim: int
    v_dim: int
    rope_dim: int = 0
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    window: int | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    qk_norm_weights: QkNormWeights = QkNormWeights.HEAD
    softcap: bool = False
    alibi: bool = False
    chunk: int | None = None
    sinks: bool = False
    output_gate: bool = False
    head_gate: bool = False
    gate_bias: bool = False
    value_norm: bool = False
    keys_as_values: bool = False
    inner_norm: int = 0
    rope_key_norm: bool = False
    differential: bool = False
    latent_gates: bool = False
    position_scale: bool = False
    index_topk: int = 0
    index_heads: int = 0
    index_dim: int = 0

    @classmethod
    def read(cls, section: Section, hidden: int) -> Self:
        """``qk_dim`` defaults to hidden / num_heads and ``v_dim`` to ``qk_dim``; a ``kv_lora_rank`` makes
        it MLA, where ``qk_dim`` and ``v_dim`` must be written."""
        heads = section.integer("num_heads")
        kv_heads = section.integer("num_kv_heads", heads)
        if heads % kv_heads:
            section.fail("num_kv_heads", f"a divisor of num_heads = {heads}")
        latent = section.integer("kv_lora_rank", 0, minimum=0)
        if not section.has("qk_dim") and (latent or hidden % heads):
            section.fail("qk_dim", f"required: hidden = {hidden} and num_heads = {heads} do not fix it")
        qk_dim = section.integer("qk_dim", hidden // heads)
        plain = AttentionKind.MHA if kv_heads == heads else AttentionKind.GQA
        attention = section.record(
            cls,
            kind=AttentionKind.MLA if latent else plain,
            num_heads=heads,
            num_kv_heads=kv_heads,
            qk_dim=qk_dim,
            v_dim=section.integer("v_dim") if latent else section.integer("v_dim", qk_dim),
        )
        if attention.rope_dim >= qk_dim:
            section.fail("rope_dim", f"less than qk_dim = {qk_dim}")
        if attention.latent_gates and not (attention.output_gate and attention.q_lora_rank):
            section.fail("latent_gates", "false, or output_gate with a q_lora_rank")
        if attention.index_topk and not latent:
            section.fail("index_topk", "0: without latents of keys no indexer is priced")
        heads, dim = attention.index_heads, attention.index_dim
        if bool(heads) != bool(dim) or (heads and not attention.index_topk):
            section.fail("index_heads", "heads of index_dim channels that select index_topk tokens")
        section.close()
        return attention

    @property
    def qk_norm_parameters(self) -> int:
        """Weights of the norms of queries and keys; 0 without."""
        if not self.qk_norm or self.qk_norm_weights is QkNormWeights.NONE:
            return 0
        vectors = 2 if self.qk_norm_weights in WITH_BIAS else 1
        heads = self.num_heads + self.num_kv_heads if self.qk_norm_weights in OF_ALL_HEADS else 2
        return vectors * self.qk_dim * heads

    @property
    def gates(self) -> int:
        """Gates of a token's outputs; 0 without."""
        return self.num_heads * (self.v_dim if self.output_gate else int(self.head_gate))

    @property
    def cut_heads(self) -> tuple[int, ...]:
        """Query heads."""
        return (self.num_heads,)

    @property
    def repeatable_heads(self) -> tuple[int, ...]:
        """Key and value heads."""
        return (self.num_kv_heads,)

    def modules(self, hidden: int, prefix: str) -> Iterator[LeafModule]:
        """Projections, the norms inside, sinks and the output."""
        value = self.num_heads * self.v_dim
        if self.kind is AttentionKind.MLA:
            yield from self._latent_modules(hidden, prefix)
        else:
            kv_heads, bias = self.num_kv_heads, self.qkv_bias
            yield linear_module(f"{prefix}.q", (self.num_heads * self.qk_dim + self.gates, hidden), bias=bias)
            yield linear_module(f"{prefix}.k", (kv_heads * self.qk_dim, hidden), bias=bias)
            if not self.keys_as_values:
                yield linear_module(f"{prefix}.v", (kv_heads * self.v_dim, hidden), bias=bias)
            if self.qk_norm and self.qk_norm_weights is not QkNormWeights.NONE:
                every, with_bias = self.qk_norm_weights in OF_ALL_HEADS, self.qk_norm_weights in WITH_BIAS
                yield norm_module(f"{prefix}.q_norm", self.qk_dim * (self.num_heads if every else 1), bias=with_bias)
                yield norm_module(f"{prefix}.k_norm", self.qk_dim * (kv_heads if every else 1), bias=with_bias)
        if self.position_scale:
            yield parameter_module(f"{prefix}.position_scale", (2, self.num_heads + self.index_heads))
        if self.sinks:
            yield parameter_module(f"{prefix}.sinks", (self.num_heads,))
        if self.differential:
            yield parameter_module(f"{prefix}.lambdas", (4, self.qk_dim))
        if self.gate_bias:
            yield parameter_module(f"{prefix}.gate_bias", (self.num_heads,))
        if self.inner_norm:
            yield norm_module(f"{prefix}.inner_norm", value, bias=self.inner_norm > 1)
        yield linear_module(f"{prefix}.out", (hidden, value), bias=self.out_bias)

    def _latent_modules(self, hidden: int, prefix: str) -> Iterator[LeafModule]:
        """MLA's projections (arXiv 2405.04434 sec. 2.1.2, eqs. 9-19)."""
        q_width = self.num_heads * self.qk_dim
        if self.q_lora_rank:
            yield linear_module(f"{prefix}.q_down", (self.q_lora_rank, hidden))
            yield norm_module(f"{prefix}.q_norm", self.q_lora_rank)
            gates = self.gates * self.latent_gates
            yield linear_module(f"{prefix}.q_up", (q_width + gates, self.q_lora_rank * (1 + self.latent_gates)))
        else:
            yield linear_module(f"{prefix}.q", (q_width, hidden))
        rank = self.kv_lora_rank
        yield linear_module(f"{prefix}.kv_down", (rank + self.rope_dim, hidden))
        yield norm_module(f"{prefix}.kv_norm", rank)
        width = self.num_heads * (self.qk_dim - self.rope_dim + self.v_dim)
        yield linear_module(f"{prefix}.kv_up", (width, rank))
        if self.rope_key_norm:
            yield norm_module(f"{prefix}.rope_key_norm", self.rope_dim)
        if self.gates and not self.latent_gates:
            yield linear_module(f"{prefix}.gate", (self.gates, hidden))
        if self.index_heads:
            if not self.q_lora_rank:
                yield norm_module(f"{prefix}.index_q_norm", hidden, bias=True)
            width = self.index_heads * self.index_dim
            yield linear_module(f"{prefix}.index_q", (width, self.q_lora_rank or hidden))
            yield linear_module(f"{prefix}.index_k", (self.index_dim, hidden))
            yield norm_module(f"{prefix}.index_norm", self.index_dim, bias=True)
            yield linear_module(f"{prefix}.index_weights", (self.index_heads, hidden))


def attention_of(mixer: Mixer | None, reader: str) -> AttentionSpec:
    """``mixer``, for a ``reader`` that is written for attention. Raises ExportError naming any other kind."""
    if not isinstance(mixer, AttentionSpec):
        kind = "a feed-forward network alone" if mixer is None else mixer.name
        raise ExportError(f"{reader}: written for layers of attention, not of {kind}")
    return mixer
