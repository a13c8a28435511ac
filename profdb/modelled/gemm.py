"""Matrix products from a hardware spec: roofline with tile and wave quantisation.

A kernel cuts C[m, n] into tiles and gives them to the SMs in waves; each SM loops over k for its tile.
The fastest of the tiles and k-splits below is used, as the library's heuristic would choose it
(cuBLAS; NVIDIA, "Matrix Multiplication Background User's Guide", sections on tile and wave
quantisation). Seconds of one choice:

    launch + fill + max(compute, memory) + OVERLAP_LOSS * min(compute, memory)
    compute = max(waves * tile time, all padded FLOP / sustained FLOP/s)
    tile time = max(MMA time / MMA_EFFICIENCY, shared-memory time) + TILE_CYCLES / clock
    memory = bytes / (DRAM_EFFICIENCY * HBM rate), less when few SMs are busy

The second term of ``compute`` is the power limit: few busy SMs run at the tensor peak, all of them
only at the sustained rate of the hardware spec.

``Fitted:`` constants are shared by every GPU and were fitted to published GEMM timings of A100, H100,
H200 and B200 together (aiconfigurator's TensorRT-LLM tables, bf16, above 1 GFLOP); docs/clusters.md
states their errors.
"""

from dataclasses import dataclass

import numpy as np

from profdb.modelled.rates import flops_rates
from spec.arrays import FloatArray, IntArray
from spec.cluster.cluster import GpuSpec, OperandReads
from spec.dtypes import dtype_bytes

RELATIVE_STD = 0.12  # Fitted: residuals of the same timings

# Tile sizes that cuBLAS and CUTLASS ship (CUTLASS, "Efficient GEMM in CUDA": threadblock tiles) for every
# GPU; an architecture may have wider ones.
TILES = (
    (256, 128),
    (128, 256),
    (192, 128),
    (128, 192),
    (128, 128),
    (256, 64),
    (64, 256),
    (128, 64),
    (64, 128),
    (64, 64),
    (64, 32),
    (32, 128),
    (32, 64),
    (16, 128),
    (16, 64),
)
K_SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
K_STEP = 64

# Bytes per clock and SM of shared memory: CUDA C++ Programming Guide, shared memory: 32 banks of 4.
SHARED_BYTES_PER_CLOCK = 128.0
# A warp reads operands for at most 64 x 64 of the tile (PTX ISA, mma.sync), a warp group for 64 x n (wgmma).
WARP_TILE = 64

LAUNCH_S = 1.3e-6  # Fitted
FILL_CYCLES = 2000.0  # Fitted: first loads and last stores of the kernel
TILE_CYCLES = 2200.0  # Fitted: filling and draining the pipeline of one tile
MMA_EFFICIENCY = 0.9  # Fitted: share of the tensor peak inside a tile
DRAM_EFFICIENCY = 0.84  # Fitted: share of the HBM rate that streaming reaches
OVERLAP_LOSS = 0.12  # Fitted: part of the shorter of compute and memory that is not hidden
BUSY_SHARE = 0.3  # Fitted: share of the SMs that must load to fill the HBM rate
SPLIT_S = 1.8e-6  # Fitted: second pass of a split-k product


