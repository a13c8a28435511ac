"""Files: written whole or not at all, read up to a size, results that take no input's place, the cache folder."""

import os
from pathlib import Path

import pytest

from spec.errors import ConfigError, ExportError
from spec.files import (
    NAME,
    UnreadableFileError,
    atomic_file,
    cache_folder,
    check_outputs,
    folder_of_results,
    read_bytes,
    read_file_text,
)


def write(path: Path, text: str) -> None:
    with atomic_file(path) as handle:
        handle.write(text)


def test_an_error_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write(path, "old")

    def write_half() -> None:
        with atomic_file(path) as handle:
            handle.write("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("exists", [True, False])
def test_of_a_link_the_file_it_points_to_is_written(tmp_path: Path, *, exists: bool) -> None:
    (tmp_path / "folder").mkdir()
    file, link = tmp_path / "folder" / "a.txt", tmp_path / "link.txt"
    if exists:
        write(file, "old")
    link.symlink_to(file)
    write(link, "new")
    assert link.is_symlink()
    assert file.read_text() == "new"


def test_pipes_and_devices_stay_what_they_are(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/full")):
        with pytest.raises(ExportError, match="is a pipe or a device"):
            write(path, "x")
    assert pipe.is_fifo()


@pytest.mark.parametrize("name", ["", "missing/a.txt", "a\0b", "x" * 300])
def test_what_cannot_be_written_is_one_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError) as caught:
        write(tmp_path / name, "x")
    assert "\n" not in str(caught.value)


def test_a_whole_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf" + "12345é".encode())
    assert read_file_text(path, 100) == "12345é"
    assert len(read_bytes(path, 10)) == 10
    with pytest.raises(UnreadableFileError, match="10 bytes; at most 9 are read"):
        read_bytes(path, 9)


MADE = {
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "loop": lambda path: path.symlink_to(path),
    "binary": lambda path: path.write_bytes(b"\xff\xfe"),
}


@pytest.mark.parametrize(
    ("name_or_path", "said"),
    [
        ("missing", "no such file"),
        ("folder", "is no regular file"),
        ("pipe", "is no regular file"),
        ("/dev/zero", "is no regular file"),
        ("a\0b", "cannot be read: its name is none"),
        ("loop", "cannot be read: Too many levels of symbolic links"),
        ("binary", "cannot be read: is no UTF-8 text"),
    ],
)
def test_what_is_no_text_file_is_refused(name_or_path: str, said: str, tmp_path: Path) -> None:
    for name, make in MADE.items():
        make(tmp_path / name)
    with pytest.raises(UnreadableFileError) as caught:
        read_file_text(tmp_path / name_or_path, 100)
    assert str(caught.value) == said


def refused_outputs(said: str, **given: dict[str, Path | None]) -> None:
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
    refused_outputs("--json.*a file in a folder that exists", files={"--json": tmp_path / "nowhere" / "a.json"})
    refused_outputs("--json.*a file in a folder that exists", files={"--json": tmp_path})
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refused_outputs("--json.*a file in a folder that exists", files={"--json": tmp_path / "loop"})
    os.mkfifo(tmp_path / "pipe")
    refused_outputs("--json.*a file in a folder that exists", files={"--json": tmp_path / "pipe"})
    refused_outputs("--json.*a file in a folder that exists", files={"--json": Path("/dev/full")})
    refused_outputs("--export_bundle.*a folder", folders={"--export_bundle": tmp_path / "file"})


def test_one_file_is_not_two(tmp_path: Path) -> None:
    config = tmp_path / "model.py"
    config.touch()
    (tmp_path / "linked.py").symlink_to(config)
    (tmp_path / "hard.py").hardlink_to(config)
    (tmp_path / "here").symlink_to(tmp_path)
    for path in (config, tmp_path / "linked.py", tmp_path / "hard.py", tmp_path / "here" / "model.py"):
        refused_outputs(
            "--json.*another file than that of --config", files={"--json": path}, inputs={"--config": config}
        )
    new = tmp_path / "new.csv"
    for path in (new, tmp_path / "here" / "new.csv", tmp_path / "." / "new.csv"):
        refused_outputs("--csv.*another file than that of --json", files={"--json": new, "--csv": path})
    (tmp_path / "to_new.csv").symlink_to(new)
    refused_outputs("another file than that of --json", files={"--json": new, "--csv": tmp_path / "to_new.csv"})


def test_the_variable_goes_before_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cache_folder() == tmp_path / "cache" / NAME
    # the specification: paths that are not absolute are to be ignored
    for relative in ("", "cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", relative)
        assert cache_folder() == tmp_path / "home" / ".cache" / NAME
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == tmp_path / "home" / ".cache" / NAME


def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert cache_folder() is None


def failing(folder: Path) -> None:
    with folder_of_results(folder):
        (folder / "first").write_text("")
        raise ExportError("no space")


def test_a_new_folder_is_gone_again_when_its_results_fail(tmp_path: Path) -> None:
    """As after a full disk; a folder that was there keeps what it had."""
    for folder, stays in ((tmp_path / "new" / "report", False), (tmp_path, True)):
        with pytest.raises(ExportError):
            failing(folder)
        assert (folder / "first").exists() is folder.exists() is stays
    with folder_of_results(tmp_path / "kept"):
        (tmp_path / "kept" / "first").write_text("")
    assert (tmp_path / "kept" / "first").exists()
