"""The identity of an operation: its module and its role there. A label is for people; nothing looks into it."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple


class Module(StrEnum):
    """The part of a model, or of its step, that an operation belongs to.

    MIXER: what mixes tokens other than attention. MLP: a dense feed-forward network, and the norm
    and the residual add around any second half of a block. LAYER: a whole layer (its sharded parameters, what
    it offloads). MTP: what a multi-token-prediction block has beyond a block and a head. OTHER: of none, such
    as a message between stages or a custom model's own operation.
    """

    EMBEDDING = "embedding"
    VISION = "vision"
    ATTENTION = "attention"
    MAMBA2 = "mamba2"
    GATED_DELTA = "gated_delta"
    LIGHTNING = "lightning"
    RG_LRU = "rg_lru"
    SHORT_CONVOLUTION = "short_convolution"
    MIXER = "mixer"
    MLP = "mlp"
    MOE = "moe"
    SHARED_EXPERTS = "shared"
    LAYER = "layer"
    MTP = "mtp"
    HEAD = "head"
    LOSS = "loss"
    STEP = "step"
    OTHER = "other"


class Role(StrEnum):
    """The part that an operation plays in its module."""

    # products, each with the casts, gathers and accumulations that serve it
    QKV = "qkv"
    Q_DOWN = "q_down"
    Q_UP = "q_up"
    KV_DOWN = "kv_down"
    KV_UP = "kv_up"
    COMPRESS = "compress"
    OUT_DOWN = "out_down"
    INDEX_Q = "index_q"
    INDEX_K = "index_k"
    OUT = "out"
    GATE = "gate"
    UP = "up"
    DOWN = "down"
    ROUTER = "router"
    PATCHES = "patches"
    SHARED_GATE = "shared_gate"
    LATENT_DOWN = "latent_down"
    LATENT_UP = "latent_up"
    LOGITS = "logits"
    PROJECTION = "project"
    ADAPTER_DOWN = "adapter_down"
    ADAPTER_UP = "adapter_up"
    # attention: one kernel, or its later steps over a ring; unfused the kernels around two products
    CORE = "core"
    RING = "ring"
    INDEX_SCORES = "index_scores"
    INDEX_LOSS = "index_loss"
    SOFTMAX = "softmax"
    DROPOUT = "dropout"
    JOIN_HEADS = "join_heads"
    # other kernels
    CONVOLUTION = "convolution"
    TABLE = "table"
    NORM = "norm"
    STATISTICS = "statistics"
    OUTPUT_GATE = "output_gate"
    ROTARY = "rotary"
    ACTIVATION = "activation"
    RESIDUAL = "residual"
    TOP_K = "topk"
    PERMUTE = "permute"
    UNPERMUTE = "unpermute"
    SORT = "sort"
    UNSORT = "unsort"
    CLAMP = "clamp"
    BIAS = "bias"
    CROSS_ENTROPY = "cross_entropy"
    CAST = "cast"
    COPY = "copy"
    PAD = "pad"
    ACCUMULATE = "accumulate"
    ZERO = "zero"
    # messages of activations
    MESSAGE = "message"
    ENTER = "enter"
    LEAVE = "leave"
    REGATHER = "regather"
    ASSEMBLE = "assemble"
    GATHER = "gather"
    REDUCE = "reduce"
    HEAD_EXCHANGE = "head_exchange"
    RING_P2P = "ring_p2p"
    DISPATCH = "dispatch"
    COMBINE = "combine"
    EXPERT_GATHER = "expert_gather"
    EXPERT_SCATTER = "expert_scatter"
    # parameters and gradients
    WEIGHT_GATHER = "weight_gather"
    PARAMETER_GATHER = "parameter_gather"
    GRADIENT_REDUCTION = "gradient_reduction"
    GRADIENT_PASS = "gradient_pass"
    PARAMETER_PASS = "parameter_pass"
    SLICES = "slices"
    UPDATE = "update"
    # to the host and back
    ACTIVATIONS_TO_HOST = "activations_to_host"
    ACTIVATIONS_FROM_HOST = "activations_from_host"
    GRADIENTS_TO_HOST = "gradients_to_host"
    PARAMETERS_FROM_HOST = "parameters_from_host"
    HOST_UPDATE = "host_update"


class OpKey(NamedTuple):
    """The key of an operation of a layer: its role in its module, and the role of the one that it serves."""

    module: Module
    role: Role
    serves: Role | None = None

    @property
    def words(self) -> dict[str, Any]:
        """Returns the fields of its Identity by name, of which an operation is made."""
        return {"module": self.module, "role": self.role, "serves": self.serves}

    def named(self, name: str) -> "Identity":
        """Returns the identity with the label that people read."""
        return Identity(module=self.module, role=self.role, serves=self.serves, name=name)

    def served_by(self, role: Role, name: str = "") -> "Identity":
        """Returns the identity of an operation in ``role`` that serves this one."""
        return Identity(module=self.module, role=role, serves=self.role, name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """``role`` in ``module``; ``serves`` is the role of the operation of that module which this one helps
    (a product's casts, accumulation and collectives), None for one that stands for itself. ``name`` is the
    label that people read, by default made of these.
    """

    module: Module
    role: Role
    serves: Role | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            words = (self.module, self.serves, self.role)
            object.__setattr__(self, "name", ".".join(word.value for word in words if word))

    @property
    def key(self) -> OpKey:
        """Returns the identity without its label."""
        return OpKey(self.module, self.role, self.serves)

    @property
    def served(self) -> OpKey:
        """Returns the key of the operation that it serves, or its own."""
        return OpKey(self.module, self.serves or self.role)

    @property
    def words(self) -> dict[str, Any]:
        """Returns its fields by name, of which an operation is made."""
        return {"module": self.module, "role": self.role, "serves": self.serves, "name": self.name}

    def is_within(self, parts: Collection[Module | OpKey]) -> bool:
        """Returns whether it belongs to one of ``parts``: a whole module, or an operation with all that serves it."""
        return self.module in parts or self.served in parts
