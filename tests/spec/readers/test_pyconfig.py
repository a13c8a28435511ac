"""``with read_base()`` reads files below configs/ of the nearest ancestor, and nothing else."""

import os
from pathlib import Path

import pytest

from spec.errors import ConfigError
from spec.readers.pyconfig import read_pyconfig


def write(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def base(*modules: str) -> str:
    return "with read_base():\n" + "".join(f"    from {module} import *\n" for module in modules)


def test_names_of_a_base_are_names_of_the_file(tmp_path: Path) -> None:
    write(tmp_path, "configs/_base_/deep/a.py", "A = 1\n_hidden = 2\nmodel = dict(n=A)")
    write(tmp_path, "configs/_base_/b.py", base("configs._base_.deep.a") + "B = A + 1")
    main = write(
        tmp_path,
        "configs/main.py",
        "from internlm.utils import read_base\n" + base("configs._base_.b") + "A = 10\nC = A + B",
    )
    config = read_pyconfig(main)
    assert config.values == {"A": 10, "B": 2, "C": 12, "model": {"n": 1}}
    assert config.lines["C"] == 5


def test_hidden_names_stay_hidden(tmp_path: Path) -> None:
    write(tmp_path, "configs/_base_/a.py", "_hidden = 2")
    main = write(tmp_path, "configs/main.py", base("configs._base_.a") + "x = _hidden")
    with pytest.raises(ConfigError, match="earlier"):
        read_pyconfig(main)


def test_the_nearest_configs_folder_wins(tmp_path: Path) -> None:
    write(tmp_path, "configs/a.py", "x = 'far'")
    write(tmp_path, "project/configs/a.py", "x = 'near'")
    main = write(tmp_path, "project/runs/today/main.py", base("configs.a"))
    assert read_pyconfig(main).values["x"] == "near"


@pytest.mark.parametrize(
    "module",
    ["secrets", "os", "configs", "secrets.a", "configs._base_.missing", ".a", "..secrets", "configs.link.a"],
)
def test_nothing_outside_configs_is_read(tmp_path: Path, module: str) -> None:
    write(tmp_path, "secrets/a.py", "x = 1")
    write(tmp_path, "configs/a.py", "x = 1")
    os.symlink(tmp_path / "secrets", tmp_path / "configs" / "link")
    main = write(tmp_path, "configs/main.py", base(module))
    with pytest.raises(ConfigError) as refused:
        read_pyconfig(main)
    assert "main.py" in str(refused.value)


def test_a_link_to_a_file_outside_is_refused(tmp_path: Path) -> None:
    outside = write(tmp_path, "outside/secret.py", "x = 1")
    (tmp_path / "project/configs").mkdir(parents=True)
    os.symlink(outside, tmp_path / "project/configs/inside.py")
    main = write(tmp_path, "project/configs/main.py", base("configs.inside"))
    with pytest.raises(ConfigError, match="must lie inside"):
        read_pyconfig(main)


def test_circles_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "configs/a.py", base("configs.b"))
    write(tmp_path, "configs/b.py", base("configs.a"))
    with pytest.raises(ConfigError, match="import itself"):
        read_pyconfig(tmp_path / "configs/a.py")


def test_many_paths_to_one_base_read_it_once(tmp_path: Path) -> None:
    write(tmp_path, "configs/f0.py", "x = 1")
    for index in range(1, 25):
        name = f"configs.f{index - 1}"
        write(tmp_path, f"configs/f{index}.py", base(name, name, name))
    assert read_pyconfig(tmp_path / "configs/f24.py").values == {"x": 1}


def test_a_long_chain_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "configs/f0.py", "x = 1")
    for index in range(1, 60):
        write(tmp_path, f"configs/f{index}.py", base(f"configs.f{index - 1}"))
    with pytest.raises(ConfigError, match="at most 32 files"):
        read_pyconfig(tmp_path / "configs/f59.py")


def test_single_names_and_aliases_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "configs/a.py", "x = 1")
    for line in ("from configs.a import x", "import configs.a", "from configs.a import x as y"):
        main = write(tmp_path, "configs/main.py", f"with read_base():\n    {line}\n")
        with pytest.raises(ConfigError, match=r"main\.py:2"):
            read_pyconfig(main)


def test_a_missing_file_a_folder_a_pipe_and_a_link_loop_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    os.symlink(tmp_path / "loop.py", tmp_path / "loop.py")
    names = ("nowhere.py", "", "pipe.py", "loop.py", "x" * 5000 + ".py")
    for path in (tmp_path / name for name in names):
        with pytest.raises(ConfigError, match="an existing text file"):
            read_pyconfig(path)


def test_used_names_are_told_apart_from_settings(tmp_path: Path) -> None:
    config = read_pyconfig(write(tmp_path, "a.py", "n = 2\nmodel = dict(n=n)\nfancy = True"))
    assert config.used == {"n"}
