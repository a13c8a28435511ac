"""Reading a trace of torch.profiler: gzipped or plain, of whole steps, or one line that says why not."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from runner.traces.trace_file import is_trace, read_trace
from spec.errors import ConfigError

STEP = {
    "ph": "X",
    "cat": "user_annotation",
    "name": "ProfilerStep#3",
    "pid": 1,
    "tid": 1,
    "ts": 2.0,
    "dur": 5.0,
}
MARK = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}
MM = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1.5, "dur": 1, "args": {}}


def written(path: Path, events: object, **more: Any) -> Path:
    text = json.dumps({"schemaVersion": 1, "traceEvents": events} | more)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_events_come_by_start_in_seconds(tmp_path: Path, name: str) -> None:
    told = {"backend": "nccl", "rank": "3", "world_size": 8}
    path = written(tmp_path / name, [MARK, STEP, MM], distributedInfo=told)
    assert is_trace(path)
    trace = read_trace(path)
    assert [one.name for one in trace.events] == ["aten::mm", "ProfilerStep#3"]
    (step,) = trace.steps
    assert (step.start_s, step.seconds, step.end_s) == pytest.approx((2e-6, 5e-6, 7e-6))
    assert (trace.rank, trace.world_size) == (3, 8)


def test_a_log_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("step: 1 loss: 7.0\n")
    assert not is_trace(path)
    assert not is_trace(tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe")  # nobody writes into it
    assert not is_trace(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([MM], "a trace of whole steps: profiler.step() after each"),
        (3, "no traceEvents"),
        ([STEP | {"dur": -1.0}], "an event without start and duration: 'ProfilerStep#3'"),
        ([STEP | {"ts": "x"}], "an event without start and duration"),
        ([STEP | {"dur": float("nan")}], "an event without start and duration"),
        ([STEP | {"args": []}], "an event without start and duration"),
    ],
)
def test_one_line_for_what_is_no_trace(tmp_path: Path, events: object, expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_trace(written(tmp_path / "a.json", events))
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "content", [b"\x1f\x8bnothing", gzip.compress(b"{}", mtime=0)[:-9], b'{"schemaVersion": 1, ', b"\xff"]
)
def test_one_line_for_what_is_damaged(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"a Chrome trace of torch\.profiler") as refused:
        read_trace(path)
    assert "\n" not in str(refused.value)
