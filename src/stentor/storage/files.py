"""The few ways in which storage touches files, so that every rule of the disk is kept in one place.

**Descriptors.** A `FileHandle` closes its descriptor when the last reference to it goes. A reader in
one thread that took the handle can therefore finish while another thread retires the segment: the
descriptor number cannot be closed, and given to some other file, under the reader's hands. A few descriptors are kept
in reserve (`SPARE`): when the process has used up all it may open, logs and books still get theirs.

**Small files** (indexes, snapshots, records of damage, the journal) are written whole: a temporary
file, synced, renamed over the old one, and the directory synced (`atomic_write`). After a crash there
is the old file or the new one, never half of one. Their content is sealed:

     0       4   6   8       12      16
     ├───────┼───┼───┼───────┼───────┼── … ──┐
     │ magic │ver│kin│length │  crc  │payload│
     └───────┴───┴───┴───────┴───────┴── … ──┘

All integers are little-endian. `length` counts the payload, the CRC32C covers version, kind, length
and payload. Magic, version and checksum stay where they are in every version to come, so that a file
of a newer Stentor is told apart from a damaged one: the first is refused, the second is rebuilt.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Final

from crc32c import crc32c

from stentor.errors import CorruptData, DirectoryUnusable, DiskFull, FormatTooNew, OutOfDescriptors, StorageError

Buffer = bytes | bytearray | memoryview

SEAL_MAGIC: Final = b"STMF"
SEAL_VERSION: Final = 1
_SEAL = struct.Struct("<4sHHII")
SEAL_BYTES: Final = _SEAL.size
_SEAL_CHECKED_FROM: Final = 4
_SEAL_CHECKED_TO: Final = 12

IOV_MAX: Final = 1024
"""What Linux takes in one vectored write."""

BAD_BLOCK_BYTES: Final = 4096
"""After an I/O error the rest is read in pieces of this size: what one bad sector may hide."""

TEMPORARY_SUFFIX: Final = ".tmp"

PRIVATE_FILE: Final = 0o600
PRIVATE_FOLDER: Final = 0o700
"""What a broker stores is for the broker's user alone: messages, and who sends them."""

SPARE_DESCRIPTORS: Final = 16
"""Kept in reserve for storage: more than the disk threads of a broker open at one time."""

NO_DESCRIPTOR_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE})
"""The process, or the system, has no descriptor left; nothing is wrong with the disk."""


class FileKind(IntEnum):
    """What a sealed file is, so that one cannot be taken for another."""

    INDEX = 1
    SNAPSHOT = 2
    DAMAGE = 3
    JOURNAL = 4
    FAILURE = 5
    CATALOGUE = 6
    SECRET = 7


