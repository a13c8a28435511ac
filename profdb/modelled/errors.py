"""How far each family's model is from measurements: relative standard errors beside the models."""

from profdb.cases import Family
from profdb.modelled import attention, gemm, host, memory_bound, optimizer
from profdb.modelled.network import algorithms

MODEL_ERROR: dict[Family, float] = {
    Family.GEMM: gemm.RELATIVE_STD,
    Family.GROUPED_GEMM: gemm.RELATIVE_STD,
    Family.ATTENTION: attention.RELATIVE_STD,
    Family.MEMORY_BOUND: memory_bound.RELATIVE_STD,
    Family.OPTIMIZER: optimizer.RELATIVE_STD,
    Family.COLLECTIVE: algorithms.RELATIVE_STD,
    Family.HOST: host.RELATIVE_STD,
}
