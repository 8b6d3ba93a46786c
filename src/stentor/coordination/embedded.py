"""The coordination store of a single broker: a map in memory, one file on disk.

Every successful swap rewrites the whole file atomically, so a crash leaves the state before or after
it and nothing between. That is cheap while the state is small (topics and chains), and needs no
log, no compaction and no other process.

    ├ checksum u32 ┼ MessagePack [version, revision, {key: [value, revision]}] ┤
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Final

import msgspec
from crc32c import crc32c

from stentor.errors import CorruptData, FormatTooNew
from stentor.ports import Entry, Swap

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_VERSION: Final = 1
_CHECKSUM: Final = struct.Struct("<I")


class _State(msgspec.Struct, array_like=True):
    version: int
    revision: int
    entries: dict[str, tuple[bytes, int]]


# Made here, under the import lock: msgspec crashes when two threads look at a new type at once.
_decoder = msgspec.msgpack.Decoder(_State)


class EmbeddedStore:
    """A CoordinationStore that persists through `save`."""

    def __init__(self, saved: bytes | None, save: Callable[[bytes], None]) -> None:
        self._state = _State(_VERSION, 0, {}) if saved is None else _load(saved)
        self._save = save
        self._changing = asyncio.Lock()

    async def get(self, key: str) -> Entry | None:
        found = self._state.entries.get(key)
        return None if found is None else Entry(key, *found)

    async def range(self, prefix: str) -> list[Entry]:
        entries = self._state.entries
        return [Entry(key, *entries[key]) for key in sorted(entries) if key.startswith(prefix)]

    async def swap(self, *, expect: Mapping[str, int], put: Mapping[str, bytes], delete: tuple[str, ...] = ()) -> Swap:
        async with self._changing:
            state = self._state
            for key, revision in expect.items():
                if state.entries.get(key, (b"", 0))[1] != revision:
                    return Swap(succeeded=False, revision=state.revision)
            revision = state.revision + 1
            entries = {key: value for key, value in state.entries.items() if key not in delete}
            entries.update((key, (value, revision)) for key, value in put.items())
            changed = _State(_VERSION, revision, entries)
            # The new state counts only once it is on disk.
            await asyncio.to_thread(self._save, _dump(changed))
            self._state = changed
            return Swap(succeeded=True, revision=revision)

    async def close(self) -> None:
        """Wait for a change under way."""
        async with self._changing:
            pass


def _dump(state: _State) -> bytes:
    body = msgspec.msgpack.encode(state)
    return _CHECKSUM.pack(crc32c(body)) + body


def _load(saved: bytes) -> _State:
    body = saved[_CHECKSUM.size :]
    if len(saved) < _CHECKSUM.size or crc32c(body) != _CHECKSUM.unpack_from(saved)[0]:
        raise CorruptData(
            "The coordination file of this data directory fails its checksum.",
            hint="Restore the file `coordination` from a backup; the topics' data is untouched.",
        )
    version = msgspec.msgpack.decode(body)[0]
    if version > _VERSION:
        raise FormatTooNew(
            f"The coordination file has format {version}; this Stentor knows {_VERSION}.",
            hint="Start it with the newer Stentor that wrote it.",
        )
    return _decoder.decode(body)
