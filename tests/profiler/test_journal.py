"""A journal gives back every sample; a killed run loses at most the line it was writing."""

from pathlib import Path

import pytest

from profdb.cases import HostCase
from profdb.sample import Sample, WorldShape
from profdb.store.journal import journal_path, read_journal
from profiler.cases.sweep_plan import SweepPlan, gpu_compute, plan_cases
from profiler.cases.tiers import in_order
from profiler.journal import Journal
from spec.errors import ProfileError
from spec.origin import Origin

CASES = [
    *(item.case for item in in_order(gpu_compute())[:200]),
    *plan_cases(SweepPlan(device_kind="cpu", domain_ranks=4)),
]
SAMPLES = [
    Sample(
        case=case,
        trials_s=(1e-3, 1.5e-3, 1.0 / 3.0),
        launched={"implementation": "torch.mm", "spread": 0.25, "launches_per_trial": 3},
        date="2026-01-01T00:00:00Z",
        world=WorldShape(nodes=1, ranks=4),
    )
    for case in CASES
]


def write(path: Path, samples: list[Sample]) -> None:
    journal = Journal.open(path, "GPU")
    for sample in samples:
        journal.append(sample)
    journal.close()


def test_every_kind_of_sample_comes_back_as_it_was(tmp_path: Path) -> None:
    path = journal_path(tmp_path / "folder" / "data.pt")
    failed = Sample(case=HostCase(kind="x"), trials_s=(), status="oom", origin=Origin.MEASURED)
    write(path, [*SAMPLES, failed])
    read = read_journal(path)
    assert read.gpu == "GPU"
    assert list(read.samples) == [*SAMPLES, failed]


@pytest.mark.parametrize("cut", [1, 7, 60])
def test_a_line_cut_short_is_dropped_and_the_journal_goes_on(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "journal"
    write(path, SAMPLES[:5])
    path.write_bytes(path.read_bytes()[:-cut])
    assert list(read_journal(path).samples) == SAMPLES[:4]
    write(path, SAMPLES[5:7])
    assert list(read_journal(path).samples) == SAMPLES[:4] + SAMPLES[5:7]


def test_lines_are_the_systems_at_once_and_the_disks_within_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed loses nothing that it handed over; a disk takes milliseconds for each call to it."""
    clock, pushed = [0.0], []
    journal = Journal.open(tmp_path / "journal", "GPU")
    journal.now = lambda: clock[0]
    journal.synced = float("-inf")
    monkeypatch.setattr("profiler.journal.os.fsync", lambda handle: pushed.append(clock[0]))
    for moment, sample in zip((0.0, 0.4, 0.9, 1.0, 1.5), SAMPLES, strict=False):
        clock[0] = moment
        journal.append(sample)
        assert list(read_journal(tmp_path / "journal").samples)[-1] == sample
    journal.close()
    assert pushed == [0.0, 1.0, 1.5]


def test_an_empty_journal_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.touch()
    write(path, SAMPLES[:1])
    assert list(read_journal(path).samples) == SAMPLES[:1]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("hello\n", 1),
        ('{"format": "profiling-journal 99", "gpu": "x"}\n', 1),
        ('{"format": "profiling-journal 1", "gpu": "x"}\n{"family": "host", "case": {"kind": 1}}\n', 2),
        ('{"format": "profiling-journal 1", "gpu": "x"}\nnull\n', 2),
    ],
)
def test_what_is_no_journal_is_refused_by_line(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "journal"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ProfileError, match=f"line {line}: not a journal"):
        read_journal(path)


def test_a_journal_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ProfileError, match="cannot be written"):
        Journal.open(tmp_path / "file" / "data.pt.journal", "GPU")
