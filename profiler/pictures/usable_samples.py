"""The samples of a profile that pictures can show: those that were measured or modelled, not failed."""

import numpy as np

from profdb.cases import Family
from profdb.sample import ProfileDatabase
from profdb.store.columns import STATUSES, SampleTable
from spec.arrays import ints


def usable(profile: ProfileDatabase, family: Family) -> SampleTable | None:
    """The family's samples that have trials; None without any."""
    if family not in profile.tables:
        return None
    table = profile.tables[family]
    rows = ints(np.flatnonzero(table.status == STATUSES.index("ok")))
    return table.take(rows) if rows.size else None
