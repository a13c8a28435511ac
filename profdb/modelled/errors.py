"""How far each family's model is from measurements: relative standard errors beside the models."""

from profdb.cases import Family
from profdb.modelled import attention, collective_ring_tree, gemm, host, memory_bound, optimizer

MODEL_ERROR: dict[Family, float] = {
    Family.GEMM: gemm.RELATIVE_STD,
    Family.GROUPED_GEMM: gemm.RELATIVE_STD,
    Family.ATTENTION: attention.RELATIVE_STD,
    Family.MEMORY_BOUND: memory_bound.RELATIVE_STD,
    Family.OPTIMIZER: optimizer.RELATIVE_STD,
    Family.COLLECTIVE: collective_ring_tree.RELATIVE_STD,
    Family.HOST: host.RELATIVE_STD,
}
