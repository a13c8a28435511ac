"""A vision tower by hand: images of p patches before the embedding, blocks of h channels in which patches see their image."""

from dataclasses import replace

import pytest

from ops.block import ModelOps
from ops.layout import Layout
from ops.memory_bound import bytes_moved
from ops.op import Attention, Axis, BatchedGemm, Comm, MemoryBound, Op, Phase
from ops.roles import Module
from solver.problem.model_flops import products
from solver.problem.request import check_job
from spec.collectives import Collective
from spec.errors import ConfigError
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec, NormKind, VisionSpec
from spec.parameters import vision_parameters
from spec.readers.huggingface.vision import read_vision
from spec.section import Section
from tests.ops.layouts import job, saved_bytes, written
from tests.solver.questions import small_model

H, HEADS, FFN, CHANNELS, MERGED = 128, 4, 320, 588, 4
IMAGES, PATCHES, BATCH = 3, 256, 2
ROWS = IMAGES * PATCHES * BATCH
TEXT = 512
ATTENTION = AttentionSpec(
    kind=AttentionKind.MHA, num_heads=HEADS, num_kv_heads=HEADS, qk_dim=32, v_dim=32, qkv_bias=True, out_bias=True
)
BLOCK = BlockSpec(mixer=ATTENTION, mlp=MlpSpec(ffn_hidden=FFN, gated=False, bias=True), norm=NormKind.LAYER)
WINDOWED = replace(BLOCK, mixer=replace(ATTENTION, chunk=64))
VISION = VisionSpec(
    hidden=H,
    blocks=(BlockRun(block=WINDOWED, count=3), BlockRun(block=BLOCK, count=1)),
    norm=NormKind.LAYER,
    patch_channels=CHANNELS,
    merged=MERGED,
    patch_bias=True,
    positions=100,
    deepstack=2,
)
MODEL = replace(small_model(hidden=TEXT), vision=VISION)


def ops(
    model: ModelSpec = MODEL, strategy: str = "mtp", recompute: str = "none", images: int = IMAGES, **degrees: int
) -> ModelOps:
    ranks = degrees.get("tp", 1) * degrees.get("cp", 1)
    settings = job(world_size=ranks, images=images, image_patches=PATCHES)
    return written(model, settings, strategy, Layout.of(ranks, micro_batch=BATCH, **degrees), recompute)


def of_tower(part: tuple[Op, ...], kind: type[Op] = BatchedGemm) -> dict[str, float]:
    flops: dict[str, float] = {}
    for op in part:
        if isinstance(op, kind) and isinstance(op, (BatchedGemm, Attention)):
            flops[op.name] = flops.get(op.name, 0.0) + float(op.flops[0])
    return flops


@pytest.mark.parametrize(
    ("outer", "says", "text", "parameters"),
    [
        ("qwen2_5_vl", {"hidden_size": 1280}, 3584, 676_550_144),
        ("qwen3_vl", {}, 4096, 576_388_336),
        (
            "qwen3_vl",
            {"hidden_size": 1024, "depth": 24, "intermediate_size": 4096, "deepstack_visual_indexes": [5, 11, 17]},
            2560,
            415_347_712,
        ),
    ],
)
def test_towers_have_the_parameters_that_transformers_counts(
    outer: str, says: dict[str, object], text: int, parameters: int
) -> None:
    """transformers 5.24 on the meta device: parameters of ``visual``, of Qwen2.5-VL-7B, of Qwen3-VL-8B and 4B."""
    vision = read_vision(Section(where="test", name="", values={"vision_config": says}), outer)
    assert vision is not None
    assert vision_parameters(vision, text) == parameters


def test_windows_of_qwen_2_5_vl_are_squares_of_pixels() -> None:
    says = {"vision_config": {"hidden_size": 1280, "depth": 4, "fullatt_block_indexes": [2], "window_size": 56}}
    vision = read_vision(Section(where="test", name="", values=says), "qwen2_5_vl")
    assert vision is not None
    assert [(run.count, run.block.mixer.chunk) for run in vision.blocks] == [(2, 16), (1, None), (1, 16)]
    assert read_vision(Section(where="test", name="", values=says), "gemma3") is None
    with pytest.raises(ConfigError, match="window_size"):
        read_vision(Section(where="test", name="", values={"vision_config": {"window_size": 13}}), "qwen2_5_vl")
    with pytest.raises(ConfigError, match="num_heads"):
        read_vision(Section(where="test", name="", values={"vision_config": {"num_heads": 7}}), "qwen3_vl")


def test_the_first_stage_holds_the_tower() -> None:
    with_tower, without = (
        sum(int(op.parameters[0]) for op in ops(images=images).embedding.forward) for images in (IMAGES, 0)
    )
    assert with_tower - without == vision_parameters(VISION, TEXT)


