"""A file of changes that follow a whole state kept elsewhere: appended to, one at a time, each on disk before the next.

     0       4       8       12
     ├───────┼───────┼───────┼── … ──┐
     │ magic │length │  crc  │payload│   and so on
     └───────┴───────┴───────┴── … ──┘

Integers are little-endian; the CRC32C covers length and payload. A crash can leave one change at the end that is not
whole: nobody was told of it, and it is cut off. A bad change with a good one behind it is damage, and refused (K2).

An append that failed is taken back. If that fails too, the file is not appended to any more: whoever keeps the state
writes it whole, and the changes begin anew.
"""

from __future__ import annotations

import contextlib
import os
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from stentor.errors import CorruptData
from stentor.storage.files import FileHandle, atomic_write, storage_error, sync_directory, write_at

if TYPE_CHECKING:
    from pathlib import Path

_MAGIC: Final = b"STCH"
_HEADER: Final = struct.Struct("<4sII")


class FoundChanges(NamedTuple):
    """What a file of changes holds."""

    payloads: list[bytes]
    """All whole changes, in order."""
    size: int
    """Where the last of them ends."""
    rest: int
    """Bytes of one that is not whole, behind them."""


def read_changes(path: Path) -> FoundChanges | None:
    """Read a file and leave it as it is; None if there is none, CorruptData if more than its end is bad."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(error, operation="read", path=path) from error
    found, position = _whole_changes(data)
    _check_torn(path, data, position)
    return FoundChanges(found, position, len(data) - position)


def _check_torn(path: Path, data: bytes, position: int) -> None:
    """Only the last change may be bad (K2)."""
    place = data.find(_MAGIC, position + 1)
    while place >= 0:
        if _change_at(data, place) is not None:
            raise CorruptData(
                f"{path} is damaged at byte {position}: a change fails its checksum, and others follow it.",
                hint=f"Restore the data directory's files `{path.stem}` and `{path.name}` from a backup.",
                object=str(path),
            )
        place = data.find(_MAGIC, place + 1)


class ChangesFile:
    """The changes since a state was written whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileHandle | None = None
        self.size = 0
        self.usable = False  # appended to only after `load` or `clear`

    def load(self) -> list[bytes]:
        """All whole changes, in order; what a crash left of the last one is cut off."""
        found = read_changes(self._path)
        if found is None:
            return []
        if found.rest:
            self._cut(found.size)
        self._open(found.size)
        return found.payloads

    def _cut(self, size: int) -> None:
        try:
            atomic_write(self._path, self._path.read_bytes()[:size])
        except OSError as error:
            raise storage_error(error, operation="cut", path=self._path) from error

    def _open(self, size: int) -> None:
        try:
            self._file = FileHandle(self._path, write=True, create=not self._path.exists())
            sync_directory(self._path.parent)
        except OSError as error:
            raise storage_error(error, operation="open", path=self._path) from error
        self.size, self.usable = size, True

    def append(self, payload: bytes) -> None:
        """Add a change; on return it is on disk. After an error it is not there."""
        assert self._file is not None
        assert self.usable
        length = len(payload).to_bytes(4, "little")
        header = _HEADER.pack(_MAGIC, len(payload), crc32c(payload, crc32c(length)))
        try:
            end = write_at(self._file, [header, payload], self.size)
            os.fdatasync(self._file.fd)
        except OSError as error:
            self._take_back()
            raise storage_error(error, operation="append to", path=self._path) from error
        self.size = end

    def _take_back(self) -> None:
        assert self._file is not None
        self.usable = False  # a sync that failed is not tried again (K3): the state is written whole next
        with contextlib.suppress(OSError):  # what stays is older than the next state
            os.ftruncate(self._file.fd, self.size)

    def close(self) -> None:
        """Let go of the file."""
        self.usable = False
        self._file = None

    def clear(self) -> None:
        """The state was written whole: changes begin anew."""
        self.close()
        atomic_write(self._path, b"")
        self._open(0)


def _whole_changes(data: bytes) -> tuple[list[bytes], int]:
    """The changes that a file begins with, and where they end."""
    found: list[bytes] = []
    position = 0
    while (payload := _change_at(data, position)) is not None:
        found.append(payload)
        position += _HEADER.size + len(payload)
    return found, position


def _change_at(data: bytes, position: int) -> bytes | None:
    """The change that begins here; None if there is no whole one."""
    if len(data) - position < _HEADER.size:
        return None
    magic, length, checksum = _HEADER.unpack_from(data, position)
    start = position + _HEADER.size
    if magic != _MAGIC or start + length > len(data):
        return None
    payload = data[start : start + length]
    return payload if crc32c(payload, crc32c(length.to_bytes(4, "little"))) == checksum else None
