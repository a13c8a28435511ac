"""Reading an architecture: configs/architectures/<name>.toml -> ArchitectureSpec.

Every fact of the file has a source, words and flags included. docs/clusters.md shows the form.
"""

from pathlib import Path

from spec.cluster.architecture import (
    ArchitectureSpec,
    Flash2Rates,
    Fp8Products,
    NcclTuning,
    OperandReads,
    UnalignedRates,
)
from spec.cluster.sources import check_sources, facts_of, read_sources
from spec.errors import ConfigError
from spec.section import Section
from spec.text_file import read_toml

ARCHITECTURE_FOLDER = Path("configs") / "architectures"

FP8_SCALES = ("tensor", "row", "block", "mx")
MAX_TILES = 16
TILE_SIDES = range(16, 1025, 16)

# Smallest and largest believable figure and its unit.
FLOPS = (1e12, 1e18, "FLOP/s")
RATE = (1e9, 1e14, "bytes/s")
PER_CLOCK = (1.0, 1e5, "FLOPs a clock and multiprocessor")


def known_architectures(root: Path) -> tuple[str, ...]:
    """Names of the files under ``root``/configs/architectures (file stems), sorted."""
    return tuple(sorted(path.stem for path in (root / ARCHITECTURE_FOLDER).glob("*.toml")))


def read_architecture(name: str, *, root: Path) -> ArchitectureSpec:
    """The architecture of the file ``name``.toml under ``root``/configs/architectures.

    Raises ConfigError for an unknown name (listing the known ones), an unreadable file, a missing or
    unknown key, a wrong type, a figure that nobody would believe, or a fact without a source.
    """
    known = known_architectures(root)
    if name not in known:
        allowed = f"one of {', '.join(known)}" if known else f"a file under {root / ARCHITECTURE_FOLDER}"
        raise ConfigError(where="architecture", key="name", value=name, allowed=allowed)
    top = read_toml(root / ARCHITECTURE_FOLDER / f"{name}.toml")
    sources = read_sources(top)
    tensor_cores = top.section("tensor_cores")
    flash = top.section("flash_attention")
    architecture = ArchitectureSpec(
        name=name,
        operand_reads=OperandReads(
            tensor_cores.choice("operand_reads", [each.value for each in OperandReads])
        ),
        asynchronous_products=tensor_cores.flag("asynchronous"),
        static_tiles=tensor_cores.flag("static_tiles"),
        wide_tiles=_tiles(tensor_cores, "wide_tiles"),
        unaligned=_unaligned(tensor_cores.section("unaligned")) if tensor_cores.has("unaligned") else None,
        best_over_flash2=_ratios(flash.section("best_over_flash2"), 1.0, 10.0),
        softmax_unhidden=flash.measure("softmax_unhidden", 0.0, 1.0)
        if flash.has("softmax_unhidden")
        else None,
        fp8_attention=_ratios(flash.section("fp8"), 0.3, 3.0) if flash.has("fp8") else None,
        flash2=_flash2(flash.section("flash2")) if flash.has("flash2") else None,
        fp8=_fp8(top.section("fp8")) if top.has("fp8") else None,
        nccl=_nccl(top.section("nccl")) if top.has("nccl") else None,
        own_elementwise=_own_elementwise(top.section("elementwise")) if top.has("elementwise") else False,
        sources=sources,
    )
    for section in (tensor_cores, flash, top):
        section.close()
    check_sources(top, sources, facts_of({key: top.values[key] for key in top.values if key != "sources"}))
    return architecture


def _tiles(table: Section, key: str) -> tuple[tuple[int, int], ...]:
    """Pairs of rows and columns; none when the key is absent."""
    value = table.values[key] if table.has(key) else []
    if not isinstance(value, list) or len(value) > MAX_TILES or not all(_is_tile(item) for item in value):
        table.fail(key, f"at most {MAX_TILES} pairs [rows, columns] of multiples of 16 up to 1024")
    return tuple((rows, columns) for rows, columns in value)


def _is_tile(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(type(side) is int and side in TILE_SIDES for side in value)
    )


def _ratios(table: Section, minimum: float, maximum: float) -> dict[str, float]:
    """Time of one kernel over another's, forward and backward."""
    found = {direction: table.measure(direction, minimum, maximum) for direction in ("forward", "backward")}
    table.close()
    return found


def _own_elementwise(table: Section) -> bool:
    own = table.flag("own_kernels")
    table.close()
    return own


def _unaligned(table: Section) -> UnalignedRates:
    rates = UnalignedRates(
        by_one=table.measure("by_one", *PER_CLOCK), by_two=table.measure("by_two", *PER_CLOCK)
    )
    table.close()
    return rates


def _flash2(table: Section) -> Flash2Rates:
    rates = Flash2Rates(
        forward=table.measure("forward", *FLOPS),
        causal_forward=table.measure("causal_forward", *FLOPS),
        backward=table.measure("backward", *FLOPS),
        gpu_flops=table.measure("gpu_flops", *FLOPS),
        num_sms=table.integer("num_sms", maximum=10_000),
        holds_under_load=table.flag("holds_under_load"),
    )
    table.close()
    return rates


def _fp8(table: Section) -> Fp8Products:
    for key in ("scales", "grouped_scales"):
        if not set(table.texts(key)) <= set(FP8_SCALES):
            table.fail(key, f"a list of {', '.join(FP8_SCALES)}")
    fp8 = Fp8Products(
        scales=table.texts("scales"),
        grouped_scales=table.texts("grouped_scales"),
        transposed_copies=table.flag("transposed_copies"),
    )
    table.close()
    return fp8


def _nccl(table: Section) -> NcclTuning:
    tuning = NcclTuning(
        ll_max_rate=table.measure("ll_max_rate", *RATE),
        nvlink_share=table.measure("nvlink_share", 0.1, 1.0),
        nvls_share=table.measure("nvls_share", 0.0, 1.0),
        ring_plateau=table.measure("ring_plateau", 1.0, 10.0),
        gathers_plateau=table.flag("gathers_plateau"),
    )
    table.close()
    return tuning
