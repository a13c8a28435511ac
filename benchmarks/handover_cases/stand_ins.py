"""Stand-ins for what a framework's parser imports and a CPU-only machine lacks."""

import importlib.abc
import importlib.machinery
import importlib.util
import types
from collections.abc import Collection, Iterator, Sequence

MISSING = frozenset(
    str.split(
        "six triton regex sentencepiece tiktoken transformers psutil h5py wandb flash_attn einops tensorstore zarr "
        "nltk yaml pybind11 apex tensorboard boto3 botocore oss2 tos numa pynvml rotary_emb pyecharts py_spy "
        "megablocks stk torch_scatter libcst cupy opentelemetry grouped_gemm fused_dense_lib xentropy_cuda_lib "
        "hjson msgpack cpuinfo ninja comet_ml pkg_resources pulp viztracer requests safetensors datasets"
    )
)
"""Packages that no parser needs to do its work."""


class Anything:
    """Takes every call, attribute and item; as a decorator it returns what it decorates."""

    def __init__(self, *arguments: object, **named: object) -> None:
        del arguments, named

    def __call__(self, *arguments: object, **named: object) -> object:
        """What it decorates, or something again."""
        if len(arguments) == 1 and callable(arguments[0]) and not named:
            return arguments[0]
        return Anything()

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __getitem__(self, key: object) -> object:
        return Anything()

    def __iter__(self) -> Iterator[object]:
        return iter(())

    def __mro_entries__(self, bases: tuple[type, ...]) -> tuple[type, ...]:
        return (object,)


class StandIn(types.ModuleType):
    """A module, or a package without its own start-up code, that has every name."""

    __version__ = "0"

    def __init__(self, name: str, folders: Sequence[str] = ()) -> None:
        super().__init__(name)
        self.__path__ = list(folders)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Anything,), {}) if name[:1].isupper() else Anything()


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stand-ins for the packages of ``names`` that are not installed."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(name for name in names if importlib.util.find_spec(name) is None)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec for the package and everything in it."""
        del path, target
        if fullname.partition(".")[0] not in self._names:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """The stand-in."""
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""
