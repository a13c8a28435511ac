"""Python calls of Megatron-Core's modules, the source of ops/cpu_overhead.py's table.

    pip install --no-deps megatron-core==0.13.1
    python benchmarks/cpu_overhead.py [--experts 32]

Runs one decoder layer of 64 channels over 64 tokens eagerly on the CPU, so that kernels take next to no
time, with CUDA's names replaced by stand-ins and a process group that moves nothing. Prints what each
module's own Python takes (median of 300 forwards, without the modules inside it), in microseconds and in
forwards of ``torch.nn.Linear``.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

REPEATS = 300
HIDDEN = 64
TOKENS = 64
RANKS = 8
STEPS = (
    "dispatch_preprocess",
    "token_dispatch",
    "dispatch_postprocess",
    "combine_preprocess",
    "token_combine",
    "combine_postprocess",
)


class NoOpCuda:
    """A CUDA stream, event or context that does nothing, whatever is asked of it."""

    def __init__(self, *args: object, **options: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., "NoOpCuda"]:
        return lambda *args, **options: NoOpCuda()

    def __enter__(self) -> "NoOpCuda":
        return self

    def __exit__(self, *args: object) -> bool:
        return False


def without_cuda() -> None:
    """Let Megatron-Core run on the CPU, in a group of ranks that moves nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    cuda: Any = torch.cuda
    cuda.current_device = lambda: torch.device("cpu")
    cuda.Stream = cuda.Event = NoOpCuda
    cuda.current_stream = cuda.stream = lambda *args: NoOpCuda()
    cuda.synchronize = cuda.nvtx.range_push = cuda.nvtx.range_pop = lambda *args: None
    tensor: Any = torch.Tensor
    tensor.cuda = lambda self, *args, **options: self

    def exchanged(out: torch.Tensor, into: torch.Tensor, *args: object, **options: object) -> None:
        rows = min(out.shape[0], into.shape[0])
        out[:rows] = into[:rows]

    group: Any = dist
    group.all_to_all_single = exchanged
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())


def decoder_layer(experts: int) -> torch.nn.Module:
    """One layer in Megatron-Core's own modules, with so many experts over the ranks (0: dense)."""
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.spec_utils import build_module
    from megatron.core.transformer.transformer_config import TransformerConfig

    moe_utils.te_general_gemm = None
    tensor_parallel.get_cuda_rng_tracker = NoOpCuda
    parallel_state.initialize_model_parallel(
        expert_model_parallel_size=RANKS if experts else 1, create_gloo_process_groups=False
    )
    settings: dict[str, Any] = {}
    if experts:
        settings = {
            "num_moe_experts": experts,
            "moe_router_topk": 8,
            "moe_ffn_hidden_size": HIDDEN,
            "moe_token_dispatcher_type": "alltoall",
            "moe_aux_loss_coeff": 1e-3,
            "expert_model_parallel_size": RANKS,
        }
    config = TransformerConfig(
        num_layers=1,
        hidden_size=HIDDEN,
        num_attention_heads=8,
        ffn_hidden_size=2 * HIDDEN,
        use_cpu_initialization=True,
        perform_initialization=False,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        normalization="RMSNorm",
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        **settings,
    )
    spec = get_gpt_layer_local_spec(num_experts=experts or None, normalization="RMSNorm")
    layer: torch.nn.Module = build_module(spec, config=config, layer_number=1)
    return layer


class Clock:
    """Seconds per name and round, without what runs inside under another name."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self.inside: list[float] = []

    def watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, timed."""

        def timed(*args: Any, **options: Any) -> Any:
            self.inside.append(0.0)
            start = time.perf_counter()
            result = call(*args, **options)
            whole_s = time.perf_counter() - start
            self.spent[name] += whole_s - self.inside.pop()
            if self.inside:
                self.inside[-1] += whole_s
            return result

        return timed


def watch(layer: Any, clock: Clock) -> None:
    """Time every module of a layer, and every step of its dispatcher."""
    for name, module in layer.named_modules():
        module.forward = clock.watched(name or "layer", module.forward)
    dispatcher = getattr(layer.mlp, "token_dispatcher", None)
    for step in STEPS if dispatcher else ():
        setattr(dispatcher, step, clock.watched(f"dispatcher.{step}", getattr(dispatcher, step)))


def medians_s(layer: Any) -> dict[str, float]:
    """Seconds of every module's own Python in a forward."""
    clock = Clock()
    watch(layer, clock)
    tokens = torch.randn(TOKENS, 1, HIDDEN, requires_grad=True)
    angles = torch.randn(TOKENS, 1, 1, HIDDEN // 8)
    mask = torch.zeros(1, 1, TOKENS, TOKENS, dtype=torch.bool)
    rounds: dict[str, list[float]] = defaultdict(list)
    for _ in range(REPEATS):
        clock.spent.clear()
        layer(tokens, attention_mask=mask, rotary_pos_emb=angles)
        for name, seconds in clock.spent.items():
            rounds[name].append(seconds)
    return {name: statistics.median(values) for name, values in rounds.items()}


def linear_s() -> float:
    """Seconds of one ``torch.nn.Linear`` forward."""
    linear = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)
    tokens = torch.randn(8, HIDDEN)
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(20):
            linear(tokens)
        times.append((time.perf_counter() - start) / 20)
    return statistics.median(times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Python calls of Megatron-Core's modules")
    parser.add_argument("--experts", type=int, default=0, help="experts over 8 ranks; 0: a dense layer")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    unit_s = linear_s()
    without_cuda()
    print(f"{'torch.nn.Linear':44} {unit_s * 1e6:8.1f} us")
    for name, seconds in sorted(medians_s(decoder_layer(arguments.experts)).items(), key=lambda one: -one[1]):
        print(f"{name:44} {seconds * 1e6:8.1f} us {seconds / unit_s:8.1f}")


if __name__ == "__main__":
    main()
