"""What settings of adapters must have between them and in the model, told before anything is priced."""

from dataclasses import fields, replace

from ops.adapters import ADAPTED
from ops.block import model_ops
from ops.layout import Layout
from ops.recompute import Recompute
from ops.roles import OpKey, Role
from spec.errors import ConfigError
from spec.job import JobSpec
from spec.model import ModelSpec

OF_ADAPTERS = ("adapted", "adapter_dropout", "adapter_dtype", "adapter_code")


def check_adapters(model: ModelSpec, job: JobSpec) -> None:
    """Raise ConfigError for frozen weights without an adapter, for settings of adapters where there are none,
    and for an adapter that no product of the model gets or that two names give it."""
    if not job.adapter_rank:
        if job.precision.frozen:
            raise _error(
                "precision.frozen", job.precision.frozen, "frozen weights need adapters: adapter_rank above 0"
            )
        for one in fields(JobSpec):
            said = getattr(job, one.name)
            if one.name in OF_ADAPTERS and said != one.default:
                shown = "+".join(sorted(said)) if isinstance(said, frozenset) else str(said)
                raise _error(one.name, shown, "a setting of adapters: beside adapter_rank above 0 alone")
        return
    if not job.adapted or {"qkv", "q_k_v"} <= job.adapted:
        asked = "+".join(sorted(job.adapted)) or "none"
        raise _error("adapted", asked, f"one or more of {', '.join(ADAPTED)}, and of qkv and q_k_v one")
    served = _adapted(model, job)
    for name in sorted(job.adapted):
        if served.isdisjoint(ADAPTED[name]):
            there = [one for one, keys in ADAPTED.items() if not served.isdisjoint(keys)]
            raise _error("adapted", name, f"products that {model.name} has: {', '.join(there) or 'none'}")


def _adapted(model: ModelSpec, job: JobSpec) -> set[OpKey]:
    """The products of the model's layers that get an adapter, of any name."""
    blocks = model_ops(
        model, replace(job, adapted=frozenset(ADAPTED)), Layout.of(1), "mtp", Recompute.NONE
    ).blocks
    return {
        OpKey(op.module, op.serves)
        for block in blocks
        for op in block.forward
        if op.role is Role.ADAPTER_DOWN and op.serves is not None
    }


def _error(key: str, value: str, allowed: str) -> ConfigError:
    return ConfigError(where="--job", key=key, value=value, allowed=allowed)
