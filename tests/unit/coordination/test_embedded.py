"""What only the embedded store has: a file, and a disk under it that can be slow or full."""

import asyncio
import errno
import os
import threading
from functools import partial, wraps

import msgspec
import pytest
from crc32c import crc32c

from stentor import limits
from stentor.coordination import EmbeddedStore
from stentor.errors import (
    CoordinationUnavailable,
    CorruptData,
    DiskFull,
    FormatTooNew,
    LeaseExpired,
    LimitExceeded,
    UnknownSwap,
)
from stentor.ports import Resync
from stentor.storage.changes import ChangesFile
from stentor.storage.files import atomic_write


class Disk:
    """Takes what is saved, unless it is told to wait or to refuse."""

    def __init__(self):
        self.saved = None
        self.full = False
        self.moving = threading.Event()
        self.moving.set()
        self.stores = []

    def save(self, data):
        assert self.moving.wait(20)
        if self.full:
            raise DiskFull("There is no room.")
        self.saved = data

    def open(self, **options):
        self.stores.append(EmbeddedStore(self.saved, self.save, **options))
        return self.stores[-1]


@pytest.fixture
def disk():
    disk = Disk()
    yield disk
    disk.moving.set()


def test_what_was_swapped_is_there_after_a_restart(disk, tell):
    async def story():
        store = disk.open()
        await store.swap(expect={}, put={"x/1": b"a", "x/2": b"b", "y": b"c"})
        last = await store.swap(expect={}, put={}, delete=("x/1",))
        again = disk.open()
        assert [entry.key for entry in await again.range("x/")] == ["x/2"]
        assert (await again.swap(expect={}, put={"z": b""})).revision == last.revision + 1, "revisions go on"

    tell(disk, story())


def test_a_swap_that_could_not_be_saved_did_not_happen(disk, tell):
    async def story():
        store = disk.open()
        kept = await store.swap(expect={}, put={"a": b"1"})
        disk.full = True
        with pytest.raises(DiskFull):
            await store.swap(expect={"a": kept.revision}, put={"a": b"2"})
        assert (await store.get("a")).value == b"1"
        disk.full = False
        assert (await store.swap(expect={"a": kept.revision}, put={"a": b"3"})).succeeded

    tell(disk, story())


def test_a_file_that_fails_its_checksum_or_is_too_new_is_refused(disk, tell):
    async def story():
        await disk.open().swap(expect={}, put={"a": b"1"})

    tell(disk, story())
    for at in range(len(disk.saved)):
        broken = bytearray(disk.saved)
        broken[at] ^= 1
        with pytest.raises(CorruptData, match="coordination"):
            EmbeddedStore(bytes(broken), disk.save)
    for cut in (b"", disk.saved[:3], disk.saved[:-1]):
        with pytest.raises(CorruptData):
            EmbeddedStore(cut, disk.save)
    newer = msgspec.msgpack.encode([99, 1, {}, "what we do not know"])
    with pytest.raises(FormatTooNew):
        EmbeddedStore(crc32c(newer).to_bytes(4, "little") + newer, disk.save)


def test_leased_keys_do_not_survive_a_restart_but_their_revisions_do(disk, tell):
    async def story():
        store = disk.open()
        lease = await store.lease(60)
        await store.swap(expect={}, put={"hard": b"1"})
        leased = await store.swap(expect={}, put={"alive": b"2"}, lease=lease)
        await store.close()
        again = disk.open()
        assert [entry.key for entry in await again.range("")] == ["hard"]
        assert (await again.range("")).revision == leased.revision
        with pytest.raises(LeaseExpired):
            await again.keep_alive(lease)

    tell(disk, story())


