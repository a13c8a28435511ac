"""The time of one operation: a question to the book of times, whatever kind of operation it is."""

from dataclasses import dataclass, replace

import numpy as np

from ops.groups import Group, group_of, neighbours
from ops.layout import Layout
from ops.op import Attention, Axis, BatchedGemm, Comm, GroupedGemm, MemoryBound, Op, Update
from profdb.curvebook import Book
from profdb.priced import Priced
from profdb.queries import (
    AttentionQuery,
    CollectiveQuery,
    GroupedLinearQuery,
    LinearQuery,
    MemoryBoundQuery,
    OptimizerQuery,
    P2PQuery,
)
from spec.arrays import FloatArray, IntArray
from spec.attention_generations import GENERATIONS, slowdown
from spec.cluster import ClusterSpec
from spec.collectives import Collective
from spec.origin import Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOp:
    """An operation with its time for N rows; ``part`` and ``family`` say where it is added."""

    op: Op
    part: str
    family: str
    seconds: FloatArray
    relative_std: FloatArray
    origin: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricer:
    """A book of times, the scale-up domain that decides where collectives run, and what a training
    step does to the times of its parts: ``training_rate_ratio`` (spec.cluster.GpuSpec) and ``taken``, the
    share of multiprocessors that a collective occupies.
    """

    book: Book
    domain_ranks: int
    training_rate_ratio: float = 1.0
    taken: float = 0.0
    architecture: str = ""

    @staticmethod
    def on(cluster: ClusterSpec, book: Book) -> "Pricer":
        """A pricer for a cluster's domains, clocks under load, and multiprocessors."""
        return Pricer(
            book=book,
            domain_ranks=cluster.scale_up_ranks,
            training_rate_ratio=cluster.gpu.training_rate_ratio,
            taken=min(COLLECTIVE_BLOCKS / cluster.gpu.num_sms, 0.5),
            architecture=cluster.gpu.architecture,
        )

    def time(self, op: Op, layout: Layout) -> TimedOp:
        """Price one operation for every row of ``layout``."""
        part, family, priced = self._ask(op, layout)
        rows = len(layout)
        rate = self.training_rate_ratio if part in COMPUTE_BOUND else 1.0
        return TimedOp(
            op=op,
            part=part,
            family=family,
            seconds=np.broadcast_to(priced.seconds, (rows,)) * op.repeat / rate,
            relative_std=np.broadcast_to(priced.relative_std, (rows,)),
            origin=np.broadcast_to(priced.origin, (rows,)),
        )

    def hop(self, layout: Layout, size_bytes: IntArray) -> Priced:
        """One activation from a pipeline stage to the next."""
        return self._neighbours(group_of(Axis.PP, layout, self.domain_ranks), size_bytes)

    def _neighbours(self, group: Group, size_bytes: IntArray) -> Priced:
        """A message from every member of a group to the next one, all at once."""
        pair = neighbours(group, self.domain_ranks)
        return self.book.p2p_s(
            P2PQuery(
                size_bytes=np.where(group.ranks > 1, size_bytes, 0),
                intra=pair.intra,
                inter=pair.inter,
                siblings=pair.siblings,
            )
        )

    def _ask(self, op: Op, layout: Layout) -> tuple[str, str, Priced]:
        if isinstance(op, BatchedGemm):
            return "gemm", f"gemm {op.layout}", self.book.linear_s(_linear_query(op))
        if isinstance(op, GroupedGemm):
            query = GroupedLinearQuery(
                groups=op.groups,
                m=op.m,
                k=op.k,
                n=op.n,
                layout=op.layout,
                dtype=op.dtype,
                scale_recipe=op.scale_recipe,
            )
            return "grouped_gemm", "grouped_gemm", self.book.grouped_linear_s(query)
        if isinstance(op, Attention):
            return "attention", f"attention {op.direction}", self._attention(op)
        if isinstance(op, MemoryBound):
            return "memory_bound", "memory_bound", self.book.memory_bound_s(_kernel_query(op))
        if isinstance(op, Update):
            query_update = OptimizerQuery(elements=op.elements)
            return "optimizer", "optimizer", self.book.optimizer_s(query_update)
        if isinstance(op, Comm):
            return self._ask_collective(op, layout)
        raise TypeError(f"no price for {type(op).__name__}")

    def _attention(self, op: Attention) -> Priced:
        """An older flash kernel is the best one's time restated by the published ratio of the two."""
        if op.kernel not in GENERATIONS[1:]:
            return self.book.attention_s(_attention_query(op))
        ratio = slowdown(op.kernel, op.direction, self.architecture)
        best = self.book.attention_s(_attention_query(replace(op, kernel=GENERATIONS[0])))
        origin = np.where(best.origin == int(Origin.MEASURED), int(Origin.TRANSFERRED), best.origin)
        return Priced(seconds=best.seconds * ratio, relative_std=best.relative_std, origin=origin)

    def _ask_collective(self, op: Comm, layout: Layout) -> tuple[str, str, Priced]:
        group = group_of(op.axis, layout, self.domain_ranks)
        if op.collective is Collective.P2P:
            return COMM_PART[op.axis], "p2p", self._neighbours(group, op.size_bytes)
        query = CollectiveQuery(
            collective=op.collective,
            size_bytes=np.where(group.ranks > 1, op.size_bytes, 0),
            intra=group.intra,
            inter=group.inter,
            siblings=group.siblings,
        )
        return COMM_PART[op.axis], f"{op.collective.value}", self.book.collective_s(query)


