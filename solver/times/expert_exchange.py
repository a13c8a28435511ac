"""The time of an exchange that sends a token once to each place that holds one of its experts.

Source: DeepSeek-V3 (arXiv 2412.19437 sec. 3.2.2) and DeepEP: a token crosses the network once for each
domain, to the rank of the same number there, which passes it on over the scale-up links to each rank that
wants it; both run at the same time, in one kernel.
"""

import numpy as np

from ops.experts.routing import places_visited
from ops.groups import Group
from ops.op import Comm
from profdb.curvebook import Book
from profdb.lookup.priced import Priced
from profdb.lookup.queries import CollectiveQuery
from spec.arrays import FloatArray, IntArray
from spec.dtypes import dtype_bytes


def exchanged(book: Book, op: Comm, group: Group) -> Priced:
    """The slower of the exchange inside domains and the one between them, for N groups.

    Inside, a rank hands on what arrives for its domain, ``op.size_bytes`` in all; between domains
    it exchanges each token once with every domain that wants it.
    """
    one = np.ones_like(group.ranks)
    inside = book.collective_s(
        _query(op, np.where(group.intra > 1, op.size_bytes, 0), group.intra, one, group.siblings)
    )
    between = book.collective_s(
        _query(op, _between_bytes(op, group), one, group.inter, group.siblings * group.intra)
    )
    slower = between.seconds > inside.seconds
    return Priced(
        seconds=np.where(slower, between.seconds, inside.seconds),
        relative_std=np.where(slower, between.relative_std, inside.relative_std),
        origin=np.where(slower, between.origin, inside.origin),
    )


def _between_bytes(op: Comm, group: Group) -> IntArray:
    """Bytes one rank exchanges with the other domains, its own part included as in any all-to-all."""
    if op.routed is None:
        raise ValueError("an exchange of tokens without its routing")
    visits = places_visited(group.inter, op.routed.routing)
    size: FloatArray = op.routed.elements * visits * dtype_bytes(op.dtype)
    return np.where(group.inter > 1, size, 0.0).astype(np.int64)


def _query(
    op: Comm, size_bytes: IntArray, intra: IntArray, inter: IntArray, siblings: IntArray
) -> CollectiveQuery:
    return CollectiveQuery(
        collective=op.collective, size_bytes=size_bytes, intra=intra, inter=inter, siblings=siblings
    )
