"""Reading architectures: the shipped files, every way to get one wrong, and one that somebody adds."""

import re
import shutil
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from statistics import geometric_mean

import pytest

from profdb.modelled.cost_model import ModelledCostModel
from profdb.modelled.network.links import OWN_CHUNK
from profdb.queries import AttentionQuery, CollectiveQuery, LinearQuery
from spec.arrays import ints
from spec.cluster.cluster import OperandReads
from spec.cluster.reader import ARCHITECTURE_FOLDER, CLUSTER_FOLDER, architecture_names, read_architecture, read_cluster
from spec.collectives import Collective
from spec.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
HOPPER = (ROOT / ARCHITECTURE_FOLDER / "hopper.toml").read_text(encoding="utf-8")


def project(tmp_path: Path, hopper: str) -> Path:
    """A project folder somewhere else, with the sheets and an architecture "made_up" in place of H100's."""
    for folder in (CLUSTER_FOLDER, ARCHITECTURE_FOLDER):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / ARCHITECTURE_FOLDER / "made_up.toml").write_text(hopper, encoding="utf-8")
    sheet = tmp_path / CLUSTER_FOLDER / "h100-sxm.toml"
    sheet.write_text(sheet.read_text().replace('architecture = "hopper"', 'architecture = "made_up"'))
    return tmp_path