COMPUTE_BOUND = ("gemm", "grouped_gemm", "attention")
# NCCL's channels inside a node on NVSwitch: 16 thread blocks with NVLS and for point-to-point, 24 for
# rings of 12 NVLinks (src/graph/search.cc, src/transport/nvls.cc); one figure for all.
COLLECTIVE_BLOCKS = 20

COMM_PART: dict[Axis, str] = {
    Axis.TP: "tp_comm",
    Axis.CP: "cp_comm",
    Axis.EP: "ep_comm",
    Axis.ETP: "ep_comm",
    Axis.WP: "wp_comm",
    Axis.DP: "dp_comm",
    Axis.DP_CP: "dp_comm",
    Axis.EDP: "dp_comm",
    Axis.WDP: "dp_comm",
    Axis.ZERO_SHARD: "dp_comm",
    Axis.ZERO_REPLICATE: "dp_comm",
    Axis.EMBEDDING: "dp_comm",
}


def _linear_query(op: BatchedGemm) -> LinearQuery:
    return LinearQuery(
        batch=op.batch,
        m=op.m,
        k=op.k,
        n=op.n,
        layout=op.layout,
        dtype=op.dtype,
        scale_recipe=op.scale_recipe,
        bias=op.bias,
    )


def _attention_query(op: Attention) -> AttentionQuery:
    return AttentionQuery(
        batch=op.batch,
        q_len=op.q_len,
        kv_len=op.kv_len,
        heads=op.heads,
        kv_heads=op.kv_heads,
        qk_dim=op.qk_dim,
        v_dim=op.v_dim,
        mask=op.mask,
        window=op.window,
        direction=op.direction,
        kernel=op.kernel,
        dtype=op.dtype,
    )


def _kernel_query(op: MemoryBound) -> MemoryBoundQuery:
    return MemoryBoundQuery(
        kernel=op.kernel,
        direction="backward" if op.backward else "forward",
        rows=op.rows,
        width=op.width,
        dtype=op.dtype,
    )


def nothing(rows: int) -> Priced:
    """No time at all, which is a fact and not a guess."""
    return Priced(
        seconds=np.zeros(rows),
        relative_std=np.zeros(rows),
        origin=np.full(rows, int(Origin.DERIVED), dtype=np.int64),
    )
