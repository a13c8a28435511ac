"""What is to be trained and how the framework does it, apart from the parallel plan."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from spec.cluster.cluster import ArchitectureSpec
from spec.dtypes import dtype_bytes
from spec.frameworks import FrameworkPreset
from spec.model import MoeSpec
from spec.program.kinds import MOST_LAYERS, MOST_STEP_TOKENS, Number, Whole

Adapted = Literal["qkv", "q_k_v", "out", "up", "down"]
MAX_ADAPTER_RANK = 4096  # the hidden size of small models, many times the ranks in use
HighPrecision = Literal["bf16", "fp16", "fp32"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Number formats of one training job, by what is stored or computed."""

    compute: HighPrecision = "bf16"
    """Format of products without a lower one of their own: the router and, unless low_precision_head, the head."""
    parameter: HighPrecision = "bf16"
    """Format of the parameters that layers compute with."""
    parameter_gather: Literal["bf16", "fp16", "fp32", "fp8", "fp4"] = "bf16"
    """Format in which sharded parameters are gathered; a lower one than their own applies to the weights of
    low-precision products only."""
    gradient: HighPrecision = "bf16"
    """Format in which gradients are accumulated."""
    reduce: HighPrecision = "bf16"
    """Format in which gradients are reduced."""
    master: Literal["fp32", "bf16", "fp16", ""] = "fp32"
    """Format of the optimizer's own copy of parameters; "" for none."""
    moments: Literal["fp32", "bf16", "fp16", "fp8"] = "fp32"
    """Format of both moments of Adam, of the one moment of Muon."""
    activation: HighPrecision = "bf16"
    """Format of activations between layers and of what they save."""
    attention: Literal["bf16", "fp16", "fp32", "fp8"] = "bf16"
    """Format of the attention kernel's operands."""
    moe_dispatch: Literal["bf16", "fp16", "fp32", "fp8"] = "bf16"
    """Format in which tokens are sent to their experts."""
    linear: Literal["bf16", "fp16", "fp32", "fp8", "fp4"] = "bf16"
    """Format of the operands of linear layers' products."""
    scale_recipe: Literal["tensor", "row", "block", "mx", ""] = ""
    """Granularity of scales in low-precision products (GemmCase.scale_recipe)."""
    scaling: Literal["delayed", "current", "block", "dynamic", "row", ""] = ""
    """How the framework computes scales and casts (ops.low_precision.RECIPES); "" to derive it from the
    granularity. With scales of blocks "dynamic" casts again in the backward."""
    transposed_copies: Annotated[bool, "of the architecture"] = True
    """Products need both operands along k, so tensors are cast in both orders (JobSpec.on)."""
    casts_every_forward: bool = False
    """Weights are cast in every forward instead of once per step."""
    low_precision_parameters: bool = False
    """Weights of low-precision products are stored in that format only, next to the optimizer's copy
    (Transformer Engine's primary weights; Megatron-Core, --fp8-param-gather)."""
    router: Literal["fp32", ""] = ""
    """Format of the router's scores and of the products of their gradients (Megatron-Core, --moe-router-dtype);
    "" as compute."""
    low_precision_head: bool = False
    """The head uses the precision of linear layers (Megatron-Core, --fp8-output-proj)."""
    high_precision_first_layers: Annotated[int, Whole(least=0, most=MOST_LAYERS)] = 0
    """Layers at the start with products and attention in the activations' format (Megatron-Core,
    --first-last-layers-bf16 with --num-layers-at-start-in-bf16)."""
    high_precision_last_layers: Annotated[int, Whole(least=0, most=MOST_LAYERS)] = 0
    """The same at the end (--num-layers-at-end-in-bf16)."""
    frozen: Literal["nf4", "int4", ""] = ""
    """Storage format of frozen weights (QLoRA, GPTQ), converted to ``parameter`` for every product; "" as that.
    """

    @property
    def low_precision_linear(self) -> bool:
        """True where linear layers' products run in a lower precision than the activations'."""
        return dtype_bytes(self.linear) < dtype_bytes(self.activation)

    @property
    def low_precision_attention(self) -> bool:
        """True where the attention kernel reads a lower precision than the activations'."""
        return dtype_bytes(self.attention) < dtype_bytes(self.activation)

    @property
    def gathers_low_precision(self) -> bool:
        """True where weights travel in the format in which products read them, fewer bits than their own."""
        return self.low_precision_linear and dtype_bytes(self.parameter_gather) < dtype_bytes(self.parameter)

    @property
    def high_precision_gather(self) -> Literal["bf16", "fp16", "fp32", "fp8", "fp4"]:
        """Format in which all other parameters travel: what 16-bit products, norms and tables read."""
        return self.parameter if self.gathers_low_precision else self.parameter_gather

    @property
    def in_high_precision(self) -> "Precision":
        """Returns the formats of a layer in high precision."""
        high = self.activation
        return replace(
            self,
            linear=high,
            attention=high if self.low_precision_attention else self.attention,
            scale_recipe="",
            scaling="",
            casts_every_forward=False,
            low_precision_parameters=False,
            parameter_gather=self.high_precision_gather,
        )

    @property
    def master_bytes(self) -> float:
        """Bytes of an element of the optimizer's own copy, 0 where there is none."""
        return dtype_bytes(self.master) if self.master else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One training job. ``global_batch_tokens`` are tokens per optimizer step over all ranks."""

    world_size: int
    seq_len: int
    global_batch_tokens: int
    preset: FrameworkPreset
    precision: Precision = field(default_factory=Precision)
    flash_attention: bool = True
    """Attention is one kernel that saves no scores."""
    attention_kernel: Literal["flash", "flash2", "flash1", "flash_triton"] = "flash"
    """Its generation: the best for the GPU, FlashAttention-2 (arXiv 2307.08691) or -1 (arXiv 2205.14135), or the
    same in Triton."""
    unfused: frozenset[Literal["norm", "rotary", "softmax"]] = frozenset()
    """What runs as one elementwise kernel after another."""
    fp32_norms: bool = False
    """Norms read an fp32 copy of their input, made by a cast kernel."""
    dropout: bool = False
    """Dropout after embedding, attention and feed-forward layer, and in attention."""
    context_parallel: Literal["ring", "all_gather", "all_to_all"] = "ring"
    """Kind of context parallelism: ring (arXiv 2310.01889), all-gather of keys and values (arXiv 2407.21783 sec.
    3.3.2) or all-to-all (arXiv 2309.14509)."""
    moe_imbalance: Annotated[float, Number(least=1, most=1024)] = 1.0
    """Routed tokens of the busiest rank over the average, on top of what moe_expert_spread adds."""
    moe_expert_spread: Annotated[float, Number(least=0, most=32)] = 0.0
    """Standard deviation of tokens over a layer's experts, relative to their mean; 0 for an even load."""
    moe_routing: Literal["uniform", "in_turn"] = "uniform"
    """How tokens choose experts: uniformly at random, or in turn, as benchmarks force it (torchtitan,
    --debug.moe_force_load_balance; NeMo AutoModel, fake_balanced_gate)."""
    moe_capacity_factor: Annotated[float | None, Number(least=0.01, most=1024)] = None
    """Capacity of an expert over the even share; tokens beyond it are dropped. Default: the model's."""
    moe_dispatcher: Literal["all_to_all", "all_gather", "deepep", "hybridep"] = "all_to_all"
    """How tokens reach their experts: one copy per expert, all tokens to every rank, or one copy per rank or
    node (DeepEP, HybridEP)."""
    moe_router_fusion: bool = False
    """Top-k routing and the load-balancing loss are fused kernels (Megatron-LM, --moe-router-fusion)."""
    overlap_expert_a2a: bool = False
    """The experts' all-to-all of one micro-batch overlaps with the compute of another (Megatron-LM,
    --overlap-moe-expert-parallel-comm)."""
    delay_wgrad: bool = False
    """With that overlap, weight gradients are delayed: experts' until after their input gradients, all others to
    the end of the layer (Megatron-LM, --delay-wgrad-compute)."""
    overlap_shared_experts: bool = False
    """The experts' all-to-all overlaps with the shared experts' products (--moe-shared-expert-overlap)."""
    fp8_activation_inputs: Literal["", "experts", "all"] = ""
    """Gated activations that save their inputs in fp8: none, the experts' (DeepSeek-V3, arXiv 2412.19437 sec.
    3.3.3) or all (Megatron-Core, activation_func_fp8_input_store)."""
    cuda_graphs: frozenset[Literal["attn", "mamba", "mlp", "moe_router", "moe_preprocess", "full_iteration"]] = (
        frozenset()
    )
    """Scope of CUDA graphs (Megatron-Core's --cuda-graph-scope; ops.cpu_overhead.GRAPHED)."""
    nvlink_segment: Annotated[int, Whole(least=0, most=1024)] = 0
    """GPUs that the scheduler allocates in each NVLink domain of several nodes, such as 64 or 72 of 72 (Slurm's
    --segment, there in nodes); 0: the largest power of two that divides the world, else the most that do.
    """
    task: Literal["pretrain", "sft", "lora"] = "pretrain"
    """Whole sequences ("pretrain", continued training too), samples packed into sequences ("sft"), or adapters trained on
    such ("lora"). sft and lora set document_tokens to 512, lora adapter_rank to 32, where these are not given
    (solver.problem.request)."""
    document_tokens: Annotated[int, Whole(least=0, most=MOST_STEP_TOKENS)] = 0
    """Average tokens of a document if several are packed into a sequence, each attending to itself only (flash
    attention; a ring over cp > 1 attends to all); 0: a sequence is one document."""
    images: Annotated[int, Whole(least=0, most=MOST_STEP_TOKENS)] = 0
    """Images of a sequence, which the model's vision tower turns into tokens of it; 0 leaves the tower out."""
    image_patches: Annotated[int, Whole(least=0, most=MOST_STEP_TOKENS)] = 0
    """Patches of an image, such as (pixels / 14)^2."""
    expandable_segments: bool = False
    """The allocator's segments can grow, which avoids fragmentation
    (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)."""
    mfu: Literal["full", "causal", ""] = ""
    """Part of a causal attention matrix that MFU counts: "full", "causal" for half; "" for full unless attention is
    more than a third of the model's FLOPs."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """Optimizer of the layers' matrices: AdamW, or Muon (arXiv 2502.16982), which has one moment and needs whole
    matrices; everything else uses AdamW."""
    adapter_rank: Annotated[int, Whole(least=0, most=MAX_ADAPTER_RANK)] = 0
    """Rank of low-rank adapters on frozen weights (LoRA, arXiv 2106.09685); 0 trains every weight."""
    adapter_dropout: bool = False
    """Adapters apply dropout to their inputs; each saves the result and the mask (peft's lora_dropout)."""
    adapter_dtype: Literal["fp32", ""] = ""
    """Format to which adapters cast their inputs; "" for the activations' (peft's autocast_adapter_dtype makes
    it fp32)."""
    adapter_code: Literal["autocast", "fused", ""] = ""
    """How adapters run: "" as written, in their own format; under torch.autocast, products in the format of all
    others; or fused, as in Unsloth (ops.adapters)."""
    adapted: frozenset[Adapted] = frozenset({"qkv", "out"})
    """Products with an adapter: queries, keys and values together or one each, attention's output, into and out
    of the feed-forward layer."""

    @property
    def sends_tokens_once(self) -> bool:
        """True where a token travels once to each place that holds one of its experts."""
        return self.moe_dispatcher in ("deepep", "hybridep")

    @property
    def global_batch_sequences(self) -> int:
        """Sequences per optimizer step."""
        return self.global_batch_tokens // self.seq_len

    def capacity_factor(self, moe: MoeSpec) -> float | None:
        """The job's share of experts' capacity, else the model's; None where no token is dropped."""
        return moe.capacity_factor if self.moe_capacity_factor is None else self.moe_capacity_factor

    def on(self, architecture: ArchitectureSpec) -> "JobSpec":
        """The same job on GPUs of an architecture, whose fp8 products say in which orders tensors are cast."""
        fp8 = architecture.fp8
        if fp8 is None:
            return self
        return replace(self, precision=replace(self.precision, transposed_copies=fp8.transposed_copies))


def precision_of(preset: FrameworkPreset, compute: HighPrecision = "bf16") -> Precision:
    """Mixed precision as the framework trains with it: gradients accumulate and travel in fp32 where
    the preset says so, optimizer state in fp32. ``compute`` is the format of the matrix products."""
    choices = preset.data_parallel
    gradient: HighPrecision = "fp32" if choices.fp32_gradients else compute
    reductions: dict[str, HighPrecision] = {"gradient": gradient, "compute": compute, "fp32": "fp32"}
    return Precision(
        compute=compute,
        parameter=compute,
        parameter_gather=compute,
        gradient=gradient,
        reduce=reductions[choices.reduction],
        activation=compute,
        attention=compute,
        moe_dispatch=compute,
        linear=compute,
    )
