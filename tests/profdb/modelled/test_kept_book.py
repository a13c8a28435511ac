"""What is remembered is what the model says, and nothing else is ever believed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import profdb.modelled.kept_book as module
from profdb.lookup.priced import TimeEstimate
from profdb.lookup.queries import AttentionQuery, CollectiveQuery, LinearQuery, P2PQuery
from profdb.modelled.cost_model import ModelledCostModel
from profdb.modelled.kept_book import KeptBook, digest_of
from spec.arrays import ints
from spec.cluster.reader import read_cluster
from spec.collectives import Collective
from spec.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
H100 = read_cluster("h100-sxm", root=ROOT)

QUERIES = {
    "linear_s": LinearQuery(m=ints([512, 512, 4096, 0]), k=1024, n=ints([2048, 2048, 1024, 8])),
    "attention_s": AttentionQuery(
        batch=1, q_len=ints([512, 4096]), kv_len=4096, heads=8, kv_heads=8, qk_dim=128, v_dim=128
    ),
    "collective_s": CollectiveQuery(
        collective=Collective.ALL_GATHER, size_bytes=ints([1 << 20, 1 << 24]), intra=8, inter=2
    ),
    "p2p_s": P2PQuery(size_bytes=1 << 20, intra=1, inter=2),
}


def same(one: TimeEstimate, other: TimeEstimate) -> bool:
    return (
        np.array_equal(one.seconds, other.seconds)
        and np.array_equal(one.relative_std, other.relative_std)
        and np.array_equal(one.origin, other.origin)
    )


def ask(cost_model: Any, name: str) -> TimeEstimate:
    priced: TimeEstimate = getattr(cost_model, name)(QUERIES[name])
    return priced


@pytest.mark.parametrize("name", QUERIES)
def test_answers_are_the_models_asked_once_twice_and_from_the_file(name: str, tmp_path: Path) -> None:
    right = ask(ModelledCostModel(cluster=H100), name)
    cost_model = KeptBook(H100, tmp_path)
    assert same(ask(cost_model, name), right)
    assert same(ask(cost_model, name), right)
    cost_model.keep()
    assert same(ask(KeptBook(H100, tmp_path), name), right)


def test_a_shape_is_modelled_once_and_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = ModelledCostModel.linear_s

    def counted(self: ModelledCostModel, query: LinearQuery) -> TimeEstimate:
        asked.append(query.size)
        return real(self, query)

    monkeypatch.setattr(ModelledCostModel, "linear_s", counted)
    cost_model = KeptBook(H100, tmp_path)
    ask(cost_model, "linear_s")
    cost_model.linear_s(replace(QUERIES["linear_s"], m=ints([512, 512, 4096, 64])))  # type: ignore[arg-type]
    cost_model.keep()
    ask(KeptBook(H100, tmp_path), "linear_s")
    assert asked == [3, 1]


def test_a_question_that_is_refused_is_not_kept(tmp_path: Path) -> None:
    cost_model = KeptBook(H100, tmp_path)
    right = ask(cost_model, "linear_s")
    with pytest.raises(ConfigError, match="fp4"):
        cost_model.linear_s(replace(QUERIES["linear_s"], dtype="fp4"))  # type: ignore[arg-type]
    cost_model.keep()
    assert same(ask(KeptBook(H100, tmp_path), "linear_s"), right)


def test_another_sheet_or_another_source_is_another_file(tmp_path: Path) -> None:
    slower = replace(H100, gpu=replace(H100.gpu, memory_bandwidth=H100.gpu.memory_bandwidth / 2))
    assert digest_of(slower) != digest_of(H100)


@pytest.mark.parametrize("damage", ["text", "cut", "flipped", "empty", "folder", "negative", "pickled"])
def test_a_damaged_file_is_passed_over_and_replaced(damage: str, tmp_path: Path) -> None:
    cost_model = KeptBook(H100, tmp_path)
    right = ask(cost_model, "linear_s")
    cost_model.keep()
    assert cost_model.path is not None
    content = cost_model.path.read_bytes()
    if damage == "folder":
        cost_model.path.unlink()
        cost_model.path.mkdir()
    elif damage == "negative":
        np.savez(cost_model.path, questions=np.array("[]"), rows0=np.zeros((1, 1), np.int64))
        arrays = {"questions": np.array('["x"]'), "rows0": np.zeros((1, 4), np.int64)}
        np.savez(cost_model.path, **arrays, seconds0=-np.ones(1), std0=np.ones(1))
    elif damage == "pickled":
        np.savez(cost_model.path, questions=np.array([{}], dtype=object))
    else:
        middle = len(content) // 2
        cost_model.path.write_bytes(
            {
                "text": b"hello",
                "cut": content[:middle],
                "flipped": content[:middle] + bytes(64) + content[middle + 64 :],
                "empty": b"",
            }[damage]
        )
    fresh = KeptBook(H100, tmp_path)
    assert same(ask(fresh, "linear_s"), right)
    fresh.keep()
    assert same(ask(KeptBook(H100, tmp_path), "linear_s"), right)


@pytest.mark.parametrize("kind", ["none", "below a file", "missing"])
def test_a_folder_that_cannot_be_written_costs_nothing(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = {"none": None, "below a file": tmp_path / "file" / "cache", "missing": tmp_path / "a" / "b"}[
        kind
    ]
    cost_model = KeptBook(H100, folder)
    assert same(ask(cost_model, "linear_s"), ask(ModelledCostModel(cluster=H100), "linear_s"))
    cost_model.keep()
    assert (folder is not None and folder.is_dir()) == (kind == "missing")


def test_the_oldest_files_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FILES", 2)
    for power in (1.0, 2.0, 4.0):
        cost_model = KeptBook(replace(H100, host_slowdown=power), tmp_path)
        ask(cost_model, "linear_s")
        cost_model.keep()
    assert len(list(tmp_path.glob("*.npz"))) == 2
