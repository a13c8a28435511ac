"""The cluster that a profile names, without loading it: what needs no sample need not wait for them.

torch.save pickles the document as one member, data.pkl, of a zip file. Its words are read in order, nothing is
executed; whoever loads the profile checks it.
"""

import io
import pickletools
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

from profdb.store.archive import read_archive

MACHINE, KEY = "machine", "cluster"
MOST_BYTES = 2**24
"""Names of samples are words of their own; the shipped profile's pickle has 2**17 bytes."""


def cluster_named_by(path: Path) -> str:
    """The sheet that the profile at ``path`` was taken on; "" where that cannot be told by a glance.

    Raises ProfileError for a file that is missing, empty or no file.
    """
    content = read_archive(path)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [one for one in archive.infolist() if one.filename.endswith("data.pkl")]
            if len(members) != 1 or members[0].file_size > MOST_BYTES:
                return ""
            return _cluster_in(_words(archive.read(members[0])))
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, EOFError, struct.error):
        return ""


def _cluster_in(words: Iterator[str]) -> str:
    """What follows its key among the machine's facts; each is a key and a value, a table's value the pairs in it."""
    if MACHINE not in words:
        return ""
    next(words, "")
    for key, value in zip(words, words, strict=False):
        if key == KEY:
            return value
    return ""


def _words(pickled: bytes) -> Iterator[str]:
    """The texts of a pickle in order, one said before recalled by its number, and "" for a number or a table."""
    kept: dict[int, str] = {}
    word = ""
    for opcode, argument, _ in pickletools.genops(pickled):
        said = opcode.name
        if said in ("BINPUT", "LONG_BINPUT"):
            kept[int(str(argument))] = word
        elif said == "MEMOIZE":
            kept[len(kept)] = word
        elif said in ("BINGET", "LONG_BINGET"):
            word = kept.get(int(str(argument)), "")
            yield word
        elif said not in ("PROTO", "FRAME") and (argument is not None or said == "EMPTY_DICT"):
            word = argument if isinstance(argument, str) else ""
            yield word