def test_a_watch_from_before_a_restart_is_given_everything(disk, tell, follow):
    async def story():
        store = disk.open()
        first = await store.swap(expect={}, put={"a": b"1"})
        second = await store.swap(expect={}, put={"b": b"2"})
        again = disk.open()
        behind = follow(again.watch("", first.revision))
        current = follow(again.watch("", second.revision))
        await behind.knows({"a": b"1", "b": b"2"})
        await again.swap(expect={}, put={"c": b"3"})
        await current.knows({"c": b"3"})
        assert (len(behind.resyncs), len(current.resyncs)) == (1, 0)
        for follower in (behind, current):
            await follower.stop()

    tell(disk, story())


def test_a_watch_that_is_too_slow_starts_over(disk, tell, monkeypatch):
    async def story():
        monkeypatch.setattr(limits, "COORDINATION_HISTORY_CHANGES", 4)
        store = disk.open()
        watch = store.watch("", 0)
        await store.swap(expect={}, put={"k": b"first"})
        assert (await anext(watch)).put[0].value == b"first"
        for index in range(5):
            await store.swap(expect={}, put={"k": b"%d" % index})
        resync = await anext(watch)
        assert isinstance(resync, Resync)
        assert [entry.value for entry in resync.entries] == [b"4"]
        await watch.aclose()

    tell(disk, story())


def test_a_change_the_disk_does_not_finish_in_time_is_unknown_and_is_made_later(disk, tell, eventually):
    async def story():
        store = disk.open(timeout_s=0.05)
        disk.moving.clear()
        with pytest.raises(UnknownSwap):
            await store.swap(expect={"a": 0}, put={"a": b"1"})
        with pytest.raises(CoordinationUnavailable) as refused:
            await store.swap(expect={}, put={"b": b"2"})
        assert refused.value.retriable
        assert await store.get("a") is None, "it counts once it is on disk"
        disk.moving.set()
        await eventually(lambda: store._entries.get("a"))
        assert (await store.swap(expect={"a": 1, "b": 0}, put={"c": b"3"})).succeeded
        assert store.statistics().failures == 2

    tell(disk, story())


def test_a_change_whose_caller_went_away_is_finished(disk, tell, eventually):
    async def story():
        store = disk.open()
        disk.moving.clear()
        going = asyncio.ensure_future(store.swap(expect={}, put={"a": b"1"}))
        await eventually(store._changing.locked)
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going
        disk.moving.set()
        assert (await store.swap(expect={}, put={"b": b"2"})).succeeded
        assert [entry.key for entry in await disk.open().range("")] == ["a", "b"]

    tell(disk, story())


def test_keys_of_a_lease_that_ends_on_a_full_disk_go_when_there_is_room(disk, tell, eventually, monkeypatch):
    async def story():
        monkeypatch.setattr(limits, "COORDINATION_POLL_S", 0.01)
        store = disk.open()
        lease = await store.lease(60)
        await store.swap(expect={}, put={"a": b""}, lease=lease)
        disk.full = True
        store._expire(lease)
        with pytest.raises(DiskFull):
            await store.revoke(lease)
        with pytest.raises(LeaseExpired):
            await store.keep_alive(lease)
        assert await store.get("a") is not None
        disk.full = False
        await eventually(lambda: not store._entries)

    tell(disk, story())


def test_leases_are_bounded(disk, tell, monkeypatch):
    async def story():
        monkeypatch.setattr(limits, "COORDINATION_LEASES_MAX", 2)
        store = disk.open()
        first = await store.lease(60)
        await store.lease(60)
        with pytest.raises(LimitExceeded):
            await store.lease(60)
        await store.revoke(first)
        await store.lease(60)

    tell(disk, story())


def in_a_loop(story):
    """Run an async test."""

    @wraps(story)
    def run(*arguments, **options):
        asyncio.run(story(*arguments, **options))

    return run


