"""One timer for all partitions with flush=interval."""

import asyncio
from types import SimpleNamespace

from stentor import limits
from stentor.broker.failures import Failures
from stentor.broker.partitions.flusher import Flusher


class Partition:
    """Counts how often it is flushed; may be busy with a sync."""

    def __init__(self, interval_ms):
        self.settings = SimpleNamespace(flush_interval_ms=interval_ms)
        self.name = "orders/0"
        self.replica = SimpleNamespace(failed="")
        self.deleted = self.busy = False
        self.sync = self
        self.dirty = True
        self.flushed_at = []

    def flush_interval(self):
        if not self.busy:
            self.dirty = False
            self.flushed_at.append(asyncio.get_running_loop().time())


def made():
    loop = asyncio.get_running_loop()
    return Flusher(loop, Failures(loop, loop.time))


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - nobody sets an event here
            await asyncio.sleep(0.001)


def test_a_partition_is_flushed_an_interval_after_it_was_written_to_and_then_left_alone():
    async def story():
        loop = asyncio.get_running_loop()
        flusher, slow, fast = made(), Partition(60_000), Partition(30)
        began = loop.time()
        flusher.add(slow)
        flusher.add(fast)
        await until(lambda: fast.flushed_at)
        assert fast.flushed_at[0] - began >= 0.03
        assert not slow.flushed_at
        assert flusher._timer.when() - began > 50, "no timer runs for those that were not written to"
        flusher.close()

    asyncio.run(story())


def test_a_turn_flushes_only_so_many_and_all_have_their_turn():
    async def story():
        flusher = made()
        partitions = [Partition(1) for _ in range(10 * limits.FLUSHES_PER_TURN)]
        for partition in partitions:
            flusher.add(partition)
        await until(lambda: all(partition.flushed_at for partition in partitions))
        times = sorted(partition.flushed_at[0] for partition in partitions)
        assert times[-1] - times[0] >= 8 * limits.FLUSH_TURN_S
        assert flusher._timer is None

    asyncio.run(story())


def test_a_partition_whose_sync_is_under_way_is_flushed_after_it():
    async def story():
        flusher, partition = made(), Partition(1)
        partition.busy = True
        flusher.add(partition)
        await until(lambda: flusher._due and flusher._due[0][1] > 3)
        assert not partition.flushed_at
        partition.busy = False
        await until(lambda: partition.flushed_at)

    asyncio.run(story())


def test_deleted_and_failed_partitions_are_forgotten():
    async def story():
        flusher, deleted, failed = made(), Partition(1), Partition(1)
        deleted.deleted, failed.replica.failed = True, "no disk"
        flusher.add(deleted)
        flusher.add(failed)
        await until(lambda: not flusher._due)
        assert not deleted.flushed_at
        assert not failed.flushed_at

    asyncio.run(story())
