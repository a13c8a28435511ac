"""Goldens: small texts kept under tests/golden; --update-golden writes them anew."""

import gc
import importlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# What an example takes says how busy the machine is. .ci/nightly tries more of them.
EXAMPLES = 100 if os.environ.get("NIGHTLY") else 6
settings.register_profile("any_machine", deadline=None, max_examples=EXAMPLES)
settings.load_profile("any_machine")

# A job in the background ignores Ctrl-C and hands that on to its children, some of which are interrupted here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

GOLDEN = Path(__file__).parent / "golden"


# Both workers of a fresh environment would compile the same files at the same time: the second begins elsewhere.
if os.environ.get("PYTEST_XDIST_WORKER") == "gw1":
    for _name in ("sklearn.ensemble", "scipy.stats", "pandas", "matplotlib.figure", "sympy"):
        importlib.import_module(_name)

# What was collected lives to the end: it is not looked through again whenever a test leaves some garbage.
gc.set_threshold(100_000, 20, 100)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write what is computed now; the commit says why it changed"
    )


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Programs run by tests keep what they can make again in a folder that goes with the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COLUMNS", raising=False)
        patch.setenv("LANGUAGE", "en")
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def quick_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures whose parts stand anywhere: laying them out takes half of their time."""
    monkeypatch.setattr("matplotlib.layout_engine.ConstrainedLayoutEngine.execute", lambda *_: None)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden(name, text)``: text equals tests/golden/name."""
    update = request.config.getoption("--update-golden")

    def same(name: str, text: str) -> None:
        path = GOLDEN / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
        assert path.is_file(), f"{path} is missing: run with --update-golden"
        assert text == path.read_bytes().decode()

    return same
