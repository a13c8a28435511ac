"""Results that would take the place of an input, or of each other, are refused before any work is done."""

import os
from pathlib import Path

import pytest

from spec.errors import ConfigError
from spec.files import check_outputs


def refused(said: str, **given: dict[str, Path | None]) -> None:
    empty: dict[str, Path | None] = {}
    with pytest.raises(ConfigError, match=said):
        check_outputs(given.get("files", empty), given.get("folders", empty), given.get("inputs", empty))


def test_what_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("{}")
    check_outputs(
        {"--json": tmp_path / "old.json", "--csv": tmp_path / "new.csv", "--export_trace": None},
        {"--export_bundle": tmp_path / "new", "--draw_heatmap_path": tmp_path},
        {"--config": tmp_path / "model.py", "--cluster": tmp_path / "new.csv", "--calibration": None},
    )


def test_files_want_a_folder_that_exists_and_folders_no_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused("--json.*a file in a folder that exists", files={"--json": tmp_path / "nowhere" / "a.json"})
    refused("--json.*a file in a folder that exists", files={"--json": tmp_path})
    os.mkfifo(tmp_path / "pipe")
    refused("--json.*a file in a folder that exists", files={"--json": tmp_path / "pipe"})
    refused("--json.*a file in a folder that exists", files={"--json": Path("/dev/full")})
    refused("--export_bundle.*a folder", folders={"--export_bundle": tmp_path / "file"})


def test_one_file_is_not_two(tmp_path: Path) -> None:
    config = tmp_path / "model.py"
    config.touch()
    (tmp_path / "linked.py").symlink_to(config)
    (tmp_path / "hard.py").hardlink_to(config)
    (tmp_path / "here").symlink_to(tmp_path)
    for path in (config, tmp_path / "linked.py", tmp_path / "hard.py", tmp_path / "here" / "model.py"):
        refused(
            "--json.*another file than that of --config", files={"--json": path}, inputs={"--config": config}
        )
    new = tmp_path / "new.csv"
    for path in (new, tmp_path / "here" / "new.csv", tmp_path / "." / "new.csv"):
        refused("--csv.*another file than that of --json", files={"--json": new, "--csv": path})
    (tmp_path / "to_new.csv").symlink_to(new)
    refused("another file than that of --json", files={"--json": new, "--csv": tmp_path / "to_new.csv"})