def _full(_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class TestChanges:
    """The state whole, and what changed since beside it."""

    @pytest.fixture
    def files(self, tmp_path):
        return tmp_path / "coordination", tmp_path / "coordination.changes"

    def open(self, files):
        state, changes = files
        saved = state.read_bytes() if state.exists() else None
        return EmbeddedStore(saved, partial(atomic_write, state), changes=ChangesFile(changes))

    async def fill(self, store, count, size=100):
        for number in range(count):
            await store.swap(expect={}, put={f"key/{number}": bytes(size)})

    async def everything(self, store):
        found = await store.range("")
        return found.revision, {entry.key: (entry.value, entry.revision) for entry in found.entries}

    @in_a_loop
    async def test_a_change_costs_what_it_changes_not_what_there_is(self, files):
        store = self.open(files)
        await self.fill(store, 300)
        sizes = [path.stat().st_size for path in files]
        await store.swap(expect={}, put={"one": b"more"})
        assert files[0].stat().st_size == sizes[0]
        assert 0 < files[1].stat().st_size - sizes[1] < 100
        await store.close()

    @in_a_loop
    async def test_everything_is_there_after_a_restart(self, files):
        store = self.open(files)
        await self.fill(store, 20)
        await store.swap(expect={}, put={"key/3": b"new"}, delete=("key/4", "key/5"))
        before = await self.everything(store)
        await store.close()
        again = self.open(files)
        assert await self.everything(again) == before
        await again.swap(expect={"key/3": before[1]["key/3"][1]}, put={"key/3": b"newer"})
        assert (await again.range("")).revision == before[0] + 1
        await again.close()

    @in_a_loop
    async def test_keys_of_a_lease_do_not_come_back(self, files):
        store = self.open(files)
        await self.fill(store, 2)
        lease = await store.lease(60)
        await store.swap(expect={}, put={"key/0": b"lives", "live": b""}, lease=lease)
        await store.close()
        again = self.open(files)
        revision, found = await self.everything(again)
        assert set(found) == {"key/1"}
        assert revision == 3
        await again.close()

    @in_a_loop
    async def test_changes_that_outgrow_the_state_are_taken_into_it(self, files):
        store = self.open(files)
        await self.fill(store, 30, size=100_000)
        assert files[0].stat().st_size > 1_000_000
        assert files[1].stat().st_size < 3_200_000
        before = await self.everything(store)
        await store.close()
        again = self.open(files)
        assert await self.everything(again) == before
        await again.close()

    @in_a_loop
    async def test_a_crash_between_the_state_and_the_clearing_of_its_changes_is_harmless(self, files):
        store = self.open(files)
        await self.fill(store, 5)
        before, changes = await self.everything(store), files[1].read_bytes()
        await store.close()
        store = self.open(files)
        store._changes.usable = False  # so that the next change writes everything
        await store.swap(expect={}, put={"last": b"1"})
        after = await self.everything(store)
        await store.close()
        files[1].write_bytes(changes)
        again = self.open(files)
        assert await self.everything(again) == after != before
        await again.close()

    @in_a_loop
    async def test_a_file_of_an_older_stentor_is_taken_over_and_then_refused_by_it(self, files):
        old = EmbeddedStore(None, partial(atomic_write, files[0]))
        await self.fill(old, 3)
        before = await self.everything(old)
        await old.close()
        store = self.open(files)
        assert await self.everything(store) == before
        await store.swap(expect={}, put={"new": b"1"})
        await store.close()
        assert msgspec.msgpack.decode(files[0].read_bytes()[4:])[0] == 2

    @in_a_loop
    async def test_a_change_that_could_not_be_written_did_not_happen(self, files, monkeypatch):
        store = self.open(files)
        await self.fill(store, 3)
        before = await self.everything(store)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", _full)
            with pytest.raises(DiskFull):
                await store.swap(expect={}, put={"lost": b"1"})
        assert await self.everything(store) == before
        await store.swap(expect={}, put={"kept": b"1"})
        after = await self.everything(store)
        await store.close()
        again = self.open(files)
        assert await self.everything(again) == after
        assert "lost" not in after[1]
        await again.close()
