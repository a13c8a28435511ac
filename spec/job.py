"""What is to be trained and how the framework does it, apart from the parallel plan."""

from dataclasses import dataclass, field, replace

from spec.cluster.architecture import ArchitectureSpec
from spec.presets.preset import FrameworkPreset


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Number formats of one training job, by what is stored or computed.

    ``gradient`` is the format gradients accumulate in, ``reduce`` the one they travel in,
    ``parameter_gather`` the one sharded parameters travel in; ``master`` and ``moments`` are
    optimizer state (master "" = no separate copy). ``scale_recipe`` names the products' scales ("tensor",
    "block"), ``scaling`` how a framework finds them and casts (ops.quantize.RECIPES; "" by the scales).
    ``transposed_copies``: products want both operands along k, so tensors are cast in both orders (JobSpec.on);
    ``casts_every_forward``: weights are cast anew in every forward instead of once a step.
    """

    compute: str = "bf16"
    parameter: str = "bf16"
    parameter_gather: str = "bf16"
    gradient: str = "bf16"
    reduce: str = "bf16"
    master: str = "fp32"
    moments: str = "fp32"
    activation: str = "bf16"
    attention: str = "bf16"
    moe_dispatch: str = "bf16"
    linear: str = "bf16"
    scale_recipe: str = ""
    scaling: str = ""
    transposed_copies: bool = True
    casts_every_forward: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One training job. ``global_batch_tokens`` are tokens per optimizer step over all ranks.

    ``moe_imbalance`` is the busiest rank's share of routed tokens over the average one;
    ``attention_kernel`` is the flash kernel's generation: "flash" the best for the GPU, "flash2"
    (arXiv 2307.08691), "flash1" (arXiv 2205.14135) or "flash_triton" (the same written in Triton);
    ``unfused`` names what runs as one elementwise kernel after another: "norm", "rotary", "softmax".
    ``context_parallel`` is "ring" (arXiv 2310.01889) or "all_to_all" (arXiv 2309.14509).

    ``moe_dispatcher`` is "all_to_all" or "deduplicated" (DeepEP, HybridEP); ``overlap_expert_a2a`` runs the
    experts' exchange of one micro-batch beside another's compute (Megatron-LM,
    --overlap-moe-expert-parallel-comm), ``overlap_shared_experts`` beside the shared experts' products
    (--moe-shared-expert-overlap).
    ``cuda_graphs`` names what CUDA graphs replay (Megatron-Core's --cuda-graph-scope; ops.host_work.cuda_graphs.GRAPHED);
    ``wide_norms`` that norms read an fp32 copy of their input, made by a kernel of its own;
    ``blocking_launches`` that the host waits for every kernel (CUDA_LAUNCH_BLOCKING=1).
    """

    world_size: int
    seq_len: int
    global_batch_tokens: int
    preset: FrameworkPreset
    precision: Precision = field(default_factory=Precision)
    flash_attention: bool = True
    dropout: bool = False
    moe_imbalance: float = 1.0
    context_parallel: str = "ring"
    attention_kernel: str = "flash"
    unfused: frozenset[str] = frozenset()
    moe_dispatcher: str = "all_to_all"
    overlap_expert_a2a: bool = False
    overlap_shared_experts: bool = False
    cuda_graphs: frozenset[str] = frozenset()
    wide_norms: bool = False
    blocking_launches: bool = False

    @property
    def global_batch_sequences(self) -> int:
        """Sequences per optimizer step."""
        return self.global_batch_tokens // self.seq_len

    def with_preset(self, preset: FrameworkPreset) -> "JobSpec":
        """The same job under another framework preset."""
        return replace(self, preset=preset)

    def on(self, architecture: ArchitectureSpec) -> "JobSpec":
        """The same job on GPUs of an architecture, whose fp8 products say in which orders tensors are cast."""
        fp8 = architecture.fp8
        if fp8 is None:
            return self
        return replace(self, precision=replace(self.precision, transposed_copies=fp8.transposed_copies))


def precision_of(preset: FrameworkPreset, compute: str = "bf16") -> Precision:
    """Mixed precision as the framework trains with it: gradients accumulate and travel in the preset's
    format, optimizer state in fp32. ``compute`` is the format of the matrix products."""
    gradient = (
        preset.data_parallel.gradient_dtype if preset.data_parallel.gradient_dtype == "fp32" else compute
    )
    return Precision(
        compute=compute,
        parameter=compute,
        parameter_gather=compute,
        gradient=gradient,
        reduce=gradient,
        activation=compute,
        attention=compute,
        moe_dispatch=compute,
        linear=compute,
    )
