"""What an expert layer moves, by dispatcher, model and number format."""

from dataclasses import replace

import numpy as np
import pytest

from ops.experts.routing import Routing, places_visited
from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import Axis, BatchedGemm, Comm, GroupedGemm, Lane, MemoryBound, Op, Pass, Phase
from ops.roles import Module, OpKey, Role
from spec.arrays import ints
from spec.collectives import Collective
from spec.job import JobSpec
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import BlockRun, BlockSpec, ModelSpec, MoeSpec, NormPlace
from tests.ops.layouts import job, saved_bytes, written
from tests.solver.questions import with_block

HIDDEN, SEQ, EXPERTS, TOPK, WIDTH, EP = 256, 1024, 32, 4, 128, 8
COPIES = SEQ * TOPK
LATENT = ("moe.latent_down", "moe.latent_up")


def model(**changes: object) -> ModelSpec:
    attention = AttentionSpec(kind=AttentionKind.MHA, num_heads=4, num_kv_heads=4, qk_dim=64, v_dim=64)
    moe = MoeSpec(num_experts=EXPERTS, topk=TOPK, expert_ffn_hidden=WIDTH)
    block = BlockSpec(mixer=attention, mlp=None, moe=replace(moe, **changes))
    return ModelSpec(
        name="experts", hidden=HIDDEN, vocab=1024, blocks=(BlockRun(block=block, count=2),), source="made up"
    )


def layer(asked: JobSpec | None = None, **changes: object) -> Pass:
    return written(model(**changes), asked or job(seq_len=SEQ), "mtp", Layout.of(8, ep=EP)).blocks[0]


def exchanges(piece: Pass) -> list[Comm]:
    ops = (*piece.forward, *piece.backward)
    return [op for op in ops if isinstance(op, Comm) and op.axis is Axis.EP and op.serves is None]


def named(piece: Pass, name: str) -> list[Op]:
    return [op for op in (*piece.forward, *piece.backward) if op.name == name]


def moved(piece: Pass, name: str) -> float:
    return float(sum(bytes_moved(op)[0] for op in named(piece, name) if isinstance(op, MemoryBound)))


def rows(piece: Pass) -> int:
    """Rows of the first product of a rank's experts."""
    return next(int(op.m[0]) for op in piece.forward if isinstance(op, GroupedGemm))


def narrow(recipe: str, *, copies: bool = True, **changes: object) -> JobSpec:
    asked = job(seq_len=SEQ, **changes)
    precision = replace(asked.precision, linear="fp8", scale_recipe=recipe, transposed_copies=copies)
    return replace(asked, precision=precision)


def test_all_to_all_sends_every_copy_there_and_back_each_way() -> None:
    sizes = [int(op.size_bytes[0]) for op in exchanges(layer())]
    assert sizes == [COPIES * HIDDEN * 2] * 4
    assert all(op.lane is Lane.MAIN for op in exchanges(layer()))


@pytest.mark.parametrize(
    ("dispatcher", "there", "back"), [("deepep", 12 * TOPK, 4 * TOPK), ("hybridep", 4 * EXPERTS, 4 * EXPERTS)]
)
def test_tokens_travel_once_with_their_probabilities(dispatcher: str, there: int, back: int) -> None:
    """DeepEP: intranode.cu; branch hybrid-ep, hybrid_ep_backend.cuh: one for each expert of the domain."""
    found = exchanges(layer(job(seq_len=SEQ, moe_dispatcher=dispatcher)))
    arriving = SEQ * places_visited(ints(EP), Routing(num_experts=EXPERTS, topk=TOPK))[0]
    beside = [op.size_bytes[0] - np.ceil(arriving) * HIDDEN * 2 for op in found]
    assert beside == [np.ceil(arriving * there), 0, 0, np.ceil(arriving * back)]
    assert all(op.routed and op.routed.elements[0] == SEQ * HIDDEN for op in found)


