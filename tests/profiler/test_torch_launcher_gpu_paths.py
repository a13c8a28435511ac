"""What runs on GPUs only, as far as a machine without one can hold it: torch's shape functions on
tensors without data check layouts and formats, and a fake CUDA tells the order of a trial."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend

from profdb.cases import AttentionCase, GemmCase, GroupedGemmCase, MemoryBoundCase, SustainedCase
from profiler import measurement, timing
from profiler.benchmarks import attention, memory_bound
from profiler.benchmarks.attention import Order, attention_operands, torch_varlen_forward
from profiler.benchmarks.fp8 import fp8_call, grouped_fp8_call, launch_fp8, launch_grouped_fp8
from profiler.benchmarks.grouped_gemm import grouped_call, grouped_product, launch_grouped_gemm
from profiler.benchmarks.launched import Launched, UnsupportedCaseError
from profiler.benchmarks.memory_bound import launch_memory_bound
from profiler.device import Device
from spec.cluster.reader import read_architecture
from tests.profiler.fakes import device_like, fake_bench
from tests.solver.questions import ROOT

META = torch.device("meta")


HOPPER: dict[str, Any] = {"capability": (9, 0), "cache_bytes": 50 << 20, "torch_device": META}


def of(architecture: str | None) -> Device:
    spec = read_architecture(architecture, root=ROOT) if architecture else None
    return device_like(architecture=spec, **HOPPER)


@pytest.mark.parametrize(
    "case",
    [
        GemmCase(m=16, k=16, n=16, layout="NN", dtype_in="fp8", scale_recipe="tensor"),
        GemmCase(m=16, k=24, n=16, dtype_in="fp8", scale_recipe="tensor"),
        GemmCase(m=16, k=32, n=16, dtype_in="fp8", scale_recipe="mx"),
        GemmCase(m=16, k=32, n=16, dtype_in="fp8", scale_recipe="nibbles"),
        GemmCase(m=16, k=16, n=16, dtype_in="fp8"),
        GemmCase(batch=2, m=16, k=16, n=16, dtype_in="fp8", scale_recipe="tensor"),
    ],
)
def test_fp8_products_that_the_kernel_does_not_have_are_refused(case: GemmCase) -> None:
    with pytest.raises(UnsupportedCaseError):
        launch_fp8(case, of("hopper"))


@pytest.mark.parametrize(("layout", "shape"), [("NT", (64, 48)), ("NN", (64, 48)), ("TN", (4, 32, 48))])
def test_grouped_products_pass_torchs_checks(layout: str, shape: tuple[int, ...]) -> None:
    case = GroupedGemmCase(groups=4, m=64, k=32, n=48, layout=layout)
    assert grouped_product(case, of(None)) is not None
    assert grouped_product(replace(case, k=30), of(None)) is None  # odd strides: one by one
    made = grouped_call(case, META)()
    assert isinstance(made, torch.Tensor)
    assert tuple(made.shape) == shape


@pytest.mark.parametrize("kernel", ["flash2", "cudnn"])
def test_sdpa_is_held_to_the_kernel_of_the_case(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Held:
        def __init__(self, backend: Any) -> None:
            asked.append(backend)

        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(attention, "sdpa_kernel", Held)
    monkeypatch.setattr(attention, "scaled_dot_product_attention", lambda *_, **words: words)
    case = AttentionCase(batch=1, q_len=8, kv_len=8, heads=4, kv_heads=2, qk_dim=8, v_dim=8, kernel=kernel)
    words = attention.sdpa_forward(case, kernel)(*attention_operands(case, Order.HEADS, META))
    wanted = {"flash2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    assert asked == [wanted[kernel]]
    assert words == {"is_causal": True, "enable_gqa": True}


def test_packed_sequences_lie_end_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    seen: list[Any] = []

    def record(q: Any, k: Any, v: Any, starts_q: Any, starts_k: Any, *_: Any, window_size: Any) -> Any:
        seen.extend([q, k, v, starts_q.tolist(), starts_k.tolist(), window_size])
        return q

    monkeypatch.setattr(varlen, "varlen_attn", record)
    case = AttentionCase(batch=3, q_len=8, kv_len=8, heads=4, kv_heads=4, qk_dim=16, v_dim=16, mask="varlen")
    cpu = torch.device("cpu")
    torch_varlen_forward(case, cpu)(*attention_operands(case, Order.PACKED, cpu))
    query, _, _, starts_q, starts_k, window = seen
    assert tuple(query.shape) == (24, 4, 16)
    assert starts_q == starts_k == [0, 8, 16, 24]
    assert window == (-1, 0)  # everything before, nothing after: causal


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What a GPU was asked for, in order, and a call of it that takes as long as it is told."""
    made = SimpleNamespace(order=[], now_ms=0.0)

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at_ms = made.now_ms
            made.order.append("record")

        def synchronize(self) -> None:
            made.order.append("wait")

        def elapsed_time(self, end: "Event") -> float:
            return float(end.at_ms - self.at_ms)  # milliseconds, as cudaEventElapsedTime

    def takes(name: str, milliseconds: float) -> Any:
        def call() -> None:
            made.now_ms += milliseconds
            made.order.append(name)

        return call

    made.takes = takes
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: made.order.append("hold" if cycles > 0 else "?"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda index: made.order.append("drain"))
    return made


