"""What a broker gets from outside, and who it is: plain data that its parts share."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from stentor import limits
from stentor.broker.disk_threads import DiskThreads
from stentor.broker.failures import Failures
from stentor.broker.long_requests import LongRequests
from stentor.broker.loop_watch import LoopWatch
from stentor.broker.slices import Slices
from stentor.broker.write_coalescing import WriteCoalescing
from stentor.transport.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.broker.config import BrokerConfig
    from stentor.ports import Clock


class SystemClock:
    """The machine's clocks."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    monotonic = staticmethod(time.monotonic)  # asked several times for each batch


class BrokerIdentity:
    """Who this broker is. Settled during the start, before anybody is let in."""

    def __init__(self) -> None:
        self.broker_id = ""
        self.cluster_id = ""
        self.incarnation = 0  # which life of this broker this is (C3)
        self.alone = False  # a system of one broker, with a store of its own
        self.http_address = ""  # told by whoever serves HTTP for this broker


class Environment:
    """Settings, clocks, the loop and threads for the disk."""

    def __init__(self, config: BrokerConfig, clock: Clock, disk_threads: Callable[..., DiskThreads]) -> None:
        self.config = config
        self.clock = clock
        self.disk_threads = disk_threads
        self.loop = asyncio.get_running_loop()
        self.watch = LoopWatch(self.loop, clock)
        self.failures = Failures(self.loop, clock.monotonic)
        self.slices = Slices(self.loop, clock.monotonic, self.failures)
        self.long_requests = LongRequests(self.loop, self.slices, self.watch)
        self.turns = Turns(self.loop, clock.monotonic, self.watch.note)
        self.coalescing = WriteCoalescing(self.loop)
        self.syncs = disk_threads(self.loop, threads=limits.SYNC_THREADS, name="sync")
        self.reads = disk_threads(self.loop, threads=limits.READ_THREADS, name="read")
        self.epochs = disk_threads(self.loop, threads=1, name="epochs")
        self._threads = [self.reads, self.syncs, self.epochs]

    def monotonic_us(self) -> int:
        """Microseconds on a clock that never goes back."""
        return int(self.clock.monotonic() * 1_000_000)

    def close_threads(self) -> None:
        """In a thread: wait for what the disk has begun."""
        while self._threads:
            self._threads.pop().close()
