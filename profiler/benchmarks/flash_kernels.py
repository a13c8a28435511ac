"""Fused attention kernels behind a kernel's name on this GPU.

``flash2`` is FlashAttention-2: the flash-attn package, else torch's own flash kernel. ``flash`` is the best of the
GPU's generation: on Hopper FlashAttention-3 (its package, or through torch where that knows it), on Blackwell
FlashAttention-4 through torch, else cuDNN's on both; FlashAttention-2 on earlier GPUs. Each accepts some shapes only:
heads of 192 for queries and 128 for values (MLA) fit FlashAttention-3 and cuDNN 9.11 on Hopper and Blackwell, heads of
192 throughout fit FlashAttention-2 but not cuDNN (PyTorch, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp,
check_cudnn_tensor_shapes and check_head_dim_size_flash). So a name means the first of a list that accepts a case.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from torch.nn import attention

from profiler.benchmarks.launched import ErrorCapture
from profiler.benchmarks.optional_packages import optional_package
from profiler.benchmarks.transformer_engine import package_on, release
from profiler.device import Device

GENERATION = {9: "FA3", 10: "FA4"}
"""torch's name for the flash kernel written for a compute capability."""

FLASH2, CUDNN, EFFICIENT, TE = "flash2", "cudnn", "efficient", "te"

PACKED_MASKS = ("varlen", "window")
"""Masks that only flash kernels run, torch's through its packed attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashKernel:
    """One kernel: ``package`` with flash-attn's functions (of ``backend`` te: Transformer Engine), or torch restricted
    to ``backend`` (flash2, cudnn or efficient), with its flash kernel replaced by ``generation``."""

    package: ModuleType | None = None
    backend: str = FLASH2
    generation: str = ""

    @property
    def name(self) -> str:
        """Returns the name for the sample."""
        if self.backend == TE:
            return f"{release()} DotProductAttention"
        if self.package is not None:
            return f"{self.package.__name__} {getattr(self.package, '__version__', '')}".strip()
        # torch calls its own FlashAttention-2 kernel flash.
        label = "flash" if self.backend == FLASH2 else self.backend
        return f"torch scaled_dot_product_attention {self.generation or label}"

    def takes(self, mask: str) -> bool:
        """Returns whether it runs such a mask."""
        return mask not in PACKED_MASKS or self.backend == FLASH2


def candidates(kernel: str, mask: str, device: Device) -> list[FlashKernel]:
    """Returns the kernels that may run as ``kernel`` (flash, flash2, cudnn or te), the best first."""
    if kernel == TE:
        package = package_on(device)
        return [] if package is None else [FlashKernel(package=package, backend=TE)]
    if kernel == CUDNN or device.kind != "cuda":
        return [FlashKernel(backend=CUDNN if kernel == CUDNN else FLASH2)]
    second = FlashKernel(package=flash_package("flash_attn"))
    if kernel == FLASH2:
        return [second]
    major = device.capability[0]
    # On Hopper and Blackwell cuDNN's kernel is newer than FlashAttention-2; before them it is slower.
    others = [FlashKernel(backend=CUDNN), second] if major in GENERATION else [second, FlashKernel(backend=CUDNN)]
    listed = [*generation_kernels(major), *others, FlashKernel(backend=EFFICIENT)]
    return [one for one in listed if one.takes(mask)]


def flash_package(name: str) -> ModuleType | None:
    """Returns a flash-attn package; None for the empty parent package that FlashAttention-4 (flash_attn.cute) leaves
    under the name of FlashAttention-2 where it is installed alone."""
    package = optional_package(name)
    return package if hasattr(package, "flash_attn_func") else None


def generation_kernels(major: int) -> list[FlashKernel]:
    """Returns the installed flash kernels written for this compute capability."""
    # The package of FlashAttention-3 is for Hopper alone.
    third = flash_package("flash_attn_interface") if major == 9 else None
    if third is not None:
        return [FlashKernel(package=third)]
    generation = GENERATION.get(major, "")
    return [FlashKernel(generation=generation)] if generation and activate_generation(generation) else []


def use_kernel(one: FlashKernel) -> None:
    """Replaces torch's flash kernel by this one."""
    restore_torch_kernel()
    if one.generation:
        activate_generation(one.generation)


def activate_generation(generation: str) -> bool:
    """Makes torch run its flash attention by this generation (since 2.11); returns False if it cannot."""
    # torch before 2.11 has none of these functions.
    activate: Callable[[str], None] | None = getattr(attention, "activate_flash_attention_impl", None)
    implementations: Callable[[], list[str]] | None = getattr(attention, "list_flash_attention_impls", None)
    if activate is None or implementations is None or generation not in implementations():
        return False
    # torch imports the package that has it, which may fail by any error.
    with ErrorCapture() as capture:
        activate(generation)
    return capture.problem is None


def restore_torch_kernel() -> None:
    """Restores torch's own flash kernel."""
    restore: Callable[[], None] | None = getattr(attention, "restore_flash_attention_impl", None)
    current: Callable[[], str | None] | None = getattr(attention, "current_flash_attention_impl", None)
    if restore is not None and current is not None and current() is not None:
        restore()
