"""What the speed benchmark asks and loads is what it says."""

import numpy as np
import pandas as pd

from benchmarks.speed import LOOKUPS, SAMPLES, SHAPES, TRIALS, enlarged, questions
from tests.profdb.profiles import collective_samples, gemm_samples, profile


def test_a_million_questions_of_few_shapes() -> None:
    for name, query in questions(0).items():
        columns = pd.DataFrame(query.columns())
        assert len(columns) == LOOKUPS, name
        assert SHAPES / 2 < len(columns.drop_duplicates()) <= SHAPES, name


def test_the_large_profile_has_the_trials_it_is_said_to_have() -> None:
    small = profile([*gemm_samples(), *collective_samples()])
    large = enlarged(small, 0)
    assert abs(len(large.samples) - SAMPLES) <= len(small.tables)
    for family, table in large.tables.items():
        assert table.trials_s.size == TRIALS * table.size
        assert family.value in large.fits
        before = small.tables[family]
        first = table.medians_s()[: before.size]
        assert np.allclose(first, before.medians_s(), rtol=0.03)
