"""A partition's log on its way to the disk: group commit, back-pressure, and cutting the log back.

One sync or cut at a time; whoever comes while one is under way is served by the next. `flush=interval` topics are
told before the disk has them; a timer brings them there.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Protocol

from stentor import limits
from stentor.core import replica_events as r
from stentor.errors import OutOfDescriptors, StentorError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.broker.disk_threads import DiskThreads
    from stentor.broker.partitions.interfaces import Sender
    from stentor.core.replica import Replica
    from stentor.core.replica_events import ReplicaEvent
    from stentor.ports import Clock
    from stentor.storage.memory_log import AnyLog
    from stentor.wire.messages import TopicSettings

logger = logging.getLogger(__name__)


class Synced(Protocol):
    """The partition whose log it is."""

    log: AnyLog
    settings: TopicSettings

    @property
    def name(self) -> str: ...
    @property
    def replica(self) -> Replica: ...
    @property
    def is_fed(self) -> bool: ...

    def step(self, event: ReplicaEvent) -> None: ...
    def flush_later(self) -> None: ...
    def before_cut(self, end: int) -> None: ...
    def log_replaced(self, log: AnyLog) -> None: ...


class LogSync:
    """Brings one log to disk."""

    def __init__(self, partition: Synced, threads: DiskThreads, clock: Clock) -> None:
        self._partition = partition
        self._threads = threads
        self.clock = clock
        self.under_way = False
        self.began_us: int | None = None  # when a disk thread took it up
        self.dirty = False  # flush=interval: written since the last sync
        self._cut: tuple[r.Truncate, Callable[[], AnyLog]] | None = None  # waits for the sync, or is under way
        self._unsynced_bytes = 0
        self._held: set[Sender] = set()  # those who were told to wait for the disk
        self._stopped: list[Callable[[], None]] = []  # who waits for the end

    @property
    def is_cutting(self) -> bool:
        """Whether the log is being cut back right now."""
        return self._cut is not None

    @property
    def is_fed(self) -> bool:
        """Whether a successor gets the same batches, and should get them first."""
        return self._partition.is_fed

    # --- syncing --------------------------------------------------------------------------------

    def request(self, sender: Sender | None) -> None:
        """The machine wants the log on disk. `sender`: whose batch was just taken, if one was."""
        partition = self._partition
        if partition.log.in_memory:
            partition.step(r.Durable(partition.log.end))
        elif partition.settings.flush == "interval":
            if not self.dirty:
                self.dirty = True
                partition.flush_later()
            partition.step(r.Durable(partition.log.end))
        elif not self.under_way and not (sender is not None and sender.defer_sync(self)):
            self.start()

    def start(self) -> None:
        """In a disk thread, now."""
        self.under_way = True
        self._unsynced_bytes = 0
        self._threads.times.begins(self)
        self._threads.submit(self._sync, self._synced)

    def start_if_idle(self) -> None:
        """Unless a sync is under way, or the log has failed."""
        if not self.under_way and not self._partition.replica.failed:
            self.start()

    def _sync(self) -> int:
        """In a disk thread."""
        self.began_us = int(self.clock.monotonic() * 1_000_000)
        return self._partition.log.sync()

    def run_deferred(self, *, in_loop: bool) -> None:
        """The read that published is over: start the sync that was put off until then."""
        if self.under_way or self._partition.replica.failed:
            return
        if not in_loop:
            self.start()
            return
        self.under_way = True
        self._unsynced_bytes = 0
        try:
            end = self._sync()
        except StentorError as error:
            self._synced(None, error)
        else:
            self._synced(end, None)

    def _synced(self, end: int | None, error: StentorError | None) -> None:
        partition = self._partition
        if isinstance(error, OutOfDescriptors):  # nothing was synced, so it may be tried again (unlike K3)
            logger.warning("partition %s waits for a free file descriptor: %s", partition.name, error.message)
            loop, again = self._threads.loop, partial(self._threads.submit, partition.log.sync, self._synced)
            loop.call_later(limits.DISK_AGAIN_S, again)
            return
        if self.began_us is not None and error is None:
            self._threads.times.note(self.began_us, int(self.clock.monotonic() * 1_000_000))
        self._threads.times.is_over(self)
        self.under_way, self.began_us = False, None
        if self._cut is not None and error is None:
            self._begin_cut()
            return
        if error is not None:
            logger.error("partition %s takes no more writes: %s", partition.name, error)
            partition.step(r.Fail(error.message))
        elif end is not None:
            partition.step(r.Durable(end))
        self._disk_is_free()

    def _disk_is_free(self) -> None:
        """A sync or a cut is over: who waited for it goes on."""
        stopped, self._stopped = (self._stopped, []) if not self.under_way else ([], self._stopped)
        for done in stopped:
            done()
        held, self._held = self._held, set()
        for sender in held:
            sender.release()

    def wait_if_far_ahead(self, sender: Sender, size: int) -> None:
        """Back-pressure: memory and the unsynced part of the log stay bounded."""
        if self._partition.log.in_memory:
            return  # the log itself refuses what it has no room for
        self._unsynced_bytes += size
        if self._unsynced_bytes > limits.UNSYNCED_BYTES_MAX and sender not in self._held:
            self._held.add(sender)
            sender.hold()
            self.start_if_idle()  # flush=interval: the timer may be an hour away

    # --- when nobody publishes ------------------------------------------------------------------

    def flush_interval(self) -> None:
        """Called by the broker's timer for topics with flush=interval."""
        if self.dirty and not self.under_way and not self._partition.replica.failed:
            self.dirty = False
            self.start()

    def catch_up(self) -> None:
        """A topic that changed to flush=always leaves nothing behind that only memory holds."""
        log = self._partition.log
        if self._partition.settings.flush == "always" and log.synced_end < log.end:
            self.start_if_idle()

    def roll_if_due(self) -> None:
        """Close a segment that holds only what has expired, so that retention can take it."""
        partition = self._partition
        if partition.replica.failed or self.under_way or not partition.log.roll_due(self.clock.now_us()):
            return
        try:
            partition.log.roll()
        except StentorError as error:
            logger.warning("partition %s: %s", partition.name, error)
            return
        self.start()

    def stop(self, done: Callable[[], None]) -> None:
        """Bring everything to disk, then call `done`."""
        log = self._partition.log
        if not self.under_way and (self._partition.replica.failed or log.synced_end >= log.end):
            done()
            return
        self._stopped.append(done)
        if not self.under_way:
            self.start()

    # --- cutting --------------------------------------------------------------------------------

    def cut(self, effect: r.Truncate, work: Callable[[], AnyLog]) -> None:
        """Once no sync runs: cut the log and derive everything again, in a disk thread."""
        self._cut = effect, work
        if not self.under_way:
            self._begin_cut()

    def _begin_cut(self) -> None:
        assert self._cut is not None
        effect, work = self._cut
        log = self._partition.log
        if effect.end < log.end:  # C7
            cut = (self._partition.name, effect.end, log.end)
            logger.warning("partition %s: offsets %d to %d were not committed and are cut off", *cut)
        self.under_way = True
        self._unsynced_bytes = 0
        self._partition.before_cut(effect.end)
        self._threads.submit(work, self._log_cut)

    def _log_cut(self, log: AnyLog | None, error: StentorError | None) -> None:
        cut, self._cut = self._cut, None
        self.under_way = False
        partition = self._partition
        if error is not None or log is None or cut is None:
            reason = "" if error is None else error.message
            logger.error("partition %s could not cut its log: %s", partition.name, reason)
            partition.step(r.Fail(f"the log could not be cut back: {reason}"))
        else:
            partition.log_replaced(log)
            partition.step(r.Cut(cut[0].end))
        self._disk_is_free()