@dataclass(frozen=True, slots=True)
class GemmShapes:
    """``batch`` products C[m, n] = A[m, k] B[k, n]; float64 arrays of one length."""

    batch: FloatArray
    m: FloatArray
    k: FloatArray
    n: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Tiles of C and the seconds one SM needs for one element of k; arrays that stand across those of shapes."""

    rows: FloatArray
    columns: FloatArray
    step_s: FloatArray

    def down(self, shapes: GemmShapes) -> FloatArray:
        """Returns the number of tiles along m."""
        return np.asarray(np.ceil(shapes.m / self.rows), dtype=np.float64)

    def across(self, shapes: GemmShapes) -> FloatArray:
        """Returns the number of tiles along n."""
        return np.asarray(np.ceil(shapes.n / self.columns), dtype=np.float64)


def gemm_seconds(gpu: GpuSpec, batch: IntArray, m: IntArray, k: IntArray, n: IntArray, dtype: str) -> FloatArray:
    """Returns the time of ``batch`` products C[m, n] = A[m, k] B[k, n]; 0 where there is nothing to compute.

    Arrays are 1-D int64 of one length. Accumulation is in fp32; the output has 2 bytes per element, or the input's
    width when wider. Raises ConfigError when the hardware spec has no rate for ``dtype``.
    """
    rates = flops_rates(gpu, dtype)
    width = dtype_bytes(dtype)
    tiles = tiles_of(gpu, width, rates.peak)
    sizes = np.asarray((batch, m, k, n), dtype=np.float64)
    best = np.empty(sizes.shape[1])
    # Arrays of all choices for 64 shapes stay in a processor's cache.
    for start in range(0, best.size, 64):
        part = slice(start, start + 64)
        shapes = GemmShapes(*sizes[:, part])
        best[part] = choice_seconds(gpu, shapes, tiles, width, rates.sustained).min(axis=(0, 1))
    return np.where(sizes.prod(axis=0) == 0.0, 0.0, best)


def tiles_of(gpu: GpuSpec, width: float, peak: float) -> Tiles:
    """Returns the tiles of a GPU for elements of ``width`` bytes, arrays of shape (tiles, 1, 1). An SM's step takes as
    long as the products on its tensor cores or the operands through its shared memory, whichever is longer."""
    rows, columns = np.asarray((*gpu.architecture.wide_tiles, *TILES), dtype=np.float64).T[:, :, None, None]
    mma_s = 2.0 * rows * columns / (peak / gpu.num_sms * MMA_EFFICIENCY)
    elements = operand_elements(gpu.architecture.operand_reads, rows, columns)
    shared_s = elements * width / (SHARED_BYTES_PER_CLOCK * gpu.boost_clock_hz)
    return Tiles(rows=rows, columns=columns, step_s=np.maximum(mma_s, shared_s))


def operand_elements(reads: OperandReads, tile_m: FloatArray, tile_n: FloatArray) -> FloatArray:
    """Returns the operand elements of a tile that pass through shared memory per step of k: written once, and read as
    often as the tensor cores fetch them."""
    once = tile_m + tile_n
    if reads is OperandReads.WARP:
        # Synchronous mma: 2 x 2 or more warps, each of which reads the operands of its own part into registers.
        warp_m = np.clip(tile_m // 2, 16, WARP_TILE)
        warp_n = np.clip(tile_n // 2, 8, WARP_TILE)
        return once + (tile_m / warp_m) * (tile_n / warp_n) * (warp_m + warp_n)
    if reads is OperandReads.WARP_GROUP:
        # Warp-group products read B for each group of 64 rows, A once. Later tensor cores (the last return) read
        # either operand once.
        return once + np.maximum(tile_m / WARP_TILE, 1.0) * (WARP_TILE + tile_n)
    return once


def choice_seconds(gpu: GpuSpec, shapes: GemmShapes, tiles: Tiles, width: float, sustained: float) -> FloatArray:
    """Returns the time of every tile and k-split, of shape (tiles, splits, shapes); ``sustained`` in FLOP/s."""
    splits = np.asarray(K_SPLITS, dtype=np.float64)[:, None]
    # Elements of k of one tile, padded to whole steps of the main loop. Padding counts as work, and so does a last
    # wave of few tiles.
    steps = np.ceil(shapes.k / splits / K_STEP) * K_STEP
    number = shapes.batch * tiles.down(shapes) * tiles.across(shapes) * splits
    waves = np.ceil(number / gpu.num_sms)
    compute = waves * (steps * tiles.step_s + TILE_CYCLES / gpu.boost_clock_hz)
    compute = np.maximum(compute, 2.0 * number * tiles.rows * tiles.columns * steps / sustained)
    # Partial sums of a split are fp32, written once and read once.
    partial = np.where(splits > 1, 8.0 * shapes.batch * shapes.m * shapes.n * splits, 0.0)
    # Few SMs cannot keep enough loads in flight to fill the HBM rate.
    busy = np.clip(number / (BUSY_SHARE * gpu.num_sms), 1.0 / gpu.num_sms, 1.0)
    memory = (dram_bytes(gpu, shapes, tiles, width) + partial) / (gpu.memory_bandwidth * DRAM_EFFICIENCY * busy)
    overhead = LAUNCH_S + FILL_CYCLES / gpu.boost_clock_hz + np.where(splits > 1, SPLIT_S, 0.0)
    seconds = overhead + np.maximum(compute, memory) + OVERLAP_LOSS * np.minimum(compute, memory)
    return np.asarray(seconds, dtype=np.float64)


def dram_bytes(gpu: GpuSpec, shapes: GemmShapes, tiles: Tiles, width: float) -> FloatArray:
    """Returns the HBM bytes: each operand once when both fit in L2, else once per wave that needs it.

    A wave covers a near-square patch of the output, so that its operands are shared through L2.
    """
    down, across = np.maximum(tiles.down(shapes), 1.0), np.maximum(tiles.across(shapes), 1.0)
    # The patch of tiles in flight: square in elements, then fitted to the tiles that the output has each way.
    running = np.minimum(down * across, gpu.num_sms)
    patch_down = np.clip(np.sqrt(running * tiles.columns / tiles.rows), 1.0, down)
    patch_across = np.clip(running / patch_down, 1.0, across)
    patch_down = np.clip(running / patch_across, 1.0, down)
    m, k, n = shapes.m, shapes.k, shapes.n
    operands = width * k * (m + n)
    # A passes once for every column of patches, B once for every row of them.
    streamed = width * k * (m * across / patch_across + n * down / patch_down)
    moved = np.where(operands < gpu.l2_bytes, operands, np.maximum(operands, streamed))
    return np.asarray(shapes.batch * (moved + max(width, 2.0) * m * n), dtype=np.float64)