def test_a_capacity_needs_every_copy() -> None:
    """Padded rows have no token behind them."""
    found = exchanges(layer(job(seq_len=SEQ, moe_dispatcher="deepep"), capacity_factor=1.5))
    assert [int(op.size_bytes[0]) for op in found] == [COPIES * 3 // 2 * HIDDEN * 2] * 4


def test_permutations_read_and_write_each_row_once() -> None:
    """Forward and backward: tokens in, copies out, and the other way round."""
    plain = layer()
    both_ways = 2 * (SEQ + COPIES) * HIDDEN * 2
    assert moved(plain, "moe.permute") == moved(plain, "moe.unpermute") == both_ways
    assert moved(plain, "moe.sort") == 2 * 2 * COPIES * HIDDEN * 2
    fewer = layer(job(seq_len=SEQ, moe_dispatcher="deepep"))
    assert not named(fewer, "moe.sort")
    assert moved(fewer, "moe.permute") < 2 * 2 * COPIES * HIDDEN * 2


def test_an_all_gather_brings_every_token_and_takes_partial_sums_back() -> None:
    """Megatron-LM token_dispatcher.py, MoEAllGatherTokenDispatcher: gathered and scattered forward, mirrored in the
    backward; each rank copies its own experts' rows out of all tokens of its group."""
    found = layer(job(seq_len=SEQ, moe_dispatcher="all_gather"))
    gathered, scattered = Collective.ALL_GATHER, Collective.REDUCE_SCATTER
    kinds = [op.collective for op in exchanges(found)]
    assert kinds == [gathered, scattered, gathered, scattered]
    assert [int(op.size_bytes[0]) for op in exchanges(found)] == [EP * SEQ * HIDDEN * 2] * 4
    assert moved(found, "moe.permute") == 2 * (EP * SEQ + COPIES) * HIDDEN * 2
    assert rows(found) == COPIES
    assert any(op.synchronises for op in named(found, "moe.permute"))


@pytest.mark.parametrize(
    ("dispatcher", "waiting"), [("deepep", "moe.dispatch"), ("hybridep", "moe.dispatch"), ("all_to_all", "moe.permute")]
)
def test_the_host_waits_for_the_token_counts_where_the_dispatcher_hands_them_over(
    dispatcher: str, waiting: str
) -> None:
    """DeepEP and HybridEP wait inside their dispatch, before tokens travel (fused_a2a.py: a list on the host; executor.cu)."""
    found = layer(job(seq_len=SEQ, moe_dispatcher=dispatcher))
    assert [op.name for op in (*found.forward, *found.backward) if op.synchronises] == [waiting]


def test_each_dispatcher_has_its_kernel_and_takes_its_own_multiprocessors() -> None:
    """Megatron-Core transformer_config.py: moe_deepep_num_sms 20, moe_hybridep_num_sms 16. Parts of a capacity are equal."""
    kernels = {"deepep": ("deepep", 20), "hybridep": ("hybridep", 16), "all_to_all": ("all2all", 0)}
    for dispatcher, kernel in kernels.items():
        sent = job(seq_len=SEQ, moe_dispatcher=dispatcher)
        assert {(op.kernel, op.thread_blocks) for op in exchanges(layer(sent))} == {kernel}
        assert {op.kernel for op in exchanges(layer(sent, capacity_factor=1.0))} == {""}


def test_imbalance_and_capacity_scale_what_the_experts_work_on() -> None:
    assert rows(layer()) == COPIES
    assert rows(layer(job(seq_len=SEQ, moe_imbalance=1.5))) == COPIES * 3 // 2
    assert rows(layer(job(seq_len=SEQ, moe_imbalance=1.5), capacity_factor=1.0)) == COPIES


def test_a_latent_is_what_travels_and_what_the_experts_multiply() -> None:
    """Nemotron-3 Super (Megatron-LM moe_layer.py, experts.py, token_dispatcher.py): tokens enter at a quarter of their
    channels and leave as wide as they came; two products more, whole on every rank and of its own tokens."""
    latent = HIDDEN // 4
    plain, narrowed = layer(), layer(latent_hidden=latent)
    assert [int(op.size_bytes[0]) for op in exchanges(narrowed)] == [COPIES * latent * 2] * 4
    for name in ("moe.permute", "moe.unpermute", "moe.sort"):
        assert 4 * moved(narrowed, name) == moved(plain, name)
    for name in ("moe.up", "moe.down"):
        assert 4 * sum(op.flops[0] for op in named(narrowed, name)) == sum(op.flops[0] for op in named(plain, name))
    for name in ("moe.latent_down", "moe.latent_up"):
        forward, *backward = named(narrowed, name)
        assert forward.flops[0] == 2 * SEQ * HIDDEN * latent
        assert [op.flops[0] for op in backward] == [forward.flops[0]] * 2
        assert forward.parameters[0] == HIDDEN * latent
    order = [op.name for op in narrowed.forward]
    steps = ["moe.router", "moe.latent_down", "moe.permute", "moe.down", "moe.unpermute", "moe.latent_up"]
    assert [name for name in order if name in steps] == steps


def test_a_latent_keeps_what_leaves_it_and_narrow_products_what_enters() -> None:
    """The router keeps the norm's output; fp8 keeps a copy of its own."""
    saved = [float(named(layer(latent_hidden=64), name)[0].saved_bytes[0]) for name in LATENT]
    assert saved == [0.0, SEQ * 64 * 2]
    asked = narrow("tensor", copies=False)
    kept = [float(named(layer(asked, latent_hidden=64), name)[0].saved_bytes[0]) for name in LATENT]
    weights = kept[0] - SEQ * HIDDEN
    assert kept == [SEQ * HIDDEN + weights, SEQ * 64 + weights]


def test_shared_experts_hide_nothing_of_a_latent_exchange() -> None:
    """moe_layer.py, preprocess: refused in training."""
    asked = job(seq_len=SEQ, overlap_shared_experts=True)
    found = exchanges(layer(asked, shared_ffn_hidden=WIDTH, latent_hidden=64))
    assert all(op.lane is Lane.MAIN for op in found)


def test_overlapped_exchanges_run_beside_the_pass() -> None:
    hidden = exchanges(layer(job(seq_len=SEQ, overlap_expert_a2a=True)))
    assert len(hidden) == 4
    assert all(op.lane is Lane.ACROSS for op in hidden)


def test_shared_experts_hide_exchanges_where_asked() -> None:
    """Dispatch beside their first product, combine beside their second, in both directions."""
    asked = job(seq_len=SEQ, overlap_shared_experts=True)
    found = exchanges(layer(asked, shared_ffn_hidden=WIDTH))
    up, down = (OpKey(Module.SHARED_EXPERTS, role) for role in (Role.UP, Role.DOWN))
    assert [(op.role, op.overlaps, op.overlap_phase) for op in found] == [
        (Role.DISPATCH, up, Phase.FORWARD),
        (Role.COMBINE, down, Phase.FORWARD),
        (Role.COMBINE, down, Phase.INPUT_GRAD),
        (Role.DISPATCH, up, Phase.INPUT_GRAD),
    ]
    assert all(op.lane is Lane.OVERLAP for op in found)
    assert all(op.lane is Lane.MAIN for op in exchanges(layer(asked)))


def test_gpt_oss_pays_for_its_limits_and_biases() -> None:
    """Elementwise kernels after the kinds that PyTorch runs: 16 + 30 bytes a gate element, 12 + 16 a hidden
    one, 28 + 40 with probabilities in fp32."""
    plain, limited = layer(), layer(bias=True, clamped=True)
    assert not named(plain, "moe.clamp")
    assert not named(plain, "moe.bias")
    assert moved(limited, "moe.clamp") == COPIES * WIDTH * 46
    assert moved(limited, "moe.bias") == COPIES * HIDDEN * 28
    assert all(op.repeat == EXPERTS // EP for op in named(limited, "moe.bias"))
    wide = layer(job(seq_len=SEQ, moe_dispatcher="deepep"), bias=True, clamped=True)
    assert moved(wide, "moe.bias") == COPIES * HIDDEN * 68


@pytest.mark.parametrize(
    ("recipe", "copies", "per_element"), [("block", True, 4), ("tensor", True, 6), ("tensor", False, 5)]
)
def test_fp8_experts_cast_inputs_and_output_gradients(recipe: str, copies: bool, per_element: int) -> None:
    """One read and two 8-bit writes; another read to find a whole tensor's maximum; one write where products read
    either order of a tensor scaled whole (Blackwell)."""
    found = layer(narrow(recipe, copies=copies), capacity_factor=1.0)
    assert moved(found, "moe.up.cast") == per_element * COPIES * (HIDDEN + 2 * WIDTH)
    assert moved(found, "moe.down.cast") == per_element * COPIES * (WIDTH + HIDDEN)
    assert {op.phase for op in named(found, "moe.up.cast")} == {Phase.FORWARD, Phase.INPUT_GRAD}
    assert not named(layer(), "moe.up.cast")


def casts_apart(asked: JobSpec, name: str) -> list[int]:
    return [int(np.max(op.repeat)) for op in named(layer(asked), name)]


def test_each_expert_is_cast_by_itself_and_a_scale_at_hand_takes_three_kernels() -> None:
    """Transformer Engine: only delayed scaling casts all experts at once; current scaling zeroes the maximum, finds it
    and turns it into a scale."""
    local = EXPERTS // EP
    for recipe, kernels in (("block", []), ("tensor", [3 * local] * 2)):
        assert casts_apart(narrow(recipe), "moe.up.cast") == [local] * 2
        assert casts_apart(narrow(recipe), "moe.up.scale") == kernels
    current = narrow("tensor")
    delayed = replace(current, precision=replace(current.precision, scaling="delayed"))
    assert casts_apart(delayed, "moe.up.cast") == [1] * 2
    assert casts_apart(delayed, "moe.up.scale") == []


@pytest.mark.parametrize(("recipe", "added"), [("tensor", 30), ("mx", 62)])
def test_rows_of_an_expert_are_padded_to_its_formats_multiple(recipe: str, added: int) -> None:
    """Half of 15 or 31 rows for each of 4 experts, copied there and back, forward and backward, unless the dispatcher
    hands them over padded; an expert's capacity is a multiple of 16 already, and of 1024 + 1 rows 15 are added."""
    found = layer(narrow(recipe))
    assert rows(found) == COPIES + added
    move_rows = (2 * COPIES + added + 1) // 2
    assert moved(found, "moe.pad") == moved(found, "moe.unpad") == 2 * 2 * move_rows * HIDDEN * 2
    handed = layer(narrow(recipe, moe_dispatcher="deepep"))
    assert rows(handed) == COPIES + added
    assert not named(handed, "moe.pad")
    whole = layer(narrow("tensor"), capacity_factor=1.0)
    assert (rows(whole), moved(whole, "moe.pad")) == (COPIES, 0)
    assert rows(layer(narrow("tensor"), capacity_factor=1.0 + 4 / COPIES)) == COPIES + 4 * 16
    assert rows(layer()) == COPIES


def test_the_busiest_rank_takes_what_a_stated_spread_leaves_it() -> None:
    """32 experts on 8 ranks, 4 each: 1 + s sqrt(28 / 31 / 4) sqrt(8 / 7) x 1.4236, the expected largest of 8 normal
    numbers (Blom: 1.4236 is exact; the approximation is 1.4342)."""
    share = rows(layer(job(seq_len=SEQ, moe_expert_spread=0.4))) / COPIES
    assert share == pytest.approx(1.0 + 0.4 * np.sqrt(28 / 31 / 4 * 8 / 7) * 1.4236, rel=0.003)
    even = layer(job(seq_len=SEQ, moe_expert_spread=0.4), num_experts=EP)
    assert rows(even) / COPIES == pytest.approx(1.0 + 0.4 * np.sqrt(8 / 7) * 1.4236, rel=0.005)
    sent = [float(op.size_bytes[0]) for op in exchanges(layer(job(seq_len=SEQ, moe_expert_spread=0.4)))]
    assert sent[0] == pytest.approx(share * COPIES * HIDDEN * 2)
    assert rows(layer(job(seq_len=SEQ, moe_expert_spread=0.4), capacity_factor=1.0)) == COPIES


def test_loads_drawn_on_a_computer_agree_with_the_closed_form() -> None:
    random = np.random.default_rng(0)
    loads = np.maximum(random.normal(1.0, 0.3, (4000, EXPERTS)), 0.0)
    loads = 1.0 + 0.3 * (loads - loads.mean(1, keepdims=True)) / loads.std(1, keepdims=True)
    busiest = loads.reshape(4000, EP, -1).mean(2).max(1).mean()
    share = rows(layer(job(seq_len=SEQ, moe_expert_spread=0.3))) / COPIES
    assert share == pytest.approx(busiest, rel=0.01)


def test_fp8_halves_what_experts_keep_and_spares_the_router() -> None:
    def kept(piece: Pass) -> float:
        return float(named(piece, "moe.up")[0].saved_bytes[0])

    assert kept(layer()) == 2 * kept(layer(narrow("block"), capacity_factor=1.0))
    routers = [op for op in named(layer(narrow("block")), "moe.router") if isinstance(op, BatchedGemm)]
    assert {(op.dtype, op.scale_recipe) for op in routers} == {("bf16", "")}


@pytest.mark.parametrize("product", ["moe.up", "moe.down"])
def test_every_local_experts_weight_gradient_joins_that_of_earlier_micro_batches(product: str) -> None:
    """In 16 bits by a kernel of its own: two reads and a write of each weight of the rank's experts."""
    asked = job(seq_len=SEQ)
    adds = replace(asked, preset=asked.preset.changed({"data_parallel.accumulation": "accumulate"}))
    weights = sum(int(op.parameters[0]) for op in named(layer(adds), product) if op.phase is Phase.FORWARD)
    assert weights > 0
    assert moved(layer(adds), f"{product}.accumulate") == 3 * 2 * weights
    inside = asked.preset.changed({"data_parallel.accumulation": "accumulate_16bit"})
    assert moved(layer(replace(asked, preset=inside)), f"{product}.accumulate") == 2 * weights
    silent = replace(asked, preset=asked.preset.changed({"data_parallel.accumulation": ""}))
    assert named(layer(silent), f"{product}.accumulate") == []


# What a router keeps for its weight gradient, beside experts that read the same.


@pytest.mark.parametrize(
    ("shared", "scaling", "place", "kept"),
    [
        (0, "", NormPlace.BEFORE, 1),  # nobody else keeps it
        (WIDTH, "", NormPlace.BEFORE, 0),  # the shared experts do
        (WIDTH, "delayed", NormPlace.BEFORE, 1),  # theirs is 8 bits wide
        (WIDTH, "current", NormPlace.BEFORE, 0),  # save_original_input: the shared experts keep this one
        (0, "", NormPlace.SHARED, 0),  # the mixer's norm is theirs too
        (WIDTH, "", NormPlace.SHARED, 0),
    ],
)
def test_the_router_keeps_its_input_where_nobody_else_does(
    shared: int, scaling: str, place: NormPlace, kept: int
) -> None:
    """2 x 256 bytes a token; what shared experts keep is theirs, once, in their own format."""
    asked = job(seq_len=SEQ)
    if scaling:
        precision = replace(asked.precision, linear="fp8", scale_recipe="tensor", scaling=scaling)
        asked = replace(asked, precision=precision)
    one = with_block(model(shared_ffn_hidden=shared), norm_place=place)
    piece = written(one, asked, "mtp", Layout.of(8, ep=EP)).blocks[0]
    (router,) = [op for op in piece.forward if op.role is Role.ROUTER]
    assert router.saved_bytes.tolist() == [kept * 2 * SEQ * HIDDEN]
    if shared and not scaling:
        (up,) = [op for op in piece.forward if op.module is Module.SHARED_EXPERTS and op.role is Role.UP]
        assert up.saved_bytes.tolist() == [(place is NormPlace.BEFORE) * 2 * SEQ * HIDDEN]


# What an expert block keeps where another micro-batch runs beside its exchanges.


@pytest.mark.parametrize(("ep", "shared", "outputs"), [(4, WIDTH, 1), (4, 0, 0), (1, WIDTH, 0)])
def test_beside_another_micro_batch_the_shared_experts_output_stays(ep: int, shared: int, outputs: int) -> None:
    """Megatron-LM models/common/utils.py, before_detached: 2 bytes a token and channel."""

    def kept(*, beside: bool) -> float:
        asked = job(seq_len=SEQ, overlap_expert_a2a=beside)
        found = written(model(shared_ffn_hidden=shared), asked, "mtp", Layout.of(8, ep=ep)).blocks[0]
        return saved_bytes(found)

    assert kept(beside=True) - kept(beside=False) == outputs * 2.0 * SEQ * HIDDEN


# A router whose scores are fp32: what its backward copies and in which format it multiplies.


def routed_layer(router: str, strategy: str = "mtp", **degrees: int) -> Pass:
    asked = job(seq_len=SEQ)
    asked = replace(asked, precision=replace(asked.precision, router=router))
    return written(model(), asked, strategy, Layout.of(8, ep=EP, **degrees)).blocks[0]


@pytest.mark.parametrize("tp", [1, 2])
def test_a_wide_router_copies_weight_and_input_and_both_gradients(tp: int) -> None:
    """6 bytes an element each: weight and input from 16 bits to fp32, their gradients back."""
    piece = routed_layer("fp32", "fsp" if tp > 1 else "mtp", tp=tp)
    copies = [op for op in piece.backward if isinstance(op, MemoryBound) and op.serves is Role.ROUTER]
    copies = [op for op in copies if op.role is Role.CAST]
    weight, tokens = 6 * EXPERTS * HIDDEN, 6 * SEQ // tp * HIDDEN
    assert {op.name: float(bytes_moved(op)[0]) for op in copies if op.phase is Phase.INPUT_GRAD} == {
        "moe.router.widen": weight,
        "moe.router.narrow": tokens,
    }
    assert {op.name: float(bytes_moved(op)[0]) for op in copies if op.phase is Phase.WEIGHT_GRAD} == {
        "moe.router.widen": tokens,
        "moe.router.narrow": weight,
    }


def test_its_gradients_are_multiplied_in_tf32_and_all_else_is_as_before() -> None:
    wide, plain = routed_layer("fp32"), routed_layer("")
    formats = [
        {
            op.phase: op.dtype
            for op in (*piece.forward, *piece.backward)
            if isinstance(op, BatchedGemm) and op.role is Role.ROUTER
        }
        for piece in (wide, plain)
    ]
    assert formats[0] == {Phase.FORWARD: "bf16", Phase.INPUT_GRAD: "tf32", Phase.WEIGHT_GRAD: "tf32"}
    assert set(formats[1].values()) == {"bf16"}
    assert [op.name for op in wide.forward] == [op.name for op in plain.forward]
    assert len(wide.backward) == len(plain.backward) + 4
    assert [saved_bytes(piece) for piece in (wide, plain)] == [pytest.approx(saved_bytes(plain))] * 2
