"""Headers and rows of SimAI workload files that tests damage in their own ways."""

from workload.simai.format import NO_COMM, SimaiPass, SimaiRow

LONG = (
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 2 vpp: 1 ga: 4 all_gpus: 32 "
    "checkpoints: 0 checkpoint_initiates: 0 pp_comm: 4096"
)
SHORT = "HYBRID_TRANSFORMER_FWD_IN_BCKWD\tmodel_parallel_NPU_group: 8 checkpoints: 0 checkpoint_initiates: 0"
GOOD = "attention_layer\t-1\t10\tALLREDUCE\t8192\t20\tALLTOALL_EP\t4096\t30\tREDUCESCATTER_DP_EP\t4096\t100"


def cell(place: int, value: str) -> str:
    """The good row with one field changed."""
    words = GOOD.split("\t")
    words[place] = value
    return "\t".join(words)


def row(name: str, cells: tuple[int, int, int], *comms: tuple[str, int]) -> SimaiRow:
    """A row of these computations (ns) and collectives, forward, input gradient and weight gradient."""
    made = SimaiRow(name=name)
    for column, compute_ns, (comm, size) in zip(SimaiPass, cells, (*comms, *[(NO_COMM, 0)] * 3), strict=False):
        made = made.with_pass(column, compute_ns=compute_ns, comm=comm, size_bytes=size)
    return made
