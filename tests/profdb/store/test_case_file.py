"""A file of cases holds each whole, in its order, and nothing else passes for one."""

import json
from pathlib import Path
from typing import Any

import pytest

from profdb.cases import FAMILY_OF
from profdb.store.case_file import FORMAT, WeighedCase, read_cases, write_cases
from spec.errors import ProfileError
from tests.profdb.profiles import STEP_PARTS, one_of_each

CASES = (*dict.fromkeys(sample.case for sample in one_of_each()), *STEP_PARTS)
GOOD = {"batch": 1, "m": 8, "k": 8, "n": 8, "layout": "NT", "scale_recipe": "", "bias": False}
GOOD |= {"dtype_in": "bf16", "dtype_accumulate": "fp32", "dtype_out": "bf16"}


def test_cases_of_every_family_come_back_whole_and_in_their_order(tmp_path: Path) -> None:
    assert {type(case) for case in CASES} == set(FAMILY_OF)
    weighed = [WeighedCase(case=case, seconds=float(at)) for at, case in enumerate(CASES)]
    write_cases(tmp_path / "cases.json", weighed, {"model": "m"})
    assert read_cases(tmp_path / "cases.json") == CASES
    plain = json.loads((tmp_path / "cases.json").read_text())
    assert (plain["format"], plain["origin"]) == (FORMAT, {"model": "m"})
    assert [one["seconds"] for one in plain["cases"]] == [one.seconds for one in weighed]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"m": 0}, "m = 0"),
        ({"dtype_in": "bf17"}, "dtype_in = 'bf17': one of"),
        ({"m": 1.5}, "m = 1.5"),
        ({"m": True}, "m = True"),
        ({"m": 1 << 60}, "m = 1152921504606846976"),
        ({"bias": 1}, "bias = 1"),
        ({"layout": 3}, "layout = '3'"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_case_that_no_sample_can_have_is_refused_by_its_number(
    changed: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "cases.json"
    entries = [{"family": "gemm", "case": GOOD}, {"family": "gemm", "case": GOOD | changed}]
    path.write_text(json.dumps({"format": FORMAT, "cases": entries}))
    with pytest.raises(ProfileError, match=f"case 2: .*{said}"):
        read_cases(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": "cases 2", "cases": []}',
        '{"format": "cases 1", "cases": []}',
        '{"format": "cases 1", "cases": [3]}',
        '{"format": "cases 1", "cases": [{"family": "gemm"}]}',
        '{"format": "cases 1", "cases": [{"family": "tea", "case": {}}]}',
        '{"format": "cases 1", "cases": [{"family": "gemm", "case": {"m": 1}}]}',
        '{"format": "cases 1", "cases": [{"family": "gemm", "case": []}]}',
        "[" * 100_000,
    ],
)
def test_what_is_no_file_of_cases_is_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    path.write_text(text)
    with pytest.raises(ProfileError) as caught:
        read_cases(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="no such file"):
        read_cases(tmp_path / "none.json")