def test_a_trial_on_a_gpu_is_queued_behind_a_hold(gpu: SimpleNamespace) -> None:
    clock = timing.CudaStopwatch(device=Device(kind="cuda"))
    read = clock.burst((gpu.takes("call", 2.0),), 3, gpu.takes("align", 1.0))
    assert gpu.order == ["drain", "hold", "align", "record", "call", "call", "call", "record", "wait"]
    assert read == pytest.approx(2e-3)


def test_sustained_products_alternate_with_what_runs_between_and_are_timed_alone(gpu: SimpleNamespace) -> None:
    clock = timing.SustainedStopwatch.of(Device(kind="cuda"), gpu.takes("copy", 0.5), 0.7)
    assert clock.between_s == pytest.approx(0.5e-3)
    product = gpu.takes("product", 2.0)
    assert clock.burst((product,), 1, None) == pytest.approx(2e-3)
    gpu.order.clear()
    # 20 ms are 7 products and 12 copies: 6 ms beside 14
    assert clock.burst((product,), 14, None) == pytest.approx(2e-3)
    ran = [name for name in gpu.order if name in ("product", "copy")]
    assert ran == (["product"] * 7 + ["copy"] * 12) * 2


@pytest.mark.parametrize(
    ("case", "share"),
    [
        (GemmCase(m=8, k=8, n=8), 1.5),
        (MemoryBoundCase(kernel="copy", direction="forward", rows=8, width=8), 0.0),
        (SustainedCase(seconds=2, m=8, k=8, n=8), 0.0),
    ],
)
def test_a_gpu_rests_after_each_burst_of_what_draws_more_than_its_limit(
    case: Any, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []
    monkeypatch.setattr(measurement.time, "sleep", rests.append)
    bench = fake_bench()
    bench.world.device = Device(kind="cuda")
    launched = Launched(case=case, calls=(lambda: None,), implementation="fake")
    bench.device_clock = SimpleNamespace(burst=lambda calls, count, align: 2e-3)  # type: ignore[assignment]
    trials_s = measurement.time_trials(launched, bench, 2e-3)
    assert trials_s == [2e-3] * 20
    assert rests == pytest.approx([share * 2e-3] * 20)


@pytest.fixture
def compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch's compiler without its code generator, unless a test asks for it."""
    whole, backend = torch.compile, getattr(request, "param", "aot_eager")
    monkeypatch.setattr(torch, "compile", lambda *a, **words: whole(*a, backend=backend, **words))
    torch._dynamo.reset()
    memory_bound.compile_forward.cache_clear()
    yield
    memory_bound.compile_forward.cache_clear()
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("kernel", "compiler"),
    [
        ("swiglu", "aot_eager"),
        *(
            pytest.param(name, "inductor", marks=pytest.mark.nightly)
            for name in ("swiglu", "masked_softmax", "rotary", "rmsnorm")
        ),
    ],
    indirect=["compiler"],
)
def test_a_compiler_fuses_the_kernel_and_never_its_unfused_namesake(kernel: str, compiler: None) -> None:
    plain = MemoryBoundCase(kernel=f"{kernel}_unfused", direction="forward", rows=4, width=128)
    launched = launch_memory_bound(plain, Device(kind="cpu"), compiled=True)
    assert launched.implementation == "torch, several kernels"
    fused = launch_memory_bound(replace(plain, kernel=kernel), Device(kind="cpu"), compiled=True)
    one_kernel = memory_bound.FUNCTIONS[kernel].one_kernel
    assert fused.implementation == ("torch" if one_kernel else "torch.compile for any rows of this width")


def test_a_fused_backward_can_be_timed_again_and_again(compiler: None) -> None:
    # what a backward may reuse is decided before code is generated
    for rows in (12, 20):
        case = MemoryBoundCase(kernel="rmsnorm", direction="backward", rows=rows, width=32)
        launched = launch_memory_bound(case, Device(kind="cpu"), compiled=True)
        assert launched.implementation == "torch.compile for any rows of this width"
        first, second = launched.calls[0](), launched.calls[0]()
        assert torch.equal(first[0], second[0])  # type: ignore[index]


