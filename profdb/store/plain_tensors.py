"""Plain data written by torch.save, read without torch, whose import takes longer than a search.

torch.save pickles a document (protocol 2) whose tensors are a call of ``torch._utils._rebuild_tensor_v2`` on a storage
named by its type, its member ``data/<key>`` of the archive and its length (PyTorch, torch/serialization.py ``_save``,
torch/_utils.py). The reader accepts only those names, and only the instructions that such a document needs: a file can
make it import, call or set nothing else. Members of the archive are stored, not compressed, and zipfile checks the
CRC-32 of each that is read: damage is found, or stands where nobody reads.
"""

import io
import pickle
import pickletools
import zipfile
from collections import OrderedDict
from math import prod
from typing import Any, BinaryIO, Literal, NoReturn

import numpy as np

STORAGES: dict[str, str] = {
    "DoubleStorage": "f8",
    "FloatStorage": "f4",
    "LongStorage": "i8",
    "IntStorage": "i4",
    "ShortStorage": "i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
}
"""torch's names of storages, and numpy's of their elements."""

INSTRUCTIONS = frozenset(
    [
        "PROTO",
        "STOP",
        "MARK",
        "GLOBAL",
        "REDUCE",
        "BINPERSID",
        "BINPUT",
        "LONG_BINPUT",
        "BINGET",
        "LONG_BINGET",
        "EMPTY_DICT",
        "SETITEM",
        "SETITEMS",
        "EMPTY_LIST",
        "APPEND",
        "APPENDS",
        "EMPTY_TUPLE",
        "TUPLE",
        "TUPLE1",
        "TUPLE2",
        "TUPLE3",
        "BINUNICODE",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG1",
        "BINFLOAT",
        "NONE",
        "NEWTRUE",
        "NEWFALSE",
    ]
)
"""Instructions of a document of dicts, lists, numbers, texts and tensors (pickletools' names)."""

BYTE_ORDERS: dict[bytes, Literal["<", ">"]] = {b"little": "<", b"big": ">"}


def plain_document(content: bytes) -> object:
    """Returns the document of a torch archive, tensors as arrays.

    Raises pickle.UnpicklingError, zipfile.BadZipFile, or one of the errors that a damaged stream raises, for anything
    else.
    """
    if not content.startswith(b"PK\x03\x04"):
        raise pickle.UnpicklingError("not a profile (no torch archive)")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        # No member, and not all of them together, can take more memory than the file does.
        members = archive.infolist()
        if sum(one.file_size for one in members) > len(content):
            raise pickle.UnpicklingError("its members state more bytes than the file has")
        if any(one.compress_type != zipfile.ZIP_STORED for one in members):
            raise pickle.UnpicklingError("its members are compressed; a profile's are stored")
        # torch.save puts everything in one folder of the archive: data.pkl, data/<key> of each storage, byteorder.
        documents = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(documents) != 1:
            raise pickle.UnpicklingError(f"{len(documents)} documents in one archive")
        pickled, folder = archive.read(documents[0]), documents[0].removesuffix("data.pkl")
        # All instructions are checked before the first is executed.
        for instruction, _, _ in pickletools.genops(pickled):
            if instruction.name not in INSTRUCTIONS:
                raise pickle.UnpicklingError(f"its document has the instruction {instruction.name}")
        return _Reader(io.BytesIO(pickled), archive, folder).load()


class _Reader(pickle.Unpickler):
    """An unpickler that makes tensors and plain data, nothing else."""

    def __init__(self, document: BinaryIO, archive: zipfile.ZipFile, folder: str) -> None:
        super().__init__(document)
        self._archive, self._folder = archive, folder
        members = set(archive.namelist())
        order = archive.read(f"{folder}byteorder") if f"{folder}byteorder" in members else b"little"
        self._order = BYTE_ORDERS[order]
        self._storages: dict[str, np.ndarray[Any, Any]] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Returns torch's storages by name, the function that makes a tensor, and the type of its (empty) hooks."""
        classes: dict[tuple[str, str], object] = {
            ("torch._utils", "_rebuild_tensor_v2"): _tensor,
            ("collections", "OrderedDict"): OrderedDict,
        }
        if module == "torch" and name in STORAGES:
            return _Storage(name)
        if (module, name) not in classes:
            raise pickle.UnpicklingError(f"not plain data: GLOBAL {module}.{name}")
        return classes[module, name]

    def persistent_load(self, pid: Any) -> np.ndarray[Any, Any]:
        """Returns the elements of a storage: ("storage", type, key, device, length)."""
        kind, storage, key, _, length = pid
        if kind != "storage" or not isinstance(storage, _Storage) or type(key) is not str:
            raise pickle.UnpicklingError("a reference to something other than a storage")
        # Tensors may share a storage.
        if key not in self._storages:
            content = self._archive.read(f"{self._folder}data/{key}")
            dtype = np.dtype(STORAGES[storage.name])
            elements = np.frombuffer(content, dtype=dtype.newbyteorder(self._order)).astype(dtype)
            self._storages[key] = elements
        elements = self._storages[key]
        if elements.shape != (length,) or elements.dtype != np.dtype(STORAGES[storage.name]):
            raise pickle.UnpicklingError(f"storage {key} is not {length} elements of a {storage.name}")
        return elements


class _Storage:
    """A storage's type by torch's name; calling it raises an error."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *_: object) -> NoReturn:
        raise pickle.UnpicklingError(f"a call of torch.{self.name}")


def _tensor(storage: Any, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: object) -> Any:
    """Returns the array of a tensor whose elements lie in order; raises ValueError for another."""
    if not isinstance(storage, np.ndarray) or min(size, default=0) < 0 or offset < 0:
        raise ValueError("a tensor of no storage, or of a negative size")
    length, step, in_order = prod(size), 1, True
    # From the last dimension on: a contiguous tensor's stride is the product of the later sizes. Of a dimension of
    # size 1 the stride has no meaning.
    for count, actual in zip(reversed(size), reversed(stride), strict=True):
        in_order &= actual == step or count == 1
        step *= count
    # A tensor that is a view with other strides, or one that reaches past its storage, is none of ours.
    if (length and not in_order) or offset + length > len(storage):
        raise ValueError(f"a tensor of {length:,} elements that do not lie in order in its {len(storage):,}")
    return storage[offset : offset + length].reshape(size)
