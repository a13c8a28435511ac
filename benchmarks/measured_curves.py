"""A folder of measured curves in the generic CSV form (docs/data_format.md), by GPU and by kind."""

from pathlib import Path

import numpy as np
import pandas as pd

from profdb.cases import Family
from profdb.importers.generic_csv import read_curves_csv
from profdb.sample import Sample
from profdb.store.columns import SampleTable
from spec.errors import ProfileError


def read_folder(folder: Path) -> tuple[dict[str, list[Sample]], list[str]]:
    """Samples by GPU of every file in the generic form, and what was passed over."""
    if not folder.is_dir():
        raise ProfileError(f"{folder}: no such folder of curves")
    samples: dict[str, list[Sample]] = {}
    passed_over = []
    for path in sorted(folder.glob("*.csv")):
        try:
            found = read_curves_csv(path)
        except ProfileError as error:
            if "no known form" not in str(error):
                raise
            passed_over.append(path.name)
            continue
        for gpu, members in found.items():
            samples.setdefault(gpu, []).extend(members)
    if not samples:
        raise ProfileError(f"{folder}: no CSV file in the generic form of docs/data_format.md")
    return samples, passed_over


def frame(
    tables: dict[str, dict[Family, SampleTable]], family: Family, labels: dict[str, str]
) -> pd.DataFrame:
    """One family's rows of every GPU: ``gpu``, its numbers, its words, and ``latency_us`` (medians); only
    rows with these ``labels``. Empty when there are none."""
    parts = []
    for gpu, held in sorted(tables.items()):
        if family in held:
            table = held[family]
            columns = {name: np.asarray(column) for name, column in table.numbers.items()}
            columns |= {name: np.asarray(column.labels()) for name, column in table.labels.items()}
            parts.append(pd.DataFrame(columns | {"latency_us": table.medians_s() * 1e6, "gpu": gpu}))
    if not parts:
        return pd.DataFrame({"gpu": []})
    joined = pd.concat(parts, ignore_index=True)
    wanted = np.all([joined[name] == word for name, word in labels.items()], axis=0)
    return joined[wanted] if labels else joined
