"""Kernels of Transformer Engine, by fakes on the CPU that take what its releases take and forget what they forget."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from profdb.cases import AttentionCase, GemmCase, MemoryBoundCase, ModuleCase
from profdb.modelled.cost_model import ModelledCostModel
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from profiler.benchmarks import flash_kernels, transformer_engine
from profiler.benchmarks.attention import launch_attention
from profiler.benchmarks.launched import UnsupportedCaseError
from profiler.benchmarks.memory_bound import launch_memory_bound
from profiler.benchmarks.transformer_engine import launch_module
from profiler.cases.module_cases import gpu_module_cases, module_notes, parts_of_modules
from profiler.cases.sweep_plan import SweepPlan, plan_cases, skip_reason
from profiler.profiling_run import is_everywhere
from profiler.torch_launcher import TorchLauncher
from spec.cluster.reader import read_cluster
from tests.profiler.benchmarks.signatures import RELEASES, checked, checked_class
from tests.profiler.fakes import device_like
from tests.solver.questions import ROOT

GPU = device_like(cache_bytes=0, torch_device=torch.device("cpu"), capability=(9, 0))


class Attend(torch.autograd.Function):
    """Attention whose backward takes its tensors from the graph, as Transformer Engine's
    (quantized_tensor.py, restore_from_func_ctx).
    """

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        ctx.save_for_backward(query, key, value)
        ctx.tensor_objects = [None] * 3
        return query[..., : value.shape[-1]] * value.mean()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if ctx.tensor_objects is None:
            raise AttributeError("ctx must have .tensor_objects to restore saved tensors")
        ctx.tensor_objects = None
        return tuple(2.0 * one for one in ctx.saved_tensors)


class FakeEngine:
    """The package of one release, with what was called."""

    def __init__(self, release: str) -> None:
        self.made: list[dict[str, Any]] = []
        self.recipes: list[Any] = []
        made = self.made

        class Linear(torch.nn.Module):
            def __init__(self, *sizes: int, **words: Any) -> None:
                super().__init__()
                made.append({"class": type(self).__name__, "sizes": sizes, **words})
                *groups, inputs, outputs = sizes
                kind = {"dtype": words["params_dtype"], "device": words["device"]}
                self.weights = torch.nn.ParameterList(
                    torch.nn.Parameter(torch.ones(outputs, inputs, **kind)) for _ in range(*groups or (1,))
                )

            def forward(self, inp: torch.Tensor, *splits: list[int]) -> torch.Tensor:
                made.append({"splits": splits, "sums": [weight.main_grad.dtype for weight in self.weights]})
                rows = inp.split(*splits) if splits else (inp,)
                return torch.cat([functional.linear(x, w) for x, w in zip(rows, self.weights, strict=True)])

        class DotProductAttention:
            def __init__(self, *sizes: Any, **words: Any) -> None:
                made.append({"sizes": sizes, **words})

            def forward(self, *tensors: torch.Tensor, **words: Any) -> torch.Tensor:
                made.append({"shapes": [tuple(one.shape) for one in tensors], **words})
                return Attend.apply(*tensors).flatten(-2)  # type: ignore[no-untyped-call]

            __call__ = forward

        @contextmanager
        def fp8_autocast(enabled: bool, fp8_recipe: Any) -> Iterator[None]:
            assert enabled
            self.recipes.append(fp8_recipe)
            yield

        for name in ("Linear", "LayerNormLinear", "GroupedLinear"):
            one = type(name, (Linear,), {"__init__": Linear.__init__, "forward": Linear.forward})
            setattr(self, name, checked_class(release, one))
        attention = checked_class(release, DotProductAttention)
        attention.__call__ = attention.forward  # type: ignore[attr-defined]
        self.DotProductAttention = attention
        self.fp8_autocast = checked(release, "fp8_autocast", fp8_autocast)
        self.constants = SimpleNamespace(TE_DType={torch.bfloat16: "kBFloat16"})


def normalized(x: torch.Tensor, center: bool) -> list[torch.Tensor | None]:
    mean = x.float().mean(-1) if center else torch.zeros(x.shape[0])
    rows = x.float() - mean[:, None]
    deviation = (rows.pow(2).mean(-1) + 1e-5).rsqrt()
    return [rows * deviation[:, None], mean if center else None, deviation]


class FakeKernels:
    """transformer_engine_torch of one release."""

    def __init__(self, release: str) -> None:
        self.statistics: list[Any] = []

        def rmsnorm_fwd(x: Any, weight: Any, eps: float, out: Any, quantizer: Any, otype: str, *rest: Any) -> list[Any]:
            assert (eps, out, quantizer, otype, rest) == (1e-5, None, None, "kBFloat16", (0, False))
            rows, mean, deviation = normalized(x, center=False)
            return [(rows * weight).to(x.dtype), mean, deviation]

        def layernorm_fwd(x: Any, weight: Any, bias: Any, *words: Any) -> list[Any]:
            rows, mean, deviation = normalized(x, center=True)
            return [(rows * weight + bias).to(x.dtype), mean, deviation]

        def backward(*words: Any) -> list[Any]:
            gradient, x, *statistics, weight, margin, around_zero = words
            assert (gradient.shape, margin, around_zero, weight.shape) == (x.shape, 0, False, x.shape[1:])
            self.statistics.append(statistics)
            return [gradient]

        functions = {"rmsnorm_fwd": rmsnorm_fwd, "layernorm_fwd": layernorm_fwd}
        functions |= {"rmsnorm_bwd": backward, "layernorm_bwd": backward}
        for name, function in functions.items():
            setattr(self, name, checked(release, name, function))


@pytest.fixture(params=RELEASES)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """An installed release."""
    package = FakeEngine(request.param)
    package.kernels = FakeKernels(request.param)  # type: ignore[attr-defined]
    packages: dict[str, Any] = {
        "transformer_engine": SimpleNamespace(__version__=request.param.partition("-")[2]),
        "transformer_engine.pytorch": package,
        "transformer_engine_torch": package.kernels,  # type: ignore[attr-defined]
        "transformer_engine.common.recipe": SimpleNamespace(Float8CurrentScaling=lambda: "current"),
    }
    monkeypatch.setattr(transformer_engine, "optional_package", packages.get)
    return package


def module(**words: Any) -> ModuleCase:
    return ModuleCase(**{"module": "linear", "rows": 8, "in_features": 16, "out_features": 32} | words)


@pytest.mark.parametrize(
    ("case", "sizes", "words"),
    [
        (module(), (16, 32), {}),
        (module(module="layernorm_linear"), (16, 32), {"normalization": "RMSNorm"}),
        (module(module="grouped_linear", groups=4), (4, 16, 32), {}),
    ],
)
def test_modules_run_forward_and_backward_as_megatron_makes_them(
    case: ModuleCase, sizes: tuple[int, ...], words: dict[str, Any], engine: FakeEngine
) -> None:
    launched = TorchLauncher(world=SimpleNamespace(device=GPU)).launch(case)  # type: ignore[arg-type]
    assert launched.case == case
    name = transformer_engine.MODULES[case.module]
    assert launched.implementation.startswith("Transformer Engine 2.")
    assert launched.implementation.endswith(name)
    asked = {"bias": False, "params_dtype": torch.bfloat16, "fuse_wgrad_accumulation": True, **words}
    assert engine.made[0] == {"class": name, "sizes": sizes, "device": torch.device("cpu"), **asked}
    engine.made.clear()
    launched.calls[0]()
    launched.calls[0]()  # again and again
    splits = ([2, 2, 2, 2],) if case.groups > 1 else ()
    assert engine.made == [{"splits": splits, "sums": [torch.float32] * case.groups}] * 2
    assert engine.recipes == []


def test_fp8_modules_run_within_their_recipe(engine: FakeEngine) -> None:
    launch_module(module(scale_recipe="tensor"), GPU)
    assert engine.recipes == ["current"]
    with pytest.raises(UnsupportedCaseError, match="no MXFP8BlockScaling"):
        launch_module(module(scale_recipe="mx"), GPU)


@pytest.mark.parametrize("changed", [{"module": "norm"}, {"scale_recipe": "row"}, {"groups": 3}])
def test_modules_that_are_none_are_refused(changed: dict[str, Any], engine: FakeEngine) -> None:
    with pytest.raises(UnsupportedCaseError):
        launch_module(module(**changed), GPU)


def attention(**words: Any) -> AttentionCase:
    sizes: dict[str, Any] = {"batch": 2, "q_len": 8, "kv_len": 8, "heads": 4, "kv_heads": 4, "qk_dim": 16, "v_dim": 16}
    return AttentionCase(**sizes | {"kernel": "te"} | words)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_attention_is_transformer_engines_choice_and_its_backward_runs_again(
    direction: str, engine: FakeEngine
) -> None:
    launched = launch_attention(attention(direction=direction), GPU)
    assert launched.implementation.endswith(" DotProductAttention")
    words = {"num_gqa_groups": 4, "qkv_format": "bshd", "attn_mask_type": "causal", "window_size": None}
    assert engine.made == [{"sizes": (4, 16), **words}, {"shapes": [(2, 8, 4, 16)] * 3}]
    first, second = launched.calls[0](), launched.calls[0]()
    if direction == "backward":
        assert torch.equal(first[0], second[0])  # type: ignore[index]


@pytest.mark.parametrize(
    ("changed", "made"),
    [
        ({"mask": "full"}, {"attn_mask_type": "no_mask", "window_size": None}),
        ({"mask": "window", "window": 3}, {"attn_mask_type": "causal", "window_size": (2, 0)}),
        ({"mask": "varlen"}, {"attn_mask_type": "padding_causal", "qkv_format": "thd"}),
        ({"v_dim": 8}, {"sizes": (4, (16, 8))}),
    ],
)
def test_attention_has_the_mask_and_widths_of_its_case(
    changed: dict[str, Any], made: dict[str, Any], engine: FakeEngine
) -> None:
    launch_attention(attention(**changed), GPU)
    assert made.items() <= engine.made[0].items()
    if changed.get("mask") == "varlen":
        called = engine.made[1]
        assert called["shapes"] == [(16, 4, 16)] * 3
        assert called["cu_seqlens_q"].tolist() == called["cu_seqlens_kv"].tolist() == [0, 8, 16]
        assert (called["max_seqlen_q"], called["max_seqlen_kv"]) == (8, 8)


@pytest.mark.parametrize(("kernel", "statistics"), [("rmsnorm", 1), ("layernorm", 2)])
def test_fused_norms_are_transformer_engines_where_it_is(kernel: str, statistics: int, engine: FakeEngine) -> None:
    for direction in ("forward", "backward"):
        case = MemoryBoundCase(kernel=kernel, direction=direction, rows=4, width=32)
        launched = launch_memory_bound(case, GPU)
        assert launched.implementation.endswith(f" {kernel}")
        assert launched.implementation.startswith("Transformer Engine 2.")
        launched.calls[0]()
    kept = engine.kernels.statistics[-1]  # type: ignore[attr-defined]
    assert [tuple(one.shape) for one in kept] == [(4,)] * statistics


def test_norms_of_another_release_leave_the_compilers(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.kernels, "rmsnorm_fwd", lambda x, weight, eps: x)  # type: ignore[attr-defined]
    whole = torch.compile
    monkeypatch.setattr(torch, "compile", lambda *a, **words: whole(*a, backend="eager", **words))
    case = MemoryBoundCase(kernel="rmsnorm", direction="forward", rows=4, width=32)
    assert launch_memory_bound(case, GPU, compiled=True).implementation.startswith("torch.compile")


def test_without_the_package_its_kernels_are_refused_and_no_part_of_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer_engine, "optional_package", lambda _: None)
    with pytest.raises(UnsupportedCaseError, match="not installed"):
        launch_module(module(), GPU)
    with pytest.raises(UnsupportedCaseError, match="no kernel runs te"):
        launch_attention(attention(), GPU)
    assert flash_kernels.candidates("te", "causal", device_like(kind="cpu")) == []
    plan = SweepPlan(device_kind="cuda", fp8_scales=("tensor", "row"))
    engines = set(plan_cases(replace(plan, transformer_engine=True))) - set(plan_cases(plan))
    modules = [case for case in engines if isinstance(case, ModuleCase)]
    assert {case.scale_recipe for case in modules} == {"", "tensor"}
    assert {case.module for case in modules} == set(transformer_engine.MODULES)
    assert {case.kernel for case in engines - set(modules) if isinstance(case, AttentionCase)} == {"te"}
    assert len(engines) == len(gpu_module_cases(("tensor",)))
    assert "no Transformer Engine" in skip_reason(modules[0], plan)


H100 = read_cluster("h100-sxm", root=ROOT)


def test_parts_of_a_module_are_its_products_sums_and_norms() -> None:
    """Three products of a Linear, an fp32 sum of its weight; a norm in both directions; experts in three launches."""
    model = ModelledCostModel(cluster=H100)
    shape = {"rows": 4096, "in_features": 4096, "out_features": 14336}
    plain, normed, experts = (
        parts_of_modules(model, [module(module=name, groups=groups, **shape)])
        for name, groups in (("linear", 1), ("layernorm_linear", 1), ("grouped_linear", 8))
    )
    seconds = [[float(part.seconds[0]) for part in parts] for parts in (plain, normed, experts)]
    assert [len(one) for one in seconds] == [4, 6, 4]
    assert seconds[1][:4] == seconds[0]
    flops = 2.0 * 4096 * 4096 * 14336
    for product_s in (*seconds[0][:3], *seconds[2][:3]):
        assert 0.5e15 < flops / product_s < 0.99e15  # 989 TFLOP/s of an H100
    # A read and a write of 2 bytes a number: 64 MiB at 3.35 TB/s.
    assert seconds[1][4] == pytest.approx(2 * 2 * 4096 * 4096 / 3.35e12, rel=0.35)
    assert 1.2 < seconds[1][5] / seconds[1][4] < 2.0  # the backward reads another array of this size
    # Eight experts have eight weights to sum.
    assert seconds[2][3] == pytest.approx(8 * seconds[0][3], rel=0.2)


def test_a_report_compares_modules_with_their_measured_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [module(rows=256), module(rows=512), module(module="layernorm_linear"), module(scale_recipe="tensor")]
    samples = [Sample(case=case, trials_s=(3e-6 * (1 + place),)) for place, case in enumerate(cases)]
    machine = MachineFacts(gpu="H100", memory_bytes=1, nodes=1, gpus_per_node=1)

    def parts(model: Any, cases: list[ModuleCase]) -> list[Any]:
        origin = 0 if cases[0].module == "linear" else 9
        return [SimpleNamespace(seconds=np.array([1e-6]), origin=np.array([origin]))] * 2

    monkeypatch.setattr("profiler.cases.module_cases.parts_of_modules", parts)
    assert module_notes(ProfileDatabase(machine=machine, samples=samples)) == [
        "Transformer Engine's linear takes 1.50 to 3.00 times its parts measured alone (2 cases)"
    ]
    assert (
        module_notes(ProfileDatabase(machine=machine, samples=[Sample(case=GemmCase(m=1, k=1, n=1), trials_s=(1.0,))]))
        == []
    )


@pytest.mark.parametrize(("others", "measured"), [("yes", True), ("", False)])
def test_a_package_that_a_node_lacks_is_left_out_on_all(others: str, measured: bool) -> None:
    world: Any = SimpleNamespace(gather=lambda word: [word, others])
    assert is_everywhere(world, installed=True) is measured
    assert not is_everywhere(world, installed=False)
