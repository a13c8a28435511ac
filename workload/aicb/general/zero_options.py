"""What DeepSpeed is told about ZeRO, and the matrix products beside its traffic."""

from collections.abc import Iterator
from dataclasses import dataclass

from spec.weights import Module
from workload.aicb.general.csv_workload import COMPUTATION, GeneralItem

ELEMENT_BYTES = 2  # bf16 or fp16 parameters and gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroOptions:
    """One training. Sizes are elements; defaults are DeepSpeed's (``DeepSpeedZeroConfig`` of
    runtime/zero/config.py). ``allgather_bucket_size`` None: one all-gather, as DeepSpeed does where torch has
    all_gather_into_tensor (runtime/utils.py ``all_gather_dp_groups``). ``tokens`` of a micro-batch on one
    rank."""

    ranks: int
    stage: int
    num_micro: int
    tokens: int
    epochs: int = 1
    reduce_bucket_size: int = 500_000_000
    allgather_bucket_size: int | None = None
    prefetch_bucket_size: int = 50_000_000
    param_persistence_threshold: int = 100_000
    model_persistence_threshold: int = 2**63 - 1
    max_live_parameters: int = 1_000_000_000
    max_reuse_distance: int = 1_000_000_000
    use_multi_rank_bucket_allreduce: bool = True
    round_robin_gradients: bool = False
    fp16: bool = False
    computation: bool = False

    def padded(self, elements: int) -> int:
        """Elements rounded up to a whole number for every rank."""
        return -(-elements // self.ranks) * self.ranks

    def comm(self, kind: str, elements: int, stage: str, *, dst: int | None = None) -> GeneralItem:
        """A collective over the data-parallel group."""
        return GeneralItem(
            comm_type=kind,
            comm_group="dp_group",
            comm_group_size=self.ranks,
            msg_size=elements * ELEMENT_BYTES,
            stage=stage,
            dst=dst,
        )

    def scalar(self, size_bytes: int, stage: str) -> GeneralItem:
        """A small all-reduce."""
        return GeneralItem(
            comm_type="all_reduce",
            comm_group="dp_group",
            comm_group_size=self.ranks,
            msg_size=size_bytes,
            stage=stage,
        )

    def products(self, module: Module, direction: str) -> Iterator[GeneralItem]:
        """The matrix products of a module: one forward, input and weight gradient backward."""
        if not self.computation or module.name.startswith("embed"):
            return
        for tensor in module.tensors:
            if len(tensor.shape) != 2:
                continue
            outputs, inputs = tensor.shape
            shapes = [((self.tokens, inputs), (inputs, outputs))]
            if direction == "backward":
                shapes = [
                    ((self.tokens, outputs), tensor.shape),
                    ((outputs, self.tokens), (self.tokens, inputs)),
                ]
            for pair in shapes:
                yield GeneralItem(comm_type=COMPUTATION, shapes=pair, stage=f"{direction}.{module.name}")
