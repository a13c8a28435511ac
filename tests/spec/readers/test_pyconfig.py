"""Configs are read as data: expressions as Python has them, everything else refused, and files below configs/ alone."""

import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec.errors import ConfigError
from spec.files import MAX_FILE_BYTES
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
    "module", ["secrets", "os", "configs", "secrets.a", "configs._base_.missing", ".a", "..secrets", "configs.link.a"]
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


def test_a_letter_that_there_is_none_of_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be formatted"):
        read_pyconfig(write(tmp_path, "configs/main.py", 'x = f"{1114112:c}"\n'))


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


def evaluate(tmp_path: Path, source: str) -> dict[str, object]:
    path = tmp_path / "config.py"
    path.write_text(source, encoding="utf-8")
    return read_pyconfig(path).values


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("x = 2**16 - 1", 65535),
        ("x = 8 / 3", 8 / 3),
        ("x = -7 // 2 + 7 % -4", -7 // 2 + 7 % -4),
        ("E = 50\nx = int(E / 2)", 25),
        ("x = max(1, 2.5, -3)", 2.5),
        ("x = float('1e-5')", 1e-5),
        ("x = [1, 2] + [3] * 2", [1, 2, 3, 3]),
        ("x = ('model',)", ("model",)),
        ("x = 'a' 'b' + 'c'", "abc"),
        ("N = 'job'\nx = f'{N}_{3:03d}_{1.5:.2f}_{N!r}'", "job_003_1.50_'job'"),
        ("d = dict(a=1, b=dict(c=[5, 6]))\nx = d['b']['c'][-1]", 6),
        ("x = {'a': None, 1: True}", {"a": None, 1: True}),
        ("x = y = 3\n'''text'''\nx: int = y + 1", 4),
    ],
)
def test_accepted(tmp_path: Path, source: str, value: object) -> None:
    assert evaluate(tmp_path, source)["x"] == value


ATTACKS = {
    "import call": "x = __import__('os').system('touch owned')",
    "read_base renamed": "from os import system as read_base",
    "attribute": "x = ''.__class__",
    "power": "x = 10**10**10",
    "negative power": "x = 2**-(10**9)\ny = (10**70)**-(10**9)",
    "power ladder": "a = 2**250\nx = a * a * a",
    "bytes": "x = b'a'",
    "string repetition": "x = 'a' * 10**10",
    "list doubling": "x = [1] * 1000\n" + "x = x + x\n" * 40,
    "statement": "if True:\n    x = 1",
    "unpacking": "x, y = 1, 2",
    "shadowed builtin": "dict = 5",
    "unknown name": "x = UNDEFINED",
    "index out of range": "x = [1][5]",
    "repeated key": "x = dict(a=1, a=2)",
    "int of text": "x = int('abc')",
    "int of long text": "x = int('1' * 5000)",
    "infinity to int": "x = int(float('inf'))",
    "percent format": "x = '%1000000000d' % 1",
    "wide field": "x = f'{1:1000000000d}'",
    "wrong format": "x = f'{1:zzz}'",
    "laughs in a field": "a = ['lol'] * 10\n" + "a = [a, a, a, a, a, a, a, a, a, a]\n" * 12 + "x = f'{a}'",
    "laughs as a key": "a = (1,)\n" + "a = (a, a, a, a, a, a, a, a, a, a)\n" * 12 + "x = {a: 1}",
    "laughs compared": "a = [1]\n" + "a = [a, a]\n" * 40 + "x = max(a, a)",
    "many long lists": "".join(f"x{i} = [0] * 10_000\n" for i in range(200)),
    "deep parentheses": "x = " + "(" * 5000 + "1" + ")" * 5000,
    "deep unary": "x = " + "-" * 100_000 + "1",
    "deep sum": "x = " + "+".join(["1"] * 50_000),
    "huge literal": "x = " + "9" * 5000,
    "not python": "x = = 1",
    "null byte": "x = 'a\0b'",
    "with open": "with open('x') as f:\n    x = 1",
    "read_base argument": "with read_base(1):\n    x = 1",
    "assignment in read_base": "with read_base():\n    x = 1",
    "too large": "#" * (MAX_FILE_BYTES + 1),
}


@pytest.mark.parametrize("source", ATTACKS.values(), ids=ATTACKS.keys())
def test_refused_with_one_short_line_at_once(tmp_path: Path, source: str) -> None:
    started = time.perf_counter()
    with pytest.raises(ConfigError) as refused:
        evaluate(tmp_path, source)
    assert time.perf_counter() - started < 2.0
    message = str(refused.value)
    assert "config.py" in message
    assert "\n" not in message
    assert len(message) < 500
    assert not (tmp_path / "owned").exists()


def test_the_message_names_file_line_and_expression(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.py:3: Call = .*__import__"):
        evaluate(tmp_path, "a = 1\n\nx = __import__('os').system('true')\n")


def test_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "config.py"
    path.write_bytes(b"x = '\xff\xfe'")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_pyconfig(path)


LEAVES = st.one_of(
    st.integers(-1000, 1000).map(str),
    st.floats(-1e6, 1e6, allow_nan=False).map(repr),
    st.sampled_from(["True", "False", "int(7.9)", "float(3)", "max(2, 3)", "min(1, -1)"]),
)
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(
            lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
        ),
        inner.map(lambda text: f"(-{text})"),
        st.tuples(inner, st.integers(-3, 3)).map(lambda parts: f"({parts[0]} ** {parts[1]})"),
    ),
    max_leaves=12,
)


@settings(max_examples=2 * settings.default.max_examples)
@given(expression=EXPRESSIONS)
def test_agrees_with_python_or_refuses(tmp_path_factory: pytest.TempPathFactory, expression: str) -> None:
    path = tmp_path_factory.getbasetemp() / "random.py"
    path.write_text(f"x = {expression}", encoding="utf-8")
    try:
        expected = eval(expression)  # noqa: S307 - built by the strategy above
    except (ZeroDivisionError, OverflowError):
        with pytest.raises(ConfigError):
            read_pyconfig(path)
        return
    try:
        got = read_pyconfig(path).values["x"]
    except ConfigError:
        # only powers reach what is beyond the limits: 256 bits, or a complex number
        assert "**" in expression
        return
    assert type(got) is type(expected)
    assert repr(got) == repr(expected)