def test_a_kernel_that_can_no_longer_be_fused_refuses(compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch runs a function beyond its limit of graphs as several kernels, whose time would stand under the
    fused name.
    """
    from torch._dynamo.exc import FailOnRecompileLimitHit

    monkeypatch.setattr(memory_bound, "MOST_GRAPHS", 2)
    with torch._dynamo.config.patch(recompile_limit=8):
        for dtype in ("bf16", "fp32", "fp16"):
            case = MemoryBoundCase(kernel="swiglu", direction="forward", rows=12, width=32, dtype=dtype)
            refused = pytest.raises(FailOnRecompileLimitHit, match="fullgraph")
            with refused if dtype == "fp16" else contextlib.nullcontext():
                launch_memory_bound(case, Device(kind="cpu"), compiled=True)


def test_a_kernel_whose_backward_cannot_be_compiled_for_any_shape_is_compiled_for_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As torch 2.11 did on an H100 over the backward of rotary."""
    from torch._inductor.exc import InductorError

    error = InductorError(AssertionError(), None)

    def compile_for(forward: Any, *, dynamic: bool, fullgraph: bool) -> Any:
        def run(*operands: Any) -> Any:
            if any(hasattr(operand, "_dynamo_dynamic_indices") for operand in operands):
                raise error
            return forward(*operands)

        return run

    monkeypatch.setattr(torch, "compile", compile_for)
    memory_bound.compile_forward.cache_clear()
    case = MemoryBoundCase(kernel="rotary", direction="backward", rows=4, width=32)
    launched = launch_memory_bound(case, Device(kind="cpu"), compiled=True)
    gradients = launched.calls[0]()
    memory_bound.compile_forward.cache_clear()
    assert launched.implementation == "torch.compile for this shape"
    assert gradients[0].shape == (4, 1, 32)  # type: ignore[index]


@pytest.mark.parametrize("kernel", sorted(memory_bound.compiled_kernels()))
def test_a_graph_serves_all_rows_of_one_width(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a row is as long as there are rows; each further width is a graph of its own, of fixed sizes."""
    whole = torch.compile
    graphs: list[list[Any]] = []

    def backend(module: Any, inputs: list[Any]) -> Any:
        values = [node.meta["example_value"] for node in module.graph.find_nodes(op="placeholder")]
        graphs.append([value.shape for value in values if isinstance(value, torch.Tensor)])
        return module.forward

    monkeypatch.setattr(torch, "compile", lambda *a, **words: whole(*a, backend=backend, **words))
    torch._dynamo.reset()
    memory_bound.compile_forward.cache_clear()
    for width, rows in ((32, 32), (32, 8), (32, 64), (64, 8)):
        case = MemoryBoundCase(kernel=kernel, direction="forward", rows=rows, width=width)
        launched = launch_memory_bound(case, Device(kind="cpu"), compiled=True)
        launched.calls[0]()
        assert launched.implementation == "torch.compile for any rows of this width"
    memory_bound.compile_forward.cache_clear()
    torch._dynamo.reset()
    assert len(graphs) == 2
    for shapes in graphs:
        assert isinstance(shapes[0][0], torch.SymInt)
        assert all(isinstance(size, int) for shape in shapes for size in shape[1:])


class Seen:
    """What a kernel of torch was handed."""

    def __init__(self) -> None:
        self.args: tuple[Any, ...] = ()
        self.words: dict[str, Any] = {}

    def __call__(self, *args: Any, **words: Any) -> None:
        self.args, self.words = args, words


# PyTorch ScaledBlas.cpp, _scaled_block1x128_block128x128 and its neighbours: (shape, stride) of both scales
# for m = 256, k = 640, n = 384; B's blocks are padded to a multiple of four along k (5 -> 8), MXFP8 has
# 128 x 4 scales a tile: 256 x 20 and 384 x 20.
SCALE_SHAPES = {
    "tensor": (((), ()), ((), ())),
    "row": (((256, 1), (1, 1)), ((1, 384), (384, 1))),
    "block": (((256, 5), (1, 256)), ((8, 3), (1, 8))),
    "mx": (((5120,), (1,)), ((7680,), (1,))),
}
Scaling, Order32 = torch.nn.functional.ScalingType, torch.nn.functional.SwizzleType
SCALE_KINDS = {
    "tensor": (Scaling.TensorWise, Scaling.TensorWise, Order32.NO_SWIZZLE),
    "row": (Scaling.RowWise, Scaling.RowWise, Order32.NO_SWIZZLE),
    "block": (Scaling.BlockWise1x128, Scaling.BlockWise128x128, Order32.NO_SWIZZLE),
    "mx": (Scaling.BlockWise1x32, Scaling.BlockWise1x32, Order32.SWIZZLE_32_4_4),
}


@pytest.mark.parametrize("recipe", SCALE_SHAPES)
def test_fp8_products_are_launched_with_the_scales_of_their_recipe(
    recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = GemmCase(m=256, k=640, n=384, dtype_in="fp8", scale_recipe=recipe)
    passed = fp8_call(case, META)()
    assert isinstance(passed, torch.Tensor)
    assert (tuple(passed.shape), passed.dtype) == ((256, 384), torch.bfloat16)
    seen = Seen()
    monkeypatch.setattr(torch.nn.functional, "scaled_mm", seen)
    launched = launch_fp8(case, of("blackwell" if recipe == "mx" else "hopper"))
    assert launched.case == case
    assert recipe in launched.implementation
    assert len(launched.calls) == 16  # 0.6 MB a set of operands, a cache of 50 MB
    launched.calls[0]()
    left, right, scale_a, kind_a, scale_b, kind_b = seen.args
    assert (kind_a, kind_b, seen.words["swizzle_a"]) == SCALE_KINDS[recipe]
    assert seen.words["swizzle_a"] is seen.words["swizzle_b"]
    assert (tuple(left.shape), tuple(right.shape)) == ((256, 640), (640, 384))
    assert (left.stride(), right.stride()) == ((640, 1), (1, 640))
    assert left.dtype is right.dtype is torch.float8_e4m3fn
    kind = torch.float8_e8m0fnu if recipe == "mx" else torch.float32
    for scale, (shape, stride) in zip((scale_a, scale_b), SCALE_SHAPES[recipe], strict=True):
        assert (tuple(scale.shape), scale.stride(), scale.dtype) == (shape, stride, kind)
    assert seen.words["use_fast_accum"] is (recipe in ("tensor", "row"))


@pytest.mark.parametrize(
    ("recipe", "architecture"), [("tensor", "ampere"), ("block", "ada"), ("block", "blackwell"), ("mx", "hopper")]
)
def test_a_recipe_the_architecture_has_no_kernel_for_is_refused(recipe: str, architecture: str) -> None:
    with pytest.raises(UnsupportedCaseError, match=f"scaled by {recipe} on this architecture"):
        launch_fp8(GemmCase(m=128, k=128, n=128, dtype_in="fp8", scale_recipe=recipe), of(architecture))


def test_where_no_sheet_names_the_architecture_torch_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Seen()
    monkeypatch.setattr(torch.nn.functional, "scaled_mm", asked)
    launch_fp8(GemmCase(m=128, k=128, n=128, dtype_in="fp8", scale_recipe="row"), of(None))
    assert tuple(asked.args[0].shape) == (128, 128)
    with pytest.raises(UnsupportedCaseError, match="on this architecture"):
        launch_fp8(GemmCase(m=128, k=128, n=128, dtype_in="fp8", scale_recipe="row"), Device(kind="cpu"))


GROUPED_FP8 = GroupedGemmCase(groups=4, m=64, k=32, n=48, dtype_in="fp8", scale_recipe="row")


def test_grouped_fp8_products_are_launched_as_their_case_says(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = grouped_fp8_call(GROUPED_FP8, META)()
    assert isinstance(passed, torch.Tensor)
    assert (tuple(passed.shape), passed.dtype) == ((64, 48), torch.bfloat16)
    seen = Seen()
    monkeypatch.setattr(torch, "_scaled_grouped_mm", seen)
    with pytest.raises(UnsupportedCaseError, match="on this architecture"):
        launch_grouped_gemm(GROUPED_FP8, of("blackwell"))
    launched = launch_grouped_gemm(GROUPED_FP8, of("hopper"))
    assert launched.case == GROUPED_FP8
    assert len(launched.calls) == 4
    launched.calls[0]()
    left, right, scale_a, scale_b = seen.args
    assert [tuple(one.shape) for one in seen.args] == [(64, 32), (4, 32, 48), (64,), (4, 48)]
    assert (left.stride(), right.stride()) == ((32, 1), (48 * 32, 1, 32))
    assert scale_a.dtype is scale_b.dtype is torch.float32
    assert tuple(seen.words["offs"].shape) == (4,)


@pytest.mark.parametrize(
    "changed", [{"layout": "TN"}, {"scale_recipe": "tensor"}, {"m": 60}, {"k": 24}, {"dtype_out": "fp16"}]
)
def test_grouped_fp8_products_that_torch_does_not_have_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedCaseError):
        launch_grouped_fp8(replace(GROUPED_FP8, **changed), of("hopper"))


def test_what_this_torch_has_no_kernel_for_is_a_refusal_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **words: Any) -> None:
        raise RuntimeError("Invalid scaling configuration\nand a stack")

    monkeypatch.setattr(torch.nn.functional, "scaled_mm", refuse)
    case = GemmCase(m=128, k=128, n=128, dtype_in="fp8", scale_recipe="block")
    with pytest.raises(UnsupportedCaseError, match=r"^Invalid scaling configuration$"):
        launch_fp8(case, of(None))
