"""Published tables become profiles of what a training step has, each sample with its source."""

import sys
from pathlib import Path

import pytest

from benchmarks.published_profiles import OWN, main, ours
from profdb.cases import Family
from profdb.store.data_file import load_profile
from profdb.store.merge import is_published, published_sources
from spec.program.command import exit_status
from tests.solver.questions import ROOT

ROWS, SIDES = (64, 256, 257, 512, 1024, 2048), (64, 256, 512, 1024, 2048)
BATCHES, LENGTHS = (1, 4, 8), (256, 512, 1024, 2048)


def test_odd_rows_are_left_out_and_the_others_name_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"A100-80GB,{m},{n},{k},{2e-8 * m * n * k + 5:.3f}" for m in ROWS for n in SIDES for k in SIDES]
    (tmp_path / "gemm.csv").write_text("\n".join(["gpu,m,n,k,latency_us", *lines]) + "\n")
    calls = [
        f"A100-80GB,{b},{s},{h},{h},128,{b * s * s * h * 1e-6 + 5}" for b in BATCHES for s in LENGTHS for h in (8, 32)
    ]
    (tmp_path / "attention.csv").write_text("\n".join(["gpu,batch,seq,heads,kv_heads,head_dim,latency_us", *calls]))
    monkeypatch.setattr(sys, "argv", ["", "--curves", str(tmp_path), "--out", str(tmp_path)])
    assert main() == 0
    profile = load_profile(tmp_path / "a100-sxm-80g.pt")
    table = profile.tables[Family.GEMM]
    assert [sorted(set(table.numbers[name].tolist())) for name in "mnk"] == [[256, 512, 1024, 2048]] + 2 * [
        [*SIDES[1:]]
    ]
    attention = profile.tables[Family.ATTENTION].numbers
    assert (set(attention["batch"].tolist()), set(attention["q_len"].tolist())) == ({1, 4}, {512, 1024, 2048})
    assert is_published(table).all()
    (source,) = published_sources(table)
    assert source.endswith("/a100_sxm/gemm/trtllm/1.0.0/gemm_perf.parquet")
    assert "aiconfigurator@095f58a5" in source
    assert (profile.machine.cluster, profile.machine.rest) == ("a100-sxm-80g", "modelled")


def test_no_folder_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["", "--curves", str(tmp_path / "absent"), "--out", str(tmp_path)])
    assert exit_status(main) == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'absent'}: no such folder of curves\n"


def test_of_a_shipped_profile_our_own_samples_are_known_by_their_source() -> None:
    own = ours(ROOT / "prof_data" / "h100-sxm.pt").tables
    assert {source for table in own.values() for source in published_sources(table)} == {OWN}
    # Nobody else publishes its kernels of one operation; products of ours are a tenth of all.
    everything = load_profile(ROOT / "prof_data" / "h100-sxm.pt").tables
    assert own[Family.MEMORY_BOUND].size == everything[Family.MEMORY_BOUND].size
    assert 0 < own[Family.GEMM].size < 0.2 * everything[Family.GEMM].size