def test_products() -> None:
    """2 x rows x inputs x outputs of each, in four blocks and three mergers; patches' product passes nothing back."""
    wide, tokens = H * MERGED, ROWS // MERGED
    expected = {
        "vision.patches": ROWS * CHANNELS * H,
        "attention.qkv": 4 * ROWS * H * 3 * H,
        "attention.out": 4 * ROWS * H * H,
        "mlp.up": 4 * ROWS * H * FFN,
        "mlp.down": 4 * ROWS * FFN * H,
        "vision.up": 3 * tokens * wide * wide,
        "vision.down": 3 * tokens * wide * TEXT,
    }
    first = ops().embedding
    assert of_tower(first.forward) == {name: 2.0 * flops for name, flops in expected.items()}
    backward = of_tower(first.backward)
    assert backward.pop("vision.patches") == 2.0 * expected["vision.patches"]
    assert backward == {name: 4.0 * flops for name, flops in expected.items() if name in backward}
    # what a step counts of the model's FLOPs, for one sequence of the micro-batch
    counted = [one for one in products(MODEL, job(images=IMAGES, image_patches=PATCHES)) if one.op.name in expected]
    seen = sum(one.forward_flops for one in counted if one.op.module is Module.VISION)
    assert seen == sum(2.0 * flops for name, flops in expected.items() if name.startswith("vision")) / BATCH
    without = sum(one.forward_flops for one in products(MODEL, job()))
    cores = 4 * HEADS * IMAGES * PATCHES * 32 * (3 * 64 + PATCHES)
    whole = sum(one.forward_flops for one in products(MODEL, job(images=IMAGES, image_patches=PATCHES)))
    assert whole - without == sum(2.0 * flops for flops in expected.values()) / BATCH + cores


def test_patches_see_their_image_or_their_window() -> None:
    calls = [op for op in ops().embedding.forward if isinstance(op, Attention)]
    assert [(op.mask, int(op.batch[0]), int(op.q_len[0]), int(op.kv_len[0]), op.repeat) for op in calls] == [
        ("full", BATCH * IMAGES * PATCHES // 64, 64, 64, 3),
        ("full", BATCH * IMAGES, PATCHES, PATCHES, 1),
    ]


def test_ranks_of_cp_see_their_share_of_the_images_and_gather_the_tokens() -> None:
    first = ops(cp=2).embedding
    assert of_tower(first.forward)["mlp.up"] == of_tower(ops().embedding.forward)["mlp.up"] / 2
    sent = [
        (op.phase, op.collective, float(op.size_bytes[0]))
        for op in (*first.forward, *first.backward)
        if isinstance(op, Comm) and op.axis is Axis.CP
    ]
    size = 3 * 2.0 * ROWS // MERGED * TEXT
    assert sent == [(Phase.FORWARD, Collective.ALL_GATHER, size), (Phase.INPUT_GRAD, Collective.REDUCE_SCATTER, size)]


@pytest.mark.parametrize("cp", [1, 2])
def test_tokens_are_added_to_the_embedding_and_behind_the_first_layers(cp: int) -> None:
    """Two read and one written, by each merger; on every rank of cp all of them."""
    (added,) = [op for op in ops(cp=cp).embedding.forward if op.name == "vision.residual"]
    assert isinstance(added, MemoryBound)
    assert float(bytes_moved(added)[0]) == 3 * 3 * 2.0 * ROWS // MERGED * TEXT


@pytest.mark.parametrize("strategy", ["mtp", "fsp"])
def test_tokens_of_the_tower_are_whole_on_every_rank_of_tp(strategy: str) -> None:
    """Megatron-Bridge transformer_config.py: sequence_parallel = False."""
    first = ops(strategy=strategy, tp=2).embedding
    reduced = [op for op in first.forward if isinstance(op, Comm) and op.module in (Module.ATTENTION, Module.MLP)]
    assert {(op.collective, float(op.size_bytes[0])) for op in reduced} == {(Collective.ALL_REDUCE, 2.0 * ROWS * H)}
    assert sum(op.repeat for op in reduced) == 2 * 4
    assert of_tower(first.forward)["mlp.up"] == of_tower(ops().embedding.forward)["mlp.up"] / 2
    assert of_tower(first.forward)["vision.up"] == of_tower(ops().embedding.forward)["vision.up"]


def test_every_block_keeps_what_one_does() -> None:
    """A further windowed block keeps, of a patch: the norms' inputs and results, queries, keys, values, output and a statistic
    of each head, what the activation reads and gives."""
    more = replace(VISION, blocks=(BlockRun(block=WINDOWED, count=4), VISION.blocks[1]))
    kept = saved_bytes(ops(replace(MODEL, vision=more)).embedding) - saved_bytes(ops().embedding)
    assert kept == ROWS * (2 * (4 * H + 4 * H + 2 * FFN) + 4 * HEADS)
    again = [saved_bytes(ops(replace(MODEL, vision=one), recompute="full").embedding) for one in (more, VISION)]
    assert again[0] - again[1] == ROWS * 2 * H


def test_a_model_sees_nothing_where_a_job_has_no_images() -> None:
    plain = ops(replace(MODEL, vision=None), images=0).embedding
    assert [op.name for op in ops(images=0).embedding.forward] == [op.name for op in plain.forward]


def test_heads_of_the_tower_are_cut_too() -> None:
    assert MODEL.cut_heads == tuple(sorted({HEADS, *small_model(hidden=TEXT).cut_heads}))


@pytest.mark.parametrize(
    ("says", "key"),
    [
        ({"images": 2}, "image_patches"),
        ({"image_patches": 64}, "image_patches"),
        ({"images": 2, "image_patches": 8192}, "image_patches"),
        ({"images": 2, "image_patches": 64, "adapter_rank": 8}, "images"),
    ],
)
def test_images_that_cannot_be(says: dict[str, int], key: str) -> None:
    check_job(MODEL, job(images=2, image_patches=4096))
    with pytest.raises(ConfigError, match=key):
        check_job(MODEL, job(**says))
    with pytest.raises(ConfigError, match="no vision tower"):
        check_job(small_model(), job(images=2, image_patches=64))
