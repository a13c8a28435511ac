"""A GPU is found by every name that a sheet gives it."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from spec.cluster import reader
from spec.cluster.reader import known_clusters, read_cluster, sheet_of_gpu

ROOT = Path(__file__).resolve().parents[3]
NAMED = [
    (name, cluster.gpu.name)
    for cluster in (read_cluster(stem, root=ROOT) for stem in known_clusters(ROOT))
    for name in (cluster.name, cluster.gpu.name, *cluster.gpu.device_names)
]


@pytest.fixture(autouse=True, scope="module")
def each_sheet_is_read_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "read_cluster", cache(read_cluster))
        yield


@pytest.mark.parametrize(("name", "gpu"), NAMED)
def test_every_name_leads_to_its_gpu(name: str, gpu: str) -> None:
    for spelling in (name, name.upper(), f" {name} "):
        found = sheet_of_gpu(spelling, root=ROOT)
        assert found is not None
        assert found.gpu.name == gpu


def test_of_several_sheets_the_one_with_the_table_answers() -> None:
    found = sheet_of_gpu("H100-SXM-80GB", root=ROOT)
    assert found is not None
    assert found.gpu.device_names


def test_an_unknown_name_is_nobodys() -> None:
    assert sheet_of_gpu("Cray-1", root=ROOT) is None


def test_a_sheet_is_called_as_its_file() -> None:
    assert [read_cluster(stem, root=ROOT).name for stem in known_clusters(ROOT)] == list(known_clusters(ROOT))
