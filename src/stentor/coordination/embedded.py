"""The coordination store of a single broker: a map in memory, the state and its changes on disk.

The state is one file that is replaced atomically, and a successful swap is one change appended to another, so a crash
leaves the state before or after it and nothing between. When the changes have become larger than the state, the state
is written whole and they begin anew: a swap costs what it changes, however many topics there are.

    state    ├ checksum u32 ┼ MessagePack [version, revision, {key: [value, revision]}] ┤
    change   MessagePack [revision, {key: value}, [deleted key, …]]

Changes at or below the state's revision are in the state already: a crash came between writing it and clearing them.
A state of version 1 has no changes beside it. Version 2 may have; an older Stentor, which would miss them, refuses it.

Changes are made one after the other under a lock, and a change that has begun is finished even if
nobody waits for it any more: otherwise the file and the map would differ. Watches read the newest
changes from one shared history, so a slow one costs no memory; it is told to start over when the
history has moved past it.

Keys attached to a lease are not written to the file: leases do not outlive the process, and so
their keys do not either. The revision does, because revisions must never be used twice.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import struct
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from crc32c import crc32c

from stentor import limits
from stentor.coordination.rules import check_key, check_swap, check_ttl
from stentor.errors import (
    Closed,
    CoordinationUnavailable,
    CorruptData,
    FormatTooNew,
    LeaseExpired,
    LimitExceeded,
    StorageError,
    UnknownSwap,
)
from stentor.ports import Changed, CoordinationStatistics, Entry, Range, Resync, StoreRoom, Swap

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Mapping
    from typing import Any

_VERSION: Final = 2
_VERSION_WHOLE: Final = 1  # without a file of changes
_CHANGES_BYTES_MIN: Final = 1024 * 1024  # below this the state is not worth writing whole
_CHECKSUM: Final = struct.Struct("<I")
_LEASE_BITS: Final = 62

logger = logging.getLogger(__name__)


class _State(msgspec.Struct, array_like=True):
    version: int
    revision: int
    entries: dict[str, tuple[bytes, int]]


class _Change(msgspec.Struct, array_like=True, frozen=True):
    revision: int
    put: dict[str, bytes]
    deleted: list[str]


# Made here, under the import lock: msgspec crashes when two threads look at a new type at once.
_decoder = msgspec.msgpack.Decoder(_State)
_change_decoder = msgspec.msgpack.Decoder(_Change)


class Changes(Protocol):
    """Where changes are kept that follow the state."""

    @property
    def size(self) -> int: ...
    @property
    def usable(self) -> bool: ...
    def load(self) -> list[bytes]: ...
    def append(self, payload: bytes) -> None: ...
    def clear(self) -> None: ...
    def close(self) -> None: ...


class _Held(msgspec.Struct, frozen=True):
    value: bytes
    revision: int
    lease: int = 0


class _Lease(msgspec.Struct):
    ttl_s: int
    timer: asyncio.TimerHandle


class EmbeddedStore:
    """A CoordinationStore that persists through `save`, and through `changes` if it has them."""

    def __init__(
        self,
        saved: bytes | None,
        save: Callable[[bytes], None],
        *,
        changes: Changes | None = None,
        timeout_s: float = limits.DEFAULT_TIMEOUT_S,  # a slow disk is no reason to give up on it soon
    ) -> None:
        state = _State(_VERSION, 0, {}) if saved is None else _load(saved)
        self._revision = state.revision
        self._entries = {key: _Held(*held) for key, held in state.entries.items()}
        self._changes = changes
        self._whole_bytes = 0 if saved is None else len(saved)
        self._appends = False  # whether the state on disk allows for changes beside it
        if changes is not None and saved is not None and state.version > _VERSION_WHOLE:
            self._follow(changes.load())
            self._appends = True
        self._save = save
        self._timeout_s = timeout_s
        self._changing = asyncio.Lock()
        self._moved = asyncio.Event()
        self._history: deque[Changed] = deque(maxlen=limits.COORDINATION_HISTORY_CHANGES)
        self._leases: dict[int, _Lease] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._requests = self._failures = self._watches = self._resyncs = 0

    def _follow(self, changes: list[bytes]) -> None:
        """Apply what was changed since the state was written."""
        for payload in changes:
            change = _change_decoder.decode(payload)
            if change.revision > self._revision:
                self._revision = change.revision
                self._apply_here(change.put, change.deleted, change.revision, 0)

    # --- reading --------------------------------------------------------------------------------

    async def get(self, key: str) -> Entry | None:
        self._begin()
        check_key(key)
        held = self._entries.get(key)
        return None if held is None else Entry(key, held.value, held.revision)

    async def range(self, prefix: str) -> Range:
        self._begin()
        return self._range(prefix)

    def _range(self, prefix: str) -> Range:
        entries = self._entries
        found = [Entry(key, entries[key].value, entries[key].revision) for key in entries if key.startswith(prefix)]
        return Range(sorted(found, key=lambda entry: entry.key), self._revision)

    async def watch(self, prefix: str, revision: int) -> AsyncGenerator[Changed | Resync, None]:
        self._watches += 1
        try:
            while not self._closed:
                behind = self._revision - revision
                if behind == 0:
                    await self._moved.wait()
                elif 0 < behind <= len(self._history):
                    change = self._history[-behind]
                    revision = change.revision
                    seen = _below(prefix, change)
                    if seen.put or seen.deleted:
                        yield seen
                else:
                    self._resyncs += 1
                    everything = self._range(prefix)
                    revision = everything.revision
                    yield Resync(everything.entries, revision)
        finally:
            self._watches -= 1

    # --- changing -------------------------------------------------------------------------------

    async def swap(
        self, *, expect: Mapping[str, int], put: Mapping[str, bytes], delete: tuple[str, ...] = (), lease: int = 0
    ) -> Swap:
        self._begin()
        check_swap(expect, put, delete)
        finished = await self._change(self._swap(dict(expect), dict(put), delete, lease))
        if finished is None:
            raise UnknownSwap(
                f"A change was not saved within {self._timeout_s:g} s. It may still be saved.",
                hint="Read the keys back before trying again.",
                operation="swap",
            )
        return finished

    async def _change(self, work: Coroutine[Any, Any, Swap]) -> Swap | None:
        """Run one change alone; None if it is still running at the deadline."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._changing.acquire()
        except BaseException as error:
            work.close()
            if isinstance(error, TimeoutError):
                self._failures += 1
                raise CoordinationUnavailable(
                    f"The coordination file is still busy with another change after {self._timeout_s:g} s.",
                    hint="Check the disk of the data directory.",
                ) from None
            raise
        task = self._start(work)
        task.add_done_callback(lambda _: self._changing.release())
        done, _ = await asyncio.wait({task}, timeout=self._timeout_s)
        self._failures += not done
        return task.result() if done else None

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits for it was told; if nobody does, nobody is to be

    async def _swap(self, expect: dict[str, int], put: dict[str, bytes], delete: tuple[str, ...], lease: int) -> Swap:
        absent = _Held(b"", 0)
        if any(self._entries.get(key, absent).revision != revision for key, revision in expect.items()):
            return Swap(succeeded=False, revision=self._revision)
        if put and lease and lease not in self._leases:
            raise _expired(lease)
        await self._apply(put, [key for key in dict.fromkeys(delete) if key in self._entries], lease)
        return Swap(succeeded=True, revision=self._revision)

    async def _apply(self, put: dict[str, bytes], deleted: list[str], lease: int = 0) -> None:
        if not put and not deleted:
            return
        revision = self._revision + 1
        # The new state counts only once it is on disk.
        await asyncio.to_thread(self._store, put, deleted, revision, lease)
        self._revision = revision
        self._apply_here(put, deleted, revision, lease)
        self._history.append(Changed(revision, [Entry(key, put[key], revision) for key in put], deleted))
        self._wake()

    def _apply_here(self, put: Mapping[str, bytes], deleted: list[str], revision: int, lease: int) -> None:
        for key in deleted:
            self._entries.pop(key, None)
        for key, value in put.items():
            self._entries[key] = _Held(value, revision, lease)

    def _store(self, put: dict[str, bytes], deleted: list[str], revision: int, lease: int) -> None:
        """In a thread, while nothing else changes: bring one change to disk."""
        changes = self._changes
        if changes is not None and self._appends and changes.usable and changes.size <= self._changes_bytes_max:
            # Keys of a lease go with the process: whatever they replace is gone on disk too.
            kept, gone = ({}, [*deleted, *put]) if lease else (put, deleted)
            changes.append(msgspec.msgpack.encode(_Change(revision, kept, gone)))
            return
        entries = dict(self._entries)
        for key in deleted:
            del entries[key]
        entries.update((key, _Held(value, revision, lease)) for key, value in put.items())
        whole = _dump(revision, entries, _VERSION_WHOLE if changes is None else _VERSION)
        self._save(whole)
        self._whole_bytes = len(whole)
        if changes is not None:
            self._appends = True
            try:
                changes.clear()
            except StorageError as error:  # the change is made; the next one writes everything again
                logger.warning("changes of the coordination file could not be cleared: %s", error)

    @property
    def _changes_bytes_max(self) -> int:
        return max(_CHANGES_BYTES_MIN, self._whole_bytes)

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    # --- leases ---------------------------------------------------------------------------------

    async def lease(self, ttl_s: int) -> int:
        self._begin()
        check_ttl(ttl_s)
        if len(self._leases) >= limits.COORDINATION_LEASES_MAX:
            raise LimitExceeded(f"There are {len(self._leases)} leases, which is the limit.")
        # By chance, not by counting: one from before a restart must not mean another one now.
        lease = secrets.randbits(_LEASE_BITS) + 1
        self._leases[lease] = _Lease(ttl_s, self._timer(lease, ttl_s))
        return lease

    async def keep_alive(self, lease: int) -> float:
        self._begin()
        held = self._leases.get(lease)
        if held is None:
            raise _expired(lease)
        held.timer.cancel()
        held.timer = self._timer(lease, held.ttl_s)
        return float(held.ttl_s)

    async def revoke(self, lease: int) -> None:
        self._begin()
        held = self._leases.pop(lease, None)
        if held is not None:
            held.timer.cancel()
        if await self._change(self._drop(lease)) is None:
            raise CoordinationUnavailable(
                f"A lease was not ended on disk within {self._timeout_s:g} s.",
                hint="Try again, and check the disk of the data directory.",
            )

    def _timer(self, lease: int, after_s: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(after_s, self._expire, lease)

    def _expire(self, lease: int) -> None:
        if not self._closed:
            self._leases.pop(lease, None)
            self._start(self._drop_in_time(lease))

    async def _drop_in_time(self, lease: int) -> None:
        try:
            await self._change(self._drop(lease))
        except (CoordinationUnavailable, StorageError, OSError) as error:
            logger.warning("the keys of an expired lease could not be deleted yet: %s", error)
            self._timer(lease, limits.COORDINATION_POLL_S)

    async def _drop(self, lease: int) -> Swap:
        await self._apply({}, [key for key, held in self._entries.items() if held.lease == lease])
        return Swap(succeeded=True, revision=self._revision)

    # --- life -----------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._closed:
            raise Closed("The coordination store is closed.")
        self._requests += 1

    @property
    def has_quota(self) -> bool:
        """Whether it can be full: no, only its disk can."""
        return False

    async def room(self) -> StoreRoom:
        return StoreRoom(revision=self._revision, bytes=0, bytes_in_use=0)

    async def is_shared(self, kinds: Collection[str]) -> bool:  # noqa: ARG002 - nobody else can write to it
        return False

    async def compact(self, revision: int) -> None:
        """Keep what is there: it has no history."""

    def statistics(self) -> CoordinationStatistics:
        return CoordinationStatistics(
            kind="embedded",
            endpoint="",
            available=not self._closed,
            requests=self._requests,
            failures=self._failures,
            watches=self._watches,
            reconnects=0,
            resyncs=self._resyncs,
        )

    async def close(self) -> None:
        """End watches and leases; wait for a change under way."""
        self._closed = True
        self._wake()
        for held in self._leases.values():
            held.timer.cancel()
        self._leases.clear()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._timeout_s)
        if self._changes is not None:
            self._changes.close()


def _below(prefix: str, change: Changed) -> Changed:
    return Changed(
        change.revision,
        [entry for entry in change.put if entry.key.startswith(prefix)],
        [key for key in change.deleted if key.startswith(prefix)],
    )


def _expired(lease: int) -> LeaseExpired:
    return LeaseExpired(f"Lease {lease:x} has expired.", hint="Take a new one, and put its keys again.")


def _dump(revision: int, entries: dict[str, _Held], version: int) -> bytes:
    kept = {key: (held.value, held.revision) for key, held in entries.items() if not held.lease}
    body = msgspec.msgpack.encode(_State(version, revision, kept))
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


def read_saved(saved: bytes, changes: list[bytes]) -> dict[str, bytes]:
    """What a store holds by its files, for those who only look; CorruptData if they are not readable."""
    state = _load(saved)
    found = {key: value for key, (value, _) in state.entries.items()}
    for payload in changes if state.version > _VERSION_WHOLE else ():
        change = _change_decoder.decode(payload)
        if change.revision > state.revision:
            found.update(change.put)
            for key in change.deleted:
                found.pop(key, None)
    return found
