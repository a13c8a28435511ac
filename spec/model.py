"""What a language model is: runs of identical blocks between an embedding and a head.

Sizes are elements, never bytes. A model that mixes layers (dense first then experts, sliding and
full attention, a multi-token-prediction block) is a tuple of runs, not a set of flags.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self

from spec.mixers.attention import RopeSpec
from spec.mixers.mixer import Mixer


class NormKind(StrEnum):
    """RMSNorm has one weight per channel, LayerNorm a weight and a bias, Cohere's LayerNorm the weight alone, OLMo's and
    nanochat's norms nothing; each with the ``kernel`` of ops.memory_bound that runs it, and its ``vectors`` of parameters."""

    kernel: str
    vectors: int

    def __new__(cls, value: str, kernel: str = "", vectors: int = 1) -> Self:
        """Returns the row of the table below as a member."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.kernel, member.vectors = kernel, vectors
        return member

    RMS = "rmsnorm", "rmsnorm", 1
    LAYER = "layernorm", "layernorm", 2
    LAYER_WITHOUT_BIAS = "layernorm_without_bias", "layernorm", 1
    RMS_WITHOUT_WEIGHTS = "rmsnorm_without_weights", "rmsnorm", 0
    LAYER_WITHOUT_WEIGHTS = "layernorm_without_weights", "layernorm", 0


class NormPlace(StrEnum):
    """Places of a block's norms: before each half, as most do; after each half, on what is added to the residual
    stream (OLMo 2, arXiv 2501.00656 sec. 3.2); around each half (Gemma 2, arXiv 2408.00118 sec. 2); or once before
    both halves, which read the same (GPT-J's parallel form with one norm: Falcon, Cohere); or behind each half's residual
    add, so that the stream itself is normed (GPT-1, as arXiv 1706.03762 sec. 3.1).

    ``leads``: a norm makes what the first half reads; ``leads_second``: the second half has one of its own before it;
    ``follows``: one stands between each half and its residual add; ``closes``: one behind that.
    """

    leads: bool
    leads_second: bool
    follows: bool
    closes: bool

    def __new__(
        cls, value: str, leads: bool = True, leads_second: bool = True, follows: bool = False, closes: bool = False
    ) -> Self:
        """Returns the row of the table below as a member."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.leads, member.leads_second = leads, leads_second
        member.follows, member.closes = follows, closes
        return member

    BEFORE = "before", True, True, False, False
    AFTER = "after", False, False, True, False
    AROUND = "around", True, True, True, False
    SHARED = "shared", True, False, False, False
    BEHIND = "behind", False, False, False, True


class PositionKind(StrEnum):
    """Learned positions own parameters; rotary and none do not."""

    ROTARY = "rotary"
    LEARNED = "learned"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpSpec:
    """A dense feed-forward layer: three matrices when gated, else two.

    ``activation``, here and of experts, is "silu", "gelu", "gelu_tanh", "relu", "squared_relu" or another
    name as its config writes it; all cost the same. ``inner_norm`` vectors of a norm before the last matrix (BitNet: 1).
    """

    ffn_hidden: int
    gated: bool
    bias: bool = False
    activation: str = "silu"
    inner_norm: int = 0


ACTIVATION_PARAMETERS = {"xielu": 2}
"""Learned numbers of an activation, in each layer (arXiv 2411.13010)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec:
    """Routed experts, and experts every token passes through.

    ``shared_ffn_hidden`` is the total width of the shared experts (0: none). ``router_bias`` is
    DeepSeek-V3's per-expert score correction (arXiv 2412.19437 sec. 2.1.2). ``capacity_factor``
    None means dropless. ``clamped`` limits gate and up before the activation (gpt-oss, swiglu_limit).
    A token's experts all lie in ``route_chosen_groups`` of ``route_groups`` (DeepSeek's n_group, topk_group).
    With ``latent_hidden`` one product brings tokens to that many channels before they are dispatched, routed experts
    work there, and another brings their sum back (LatentMoE, arXiv 2512.20856; Nemotron-3 Super's moe_latent_size).
    ``output_norm``: a norm follows the sum of all experts (A.X K1).

    Facts without a price: a token's weights are the ``score`` of its experts ("softmax", "sigmoid" or "sqrtsoftplus"), divided by
    their sum where ``normalized``, times ``route_scale`` (norm_topk_prob, routed_scaling_factor).
    """

    num_experts: int
    topk: int
    expert_ffn_hidden: int
    gated: bool = True
    bias: bool = False
    shared_ffn_hidden: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    clamped: bool = False
    latent_hidden: int = 0
    output_norm: bool = False
    route_groups: int = 1
    route_chosen_groups: int = 1
    capacity_factor: float | None = None
    activation: str = "silu"
    score: str = "softmax"
    normalized: bool = True
    route_scale: float = 1.0

    def routed_hidden(self, hidden: int) -> int:
        """Channels in which routed experts read and give tokens of a model of ``hidden``."""
        return self.latent_hidden or hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSpec:
    """One block: what mixes its tokens, followed by a dense MLP or by experts. Either half may be missing, not
    both: Mamba's layers only mix, and hybrids such as Nemotron-H count a feed-forward network as a layer of its own.

    ``condition_rank`` channels stand between one vector a sample and what scales the second half's input channel by channel
    (Voxtral Realtime's delay): two matrices, of which a step computes one row. The norms before the halves are gated channel by channel through ``first_gate_rank`` and
    ``second_gate_rank`` channels (A.X K2).

    ``mtp`` marks a multi-token-prediction block: two more norms, a 2h -> h projection, and its own pass
    through the shared head (arXiv 2412.19437 sec. 2.2). ``high_precision``: its products
    run in the format of activations, whatever lower one a job requests.
    """

    mixer: Mixer | None
    mlp: MlpSpec | None = None
    moe: MoeSpec | None = None
    norm: NormKind = NormKind.RMS
    norm_place: NormPlace = NormPlace.BEFORE
    parallel_residual: bool = False
    mtp: bool = False
    condition_rank: int = 0
    first_gate_rank: int = 0
    second_gate_rank: int = 0
    high_precision: bool = False

    def __post_init__(self) -> None:
        if self.mlp is not None and self.moe is not None:
            raise ValueError("a block has a dense MLP or experts, not both")
        if self.mixer is None and not self.feeds_forward:
            raise ValueError("a block mixes tokens, or feeds forward, or does both")
        if self.norm_place is NormPlace.SHARED and (self.mixer is None or not self.feeds_forward):
            raise ValueError("a norm is shared by two halves")

    @property
    def feeds_forward(self) -> bool:
        """True where it has a second half: norm, MLP or experts, residual add."""
        return self.mlp is not None or self.moe is not None

    @property
    def num_halves(self) -> int:
        """1 or 2."""
        return (self.mixer is not None) + self.feeds_forward

    @property
    def num_norms(self) -> int:
        """Norms over the hidden size, as it has halves and they have norms before and after."""
        place = self.norm_place
        first = (self.mixer is not None) * (place.leads + place.follows + place.closes)
        return first + self.feeds_forward * (place.leads_second + place.follows + place.closes)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRun:
    """``count`` consecutive blocks of one kind."""

    block: BlockSpec
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSpec:
    """A tower that makes tokens of images: a product of ``patch_channels`` numbers of each patch, perhaps ``positions`` that are
    learned, blocks of ``hidden`` channels in which a patch attends to its image (or ``chunk`` of it), and mergers of ``merged`` patches
    into a token: a norm and two products with biases. ``deepstack`` of them give what the decoder's first layers add.
    """

    hidden: int
    blocks: tuple[BlockRun, ...]
    norm: NormKind
    patch_channels: int
    merged: int
    patch_bias: bool = False
    positions: int = 0
    deepstack: int = 0


RARE = (
    "gate_bias",
    "value_norm",
    "keys_as_values",
    "inner_norm",
    "rope_key_norm",
    "output_norm",
    "channel_decay",
    "condition_rank",
    "differential",
    "latent_gates",
    "first_gate_rank",
    "second_gate_rank",
    "position_scale",
)
"""Fields of mixers, MLPs and experts that belong to single families."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A whole model. ``vocab`` is raw; frameworks pad it to a multiple of
    ``vocab_pad_multiple`` (times tp, by the framework's rule). ``logit_softcap``: logits are cap * tanh(logits / cap)
    (Gemma 2, arXiv 2408.00118 sec. 2). ``extra_embedding_rows``: tokens that are read but never written, such as those of
    sound, which the head does not have. With ``residual_streams`` above 1 every half reads a mix of that many streams and adds its output to each
    by weights of its own, and the head reads a mix (hyper-connections, arXiv 2409.19606 sec. 2; HunYuan 4);
    where they are ``mixed_streams`` a half mixes them with one another too (DeepSeek-V4). ``rope_scales`` are learned numbers of the rotation's frequencies.
    ``vision`` runs before the embedding where a job has images.

    Facts without a price, carried to launches: ``rope`` and ``norm_epsilon``, None where the config does not
    say, and the ``model_type`` of its Hugging Face config, "" where it has none. ``assumptions`` are what its reader took for granted, each a line to show.
    """

    name: str
    hidden: int
    vocab: int
    blocks: tuple[BlockRun, ...]
    source: str
    vocab_pad_multiple: int = 1
    tied_embeddings: bool = False
    position: PositionKind = PositionKind.ROTARY
    max_positions: int = 0
    norm: NormKind = NormKind.RMS
    head_bias: bool = False
    embedding_norm: bool = False
    extra_embedding_rows: int = 0
    final_norm: bool = True
    residual_streams: int = 1
    mixed_streams: bool = False
    rope_scales: int = 0
    vision: VisionSpec | None = None
    logit_softcap: bool = False
    rope: RopeSpec | None = None
    norm_epsilon: float | None = None
    model_type: str = field(default="", compare=False)
    assumptions: tuple[str, ...] = ()

    @property
    def num_layers(self) -> int:
        """Decoder layers; multi-token-prediction blocks are not counted."""
        return sum(run.count for run in self.blocks if not run.block.mtp)

    def with_high_precision_ends(self, first: int, last: int) -> "ModelSpec":
        """Itself with the ``first`` and ``last`` decoder layers in high precision; raises ValueError where it has fewer
        than both.
        """
        if not first and not last:
            return self
        if min(first, last) < 0 or first + last > self.num_layers:
            raise ValueError(f"{first} first and {last} last of {self.num_layers} layers")
        runs: list[BlockRun] = []
        before = 0
        for run in self.main_blocks:
            after = before + run.count
            head = min(max(first - before, 0), run.count)
            tail = min(max(after - (self.num_layers - last), 0), run.count)
            plain, precise = run.block, replace(run.block, high_precision=True)
            parts = ((precise, head), (plain, run.count - head - tail), (precise, tail))
            runs += [BlockRun(block=block, count=count) for block, count in parts if count]
            before = after
        return replace(self, blocks=(*runs, *(run for run in self.blocks if run.block.mtp)))

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """The mixers of its runs of blocks, one for each that mixes tokens."""
        return tuple(run.block.mixer for run in self.blocks if run.block.mixer is not None)

    @property
    def main_blocks(self) -> tuple[BlockRun, ...]:
        """The runs of the decoder, without multi-token-prediction blocks."""
        return tuple(run for run in self.blocks if not run.block.mtp)

    @property
    def rare_parts(self) -> tuple[str, ...]:
        """What no framework's settings have a word for, by the names of its fields; exporters that write a model refuse it."""
        parts: list[object] = [part for run in self.blocks for part in (run.block.mixer, run.block.mlp, run.block.moe)]
        parts += [run.block for run in self.blocks]
        # Those that differ from their defaults: Mamba-2's inner norm is the rule.
        rare = {
            name
            for part in parts
            for name, each in getattr(part, "__dataclass_fields__", {}).items()
            if getattr(part, name) != each.default
        }
        names = [name for name in RARE if name in rare]
        names += ["rope_scales"] * (self.rope_scales > 0)
        names += ["extra_embedding_rows"] * (self.extra_embedding_rows > 0)
        return (*names, *["residual_streams"] * (self.residual_streams > 1))

    @property
    def cut_heads(self) -> tuple[int, ...]:
        """Numbers of heads of its layers that tp must divide, ascending."""
        seeing = () if self.vision is None else tuple(run.block.mixer for run in self.vision.blocks if run.block.mixer)
        return tuple(sorted({heads for mixer in (*self.mixers, *seeing) for heads in mixer.cut_heads}))

    @property
    def repeatable_heads(self) -> tuple[int, ...]:
        """Numbers of heads of its layers that tp must divide or, where a framework repeats them, be a
        multiple of; ascending."""
        return tuple(sorted({heads for mixer in self.mixers for heads in mixer.repeatable_heads}))
