"""What only the embedded store has: a file, and a disk under it that can be slow or full."""

import asyncio
import threading

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