class SpareDescriptors:
    """Descriptors that are held for nothing else than to be let go when none can be had."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._held: list[int] = []

    def fill(self) -> None:
        """Take as many as there should be, if they can be had."""
        with contextlib.suppress(OSError):
            while len(self._held) < self._count:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def open(self, path: Path, flags: int, mode: int = PRIVATE_FILE) -> int:
        """Open a file, with a descriptor from the reserve if there is no other."""
        while True:
            try:
                return os.open(path, flags | os.O_CLOEXEC, mode)
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR_ERRNOS:
                    raise
                try:
                    spare = self._held.pop()
                except IndexError:
                    raise error from None
                os.close(spare)


SPARE: Final = SpareDescriptors(SPARE_DESCRIPTORS)


class FileHandle:
    """A descriptor that lives as long as somebody refers to it."""

    __slots__ = ("fd",)

    def __init__(self, path: Path, *, write: bool = False, create: bool = False) -> None:
        self.fd = -1
        flags = os.O_RDWR if write else os.O_RDONLY
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        self.fd = SPARE.open(path, flags)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)

    def bytes(self) -> int:
        """The size of the file now."""
        return os.fstat(self.fd).st_size


def read_at(file: FileHandle, count: int, position: int) -> bytes:
    """Read up to `count` bytes; fewer only at the end of the file.

    What the disk cannot read comes back as zeros, which no checksum accepts: a bad sector is then
    damage like any other, and the bytes around it stay readable.
    """
    try:
        data = os.pread(file.fd, count, position)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return _read_around_bad_blocks(file, count, position)
    if len(data) == count or not data:
        return data
    pieces = [data]
    got = len(data)
    while got < count:
        piece = os.pread(file.fd, count - got, position + got)
        if not piece:
            break
        pieces.append(piece)
        got += len(piece)
    return b"".join(pieces)


def _read_around_bad_blocks(file: FileHandle, count: int, position: int) -> bytes:
    end = min(position + count, file.bytes())
    pieces = []
    while position < end:
        step = min(BAD_BLOCK_BYTES - position % BAD_BLOCK_BYTES, end - position)
        try:
            piece = os.pread(file.fd, step, position)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            piece = bytes(step)
        if not piece:
            break
        pieces.append(piece)
        position += len(piece)
    return b"".join(pieces)


def write_at(file: FileHandle, buffers: Sequence[Buffer], position: int) -> int:
    """Write all of `buffers` one after the other at `position`; return where they end."""
    pending = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
    while pending:
        written = os.pwritev(file.fd, pending[:IOV_MAX], position)
        position += written
        while pending and written >= len(pending[0]):
            written -= len(pending.pop(0))
        if written:
            pending[0] = pending[0][written:]
    return position


def storage_error(error: OSError, *, operation: str, path: Path) -> StorageError:
    """Say in our words what the operating system said in its own."""
    reason = error.strerror or str(error)
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return DiskFull(
            f"There is no room on the disk to {operation} {path} ({reason}).",
            hint="Free some space, or shorten the retention. Then the broker accepts writes again by itself.",
            operation=operation,
            object=str(path),
        )
    if error.errno in NO_DESCRIPTOR_ERRNOS:
        return OutOfDescriptors(
            f"Cannot {operation} {path}: the process has reached its limit of open files ({reason}).",
            hint="Raise the limit (ulimit -n, LimitNOFILE), or disconnect clients. Then work continues by itself.",
            operation=operation,
            object=str(path),
        )
    if error.errno == errno.EROFS:
        return DirectoryUnusable(
            f"Cannot {operation} {path}: it is on a read-only file system.",
            hint="Mount it read-write, or choose another data directory.",
            operation=operation,
            object=str(path),
        )
    if error.errno in {errno.EACCES, errno.EPERM}:
        return DirectoryUnusable(
            f"Cannot {operation} {path}: this user has no permission.",
            hint="Give the broker's user read and write permission, or choose another data directory.",
            operation=operation,
            object=str(path),
        )
    return StorageError(
        f"Cannot {operation} {path}: {reason}.",
        hint="Check the disk and the system log.",
        operation=operation,
        object=str(path),
    )


def sync_directory(path: Path) -> None:
    """Make creations, renames and removals in `path` survive a power cut (K4)."""
    fd = SPARE.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def atomic_write(path: Path, data: Buffer | Sequence[Buffer]) -> None:
    """Replace the file at `path` by `data`: the old content or the new survives any crash (K4)."""
    buffers: Sequence[Buffer] = [data] if isinstance(data, bytes | bytearray | memoryview) else data
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        file = FileHandle(temporary, write=True, create=True)
        write_at(file, buffers, 0)
        os.fsync(file.fd)
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise storage_error(error, operation="write", path=path) from error


def seal(kind: FileKind, payload: Buffer, *, version: int = SEAL_VERSION) -> bytes:
    """Put the checked frame drawn above around `payload`."""
    fields = struct.pack("<HHI", version, kind, len(payload))
    checksum = crc32c(payload, crc32c(fields))
    return b"".join((SEAL_MAGIC, fields, checksum.to_bytes(4, "little"), payload))


def sealed_length(start: Buffer) -> int:
    """How many bytes the sealed part takes that begins with `start`."""
    if len(start) < SEAL_BYTES or bytes(start[:4]) != SEAL_MAGIC:
        raise CorruptData("This file does not begin with the right bytes.")
    length: int = _SEAL.unpack_from(start)[3]
    return SEAL_BYTES + length


def sealed_version(start: Buffer) -> int:
    """Which format the sealed part has that begins with `start`."""
    sealed_length(start)
    version: int = _SEAL.unpack_from(start)[1]
    return version


def unseal(kind: FileKind, data: Buffer, *, what: str, version_max: int = SEAL_VERSION) -> memoryview:
    """Check the frame and return the payload, or say why it cannot be used."""
    end = sealed_length(data)
    if end > len(data):
        raise CorruptData(f"{what} is cut off: {len(data)} of {end} bytes are left.", object=what)
    view = memoryview(data)
    _, version, found, _, checksum = _SEAL.unpack_from(view)
    covered = crc32c(view[SEAL_BYTES:end], crc32c(view[_SEAL_CHECKED_FROM:_SEAL_CHECKED_TO]))
    if covered != checksum:
        raise CorruptData(f"{what} fails its checksum.", object=what)
    if version > version_max:
        raise FormatTooNew(
            f"{what} has format {version}; this Stentor knows formats up to {version_max}.",
            hint="Start the newer Stentor that wrote it.",
            object=what,
        )
    if found != kind:
        raise CorruptData(f"{what} holds something else (kind {found}, expected {kind.value}).", object=what)
    return view[SEAL_BYTES:end]
