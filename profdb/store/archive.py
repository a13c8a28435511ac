"""The bytes of a torch archive, each of them checked before anything is unpickled.

torch.save writes a zip file of members that are stored, not compressed, one after another, each after a
header that is padded with the letter Z; the directory of members is at the end (PyTorch's
caffe2/serialize/inline_container.cc; PKWARE's APPNOTE.TXT 4.3). torch.load checks no checksum. Here every
byte of the file is covered by CRC-32 or has a known value, so any damage is found.
"""

import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from spec.errors import ProfileError

MOST_BYTES = 2**30
"""A hundred times the profile of a large sweep."""

REMEDY = "make one with: torchrun --nproc-per-node=8 gen_profiler_data.py"

LOCAL_HEADER = struct.Struct("<4sHHHHHIIIHH")
PADDING_ID = b"FB"
FLAG_ENCRYPTED, FLAG_SIZES_BEHIND = 0x1, 0x8
DIRECTORY_ENTRY_BYTES = 46


class DamagedArchiveError(Exception):
    """The bytes are not a whole torch archive; the message says why."""


def read_archive(source: Path) -> bytes:
    """Returns the content of a profile file, for ``check_archive``.

    Raises ProfileError, one line, when there is no such file or it is a folder, a device, empty or too large.
    """
    try:
        result = source.stat()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ProfileError(f"{source}: no such profile ({reason}); {REMEDY}") from error
    if stat.S_ISDIR(result.st_mode):
        raise ProfileError(f"{source}: a folder, not a profile file; name the data.pt in it")
    if not stat.S_ISREG(result.st_mode):
        raise ProfileError(f"{source}: a pipe or a device, not a profile file")
    if result.st_size == 0:
        raise ProfileError(f"{source}: empty file, not a profile; {REMEDY}")
    if result.st_size > MOST_BYTES:
        raise ProfileError(f"{source}: {result.st_size:,} bytes; a profile has at most {MOST_BYTES:,}")
    try:
        return source.read_bytes()
    except OSError as error:
        raise ProfileError(f"{source}: cannot be read ({error.strerror or error})") from error


def check_archive(content: bytes) -> None:
    """Checks all bytes of a torch archive.

    Raises DamagedArchiveError for a member that is compressed, encrypted, larger than the file or of another
    checksum, for a header that contradicts the directory, and for bytes outside all of these.
    """
    if not content.startswith(b"PK\x03\x04"):
        raise DamagedArchiveError("not a profile (no torch archive)")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members, directory = archive.infolist(), archive.start_dir
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error) as error:
        raise DamagedArchiveError(f"truncated, or its directory is damaged ({error})") from error
    # Members must follow each other without gaps from the first byte to the directory.
    place = 0
    for member in members:
        place = _check_member(content, member, place)
    if place != directory:
        raise DamagedArchiveError("damaged: bytes between its last member and its directory")
    _check_end(content, members, directory)


def _check_member(content: bytes, member: zipfile.ZipInfo, place: int) -> int:
    """Returns where the member that must begin at ``place`` ends, once it is checked."""
    name, size = member.filename, member.file_size
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & FLAG_ENCRYPTED:
        raise DamagedArchiveError(f"its member {name} is compressed or encrypted; a profile's are stored")
    if size != member.compress_size or not 0 <= size <= len(content):
        raise DamagedArchiveError(f"its member {name} states {size:,} bytes, more than the file has")
    if member.header_offset != place or place + LOCAL_HEADER.size > len(content):
        raise DamagedArchiveError(f"damaged: its member {name} is not where the one before ends")
    # Fields: signature, version, flags, compression, time, date, CRC-32, compressed size, size, lengths of name and
    # extra field.
    header = LOCAL_HEADER.unpack_from(content, place)
    names = place + LOCAL_HEADER.size
    start = names + header[9] + header[10]
    # A streamed member has zeros here, and its checksum and sizes follow its content in a data descriptor.
    behind = bool(member.flag_bits & FLAG_SIZES_BEHIND)
    expected = (0, 0, 0) if behind else (member.CRC, size, size)
    header_name = content[names : names + header[9]]
    padding = content[names + header[9] : start]
    if (
        header[0] != b"PK\x03\x04"
        or header[2:4] != (member.flag_bits, member.compress_type)
        or header[6:9] != expected
        or header_name != name.encode()
        or not _is_padding(padding)
    ):
        raise DamagedArchiveError(f"damaged header of its member {name}")
    end = start + size
    if end > len(content) or zlib.crc32(memoryview(content)[start:end]) != member.CRC:
        raise DamagedArchiveError(f"damaged: the checksum of its member {name} is wrong")
    for form in _descriptors(member) if behind else (b"",):
        if content[end : end + len(form)] == form:
            return int(end + len(form))
    raise DamagedArchiveError(f"damaged sizes behind its member {name}")


def _descriptors(member: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yields what may follow a member whose header states no sizes: a data descriptor with 64-bit sizes, or 32-bit
    ones."""
    for form in ("<4sIQQ", "<4sIII"):
        yield struct.pack(form, b"PK\x07\x08", member.CRC, member.file_size, member.file_size)


def _is_padding(extra: bytes) -> bool:
    """Returns whether the extra field is empty or one field FB filled with Z."""
    if not extra:
        return True
    return extra[:4] == PADDING_ID + struct.pack("<H", len(extra) - 4) and not extra[4:].strip(b"Z")


def _check_end(content: bytes, members: list[zipfile.ZipInfo], directory: int) -> None:
    """Raises DamagedArchiveError unless the end records (of 32 bits, or 64 and 32) and nothing else follow the
    directory's entries."""
    size = sum(
        DIRECTORY_ENTRY_BYTES + len(one.filename.encode()) + len(one.extra) + len(one.comment) for one in members
    )
    count, behind = len(members), directory + size
    end = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, count, count, size, directory, 0)
    record = struct.pack("<IIQQQQ", 0, 0, count, count, size, directory)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, behind, 1)
    expected = content[behind:]
    if expected.startswith(b"PK\x06\x06"):
        # signature, own size and two versions come before what the 64-bit record counts
        end, expected = struct.pack("<Q", 44) + record + locator + end, expected[4:12] + expected[16:]
    if expected != end:
        raise DamagedArchiveError("damaged: its end does not fit its directory")
