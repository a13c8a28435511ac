"""The profile that ships: readable, and its curves need no fitting when the main command starts."""

from pathlib import Path

import pytest

from profdb.fitting import stored_curves
from profdb.store.data_file import load_profile

DEFAULT = Path(__file__).resolve().parents[3] / "prof_data" / "data.pt"


@pytest.mark.skipif(not DEFAULT.exists(), reason="prof_data/data.pt is not there")
def test_every_family_has_valid_stored_curves() -> None:
    profile = load_profile(DEFAULT)
    stale = [family.value for family in profile.tables if stored_curves(profile, family) is None]
    assert stale == [], "renew them with: python -m profdb show prof_data/data.pt --refit"