# Of other makers (AMD's MFMA reads registers; Huawei's cube unit its own buffers, HPCA 2021): PyTorch,
# ScaledBlas.cpp, for gfx942 and gfx950; a 910B has no fp8.
OTHERS = {
    "cdna3": (OperandReads.WARP, (("tensor", "row"), (), True)),
    "cdna4": (OperandReads.WARP_GROUP, (("tensor", "row", "mx"), (), True)),
    "davinci": (OperandReads.ONCE, None),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_nvidia_s_alone_is_off_elsewhere(name: str) -> None:
    """Neither NCCL's constants (NVLS among them) nor FlashAttention-2's rates, and no faster generation of it."""
    read = read_architecture(name, root=ROOT)
    reads, fp8 = OTHERS[name]
    assert (read.operand_reads, astuple(read.fp8) if read.fp8 else None) == (reads, fp8)
    assert (read.nccl, read.flash2, read.wide_tiles, read.static_tiles) == (None, None, (), False)
    assert set(read.best_over_flash2.values()) == {1.0}
    # AMD's are CUDA's, translated (PyTorch tools/amd_build)
    assert read.own_elementwise is (name == "davinci")


def test_fp8_attention_takes_what_cudnn_was_measured_to_take() -> None:
    """cudnn-frontend be6c079, causal, 8,192, 16,384 and 32,768 tokens, ms in fp8 and bf16: B200, then GB300;
    50c8aeb: H200.
    """
    measured: dict[str, dict[str, tuple[list[float], list[float]]]] = {
        "blackwell": {
            "forward": ([1.464, 5.197, 19.751, 1.060, 3.881, 14.961], [1.589, 5.962, 23.228, 1.281, 4.791, 18.68]),
            "backward": ([4.382, 14.964, 55.593, 3.632, 12.595, 46.779], [5.526, 19.094, 74.527, 4.778, 17.037, 65.15]),
        },
        "hopper": {
            "forward": ([1.141, 4.357, 16.884], [1.708, 6.531, 25.566]),
            "backward": ([6.392, 29.422, 118.729], [5.083, 19.002, 75.688]),
        },
    }
    for name in architecture_names(ROOT):
        stated = read_architecture(name, root=ROOT).fp8_attention
        assert (stated is None) is (name not in measured)
        for direction, (narrow, wide) in measured.get(name, {}).items():
            assert stated[direction] == pytest.approx(geometric_mean(narrow) / geometric_mean(wide), abs=0.005)


def test_flash_attention_2_runs_as_published_where_it_is() -> None:
    stated = {name: read_architecture(name, root=ROOT).flash2 for name in architecture_names(ROOT)}
    assert [name for name, rates in stated.items() if rates] == ["ampere", "hopper"]
    # The GPUs that they were taken on (arXiv 2307.08691 sec. 4.1, arXiv 2407.08608), and 73 % of the first one's peak.
    ampere, hopper = stated["ampere"], stated["hopper"]
    gpus = [read_cluster(name, root=ROOT).gpu for name in ("a100-sxm-80g", "h100-sxm")]
    assert ampere.forward == pytest.approx(0.73 * gpus[0].peak_flops["bf16"])
    assert gpus[0].peak_flops["bf16"] == ampere.gpu_flops
    assert gpus[1].sustained_flops["bf16"] == hopper.gpu_flops
    assert [gpu.num_sms for gpu in gpus] == [ampere.num_sms, hopper.num_sms]


def test_a_processor_has_neither_tensor_cores_nor_nccl() -> None:
    read = read_architecture("cpu", root=ROOT)
    assert (read.fp8, read.flash2, read.nccl, read.wide_tiles) == (None, None, None, ())
    assert tuple(read.best_over_flash2.values()) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('operand_reads = "warp_group"', 'operand_reads = "thread"', "tensor_cores.operand_reads = 'thread': one of"),
        ("asynchronous = true", "asynchronous = 1", "tensor_cores.asynchronous = 1: True or False"),
        ("asynchronous = true", "asynchronous = true\nwide_tiles = [[256, 100]]", "tensor_cores.wide_tiles"),
        ("asynchronous = true", "asynchronous = true\nwide_tiles = [256]", "tensor_cores.wide_tiles"),
        ("asynchronous = true", "asynchronous = true\ntiles = []", "tensor_cores.tiles = "),
        ('"block"]', '"bricks"]', "fp8.scales = '<list of 3>': a list of tensor, row, block, mx"),
        ("transposed_copies = true", "", "fp8.transposed_copies = None: required"),
        ("forward = 1.75", "forward = 0.5", "flash_attention.best_over_flash2.forward = 0.5: a number from 1 to 10"),
        ("forward = 370e12", "forward = 370", "flash_attention.flash2.forward = 370: a number from 1e+12"),
        ("num_sms = 132", "num_sms = 0", "flash_attention.flash2.num_sms = 0: a whole number"),
        ("nvlink_share = 0.824", "nvlink_share = 20.6", "nccl.nvlink_share = 20.6: a number from 0.1 to 1"),
        ("ll_max_rate = 141.0e9", "ll_max_rate = 141", "nccl.ll_max_rate = 141: a number from 1e+09"),
        ("gathers_plateau = false", "gathers_plateau = false\nspeed = 1", "nccl.speed = 1: unknown key"),
        ("[nccl]", "[ncc]", "ncc = '<dict of 5>': unknown key"),
        ('"tensor_cores.asynchronous" =', '"tensor_cores" =', "nothing"),
        ('"fp8" =', '"fp9" =', "sources.'fp8.scales' = None: where this figure comes from"),
        ('"fp8" =', '"fp9" = "x"\n"fp8" =', "sources.'fp9' = 'fp9': the key of a figure"),
        ('"fp8" =', '"sources" = "x"\n"fp8" =', "sources.'sources' = 'sources': the key of a figure"),
        ("[sources]", "[sources", "TOML (Expected"),
    ],
)  # fmt: skip
def test_a_bad_file_is_one_clear_error(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in HOPPER
    root = project(tmp_path, HOPPER.replace(old, new, 1))
    if says == "nothing":  # a source for the table around it
        assert read_architecture("made_up", root=root).asynchronous_products
        return
    with pytest.raises(ConfigError, match=re.escape(says)) as caught:
        read_cluster("h100-sxm", root=root)
    assert "made_up.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_architecture_lists_the_known_ones(tmp_path: Path) -> None:
    root = project(tmp_path, HOPPER)
    (root / ARCHITECTURE_FOLDER / "made_up.toml").unlink()
    known = ", ".join(architecture_names(ROOT))
    with pytest.raises(ConfigError, match=rf"gpu.architecture = 'made_up': one of {known}"):
        read_cluster("h100-sxm", root=root)
    with pytest.raises(ConfigError, match=r"architecture: name = 'kepler': one of ada"):
        read_architecture("kepler", root=root)
    with pytest.raises(ConfigError, match="a file under"):
        read_architecture("kepler", root=tmp_path / "configs")


Price = Callable[[ModelledCostModel], float]


def gathered(size_bytes: float) -> Price:
    query = CollectiveQuery(
        collective=Collective.ALL_GATHER, size_bytes=ints(size_bytes), intra=ints(8), inter=ints(1), siblings=ints(1)
    )
    return lambda cost_model: float(cost_model.collective_s(query).seconds[0])


def price_on(cluster: str, price: Price, root: Path) -> float:
    return price(ModelledCostModel(cluster=read_cluster(cluster, root=root)))


def product(cost_model: ModelledCostModel) -> float:
    return float(cost_model.linear_s(LinearQuery(m=ints(8192), k=ints(8192), n=ints(8192))).seconds[0])


def attention(cost_model: ModelledCostModel) -> float:
    tokens, heads, width = ints(4096), ints(32), ints(128)
    query = AttentionQuery(
        batch=ints(1), q_len=tokens, kv_len=tokens, heads=heads, kv_heads=heads, qk_dim=width, v_dim=width
    )
    return float(cost_model.attention_s(query).seconds[0])


@pytest.mark.parametrize(
    ("old", "new", "price", "expected"),
    [
        # Ring/Simple: all but the latency of a base and seven hops (8.4 + 7 x 3.4 us) goes with the links' rate.
        ("nvlink_share = 0.824", "nvlink_share = 0.412", gathered(2**30), lambda before: 2.0 * before - 32.2e-6),
        # Ring/LL: seven steps of an eighth and the own chunk, at the cap.
        (
            "ll_max_rate = 141.0e9",
            "ll_max_rate = 10e9",
            gathered(2**14),
            lambda before: before + 2**14 / 8 * (7 + OWN_CHUNK) * (1 / 10e9 - 1 / 141e9),
        ),
    ],
)  # fmt: skip
def test_a_file_that_somebody_adds_prices_as_it_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    old: str,
    new: str,
    price: Price,
    expected: Callable[[float], float],
) -> None:
    monkeypatch.chdir("/")
    before = price_on("h100-sxm", price, ROOT)
    assert price_on("h100-sxm", price, project(tmp_path / "same", HOPPER)) == before
    root = project(tmp_path / "changed", HOPPER.replace(old, new, 1))
    assert price_on("h100-sxm", price, root) == pytest.approx(expected(before), rel=1e-9)
    # A site that borrows the GPU borrows its architecture.
    assert price_on("aws-p5", price, root) != price_on("aws-p5", price, ROOT)


@pytest.mark.parametrize(
    ("old", "new", "price"),
    [
        ('operand_reads = "warp_group"', 'operand_reads = "warp"', product),
        ("asynchronous = true", "asynchronous = false", attention),
    ],
)
def test_tensor_cores_that_wait_or_read_more_are_slower(tmp_path: Path, old: str, new: str, price: Price) -> None:
    root = project(tmp_path, HOPPER.replace(old, new, 1))
    assert 1.05 < price_on("h100-sxm", price, root) / price_on("h100-sxm", price, ROOT) < 2.0


def test_wider_tiles_make_large_products_faster(tmp_path: Path) -> None:
    wide = HOPPER.replace("asynchronous = true", "asynchronous = true\nwide_tiles = [[256, 256]]")
    root = project(tmp_path, wide.replace("[sources]", '[sources]\n"tensor_cores.wide_tiles" = "made up"'))
    assert price_on("h100-sxm", product, root) < price_on("h100-sxm", product, ROOT)
