"""The elementwise kernels around an adapter's two products, as bytes an element moved by each.

peft (tuners/lora/layer.py, Linear.forward): ``result + lora_B(lora_A(dropout(x.to(dtype of A)))) * scaling``,
back in the result's format; every step is a kernel and has one in the backward. On frozen weights of 4 bits
``result`` is cloned first and the adapter's added in place (tuners/lora/bnb.py, Linear4bit). Under
torch.autocast what enters a product is brought back to the products' format, dropped out in A's. FSDP1 shows
A, not gathered yet when its format is asked, in the optimizer's.

Fused (Unsloth's LoRA_QKV and LoRA_W; fms-acceleration, fused_ops/unsloth_lora): B is scaled instead, its
product added in place; the backward has no mask but compares what was dropped out with 0, multiplies, and
adds.

Megatron's adapters (NeMo, parallel_adapters.py, ParallelLinearAdapter.forward; collections/llm/peft/lora.py)
scale and add by a kernel each too.
"""

from dataclasses import dataclass

from spec.dtypes import dtype_bytes
from spec.job import JobSpec

MASK_BYTES = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterPasses:
    """Bytes an element of each kernel: ``into`` A of an element of its input, ``added`` of an element of B's
    result, ``scaled_back`` of that element's gradient, and ``back`` of an element of the input's gradient up
    to its sum with those of the frozen product and of other adapters."""

    into: tuple[float, ...]
    added: tuple[float, ...]
    scaled_back: tuple[float, ...]
    back: tuple[float, ...]


def product_dtype(job: JobSpec) -> str:
    """Format of what an adapter multiplies."""
    return job.precision.compute if job.adapter_code else job.adapter_dtype or job.precision.compute


def adapter_passes(job: JobSpec) -> AdapterPasses:
    """The kernels of one adapter of ``job``."""
    outer = dtype_bytes(job.precision.activation)
    if job.adapter_code == "fused":
        return AdapterPasses(
            into=_dropout(job, outer),
            added=(3 * outer,),
            scaled_back=(),
            back=(outer + MASK_BYTES, 2 * outer + MASK_BYTES, 3 * outer),
        )
    inner = dtype_bytes(job.adapter_dtype or job.precision.activation)
    product = dtype_bytes(product_dtype(job))
    enters, narrows, widens = _cast(outer, inner), _cast(inner, product), _cast(outer, product)
    # peft clones nf4's result (tuners/lora/bnb.py), and not GPTQ's (tuners/lora/gptq.py).
    cloned = (2 * outer,) if job.precision.frozen == "nf4" else ()
    return AdapterPasses(
        into=(*enters, *_dropout(job, inner), *narrows),
        added=(*cloned, 2 * product, outer + product + max(outer, product), *widens),
        scaled_back=(*widens, *widens, 2 * product),
        back=(*narrows, *_dropout(job, inner), *enters, 3 * outer),
    )


def _cast(source: float, target: float) -> tuple[float, ...]:
    """Bytes an element of a cast, which nothing does between equal formats."""
    return (source + target,) if source != target else ()


def _dropout(job: JobSpec, width: float) -> tuple[float, ...]:
    """Bytes an element of a dropout, forward or backward: read, written, and the mask."""
    return (2 * width + MASK_BYTES,) if job.adapter_dropout else ()
