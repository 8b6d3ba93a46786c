"""The compactions of one partition: whether another one is worth it, how far it may go, what they have saved."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

from stentor.core.horizon import NOWHERE, Horizon, HorizonState
from stentor.core.replica_events import LinkAgain
from stentor.core.table import TableState
from stentor.errors import Compacted, NotReady, StentorError
from stentor.limits import KIB, MIB
from stentor.storage.compaction import CompactionReport
from stentor.storage.memory_log import on_disk
from stentor.wire.statistics import CompactionStatistics

if TYPE_CHECKING:
    from stentor.broker.partitions.followers import Followers
    from stentor.broker.partitions.log_sync import LogSync
    from stentor.broker.partitions.successor import Successor
    from stentor.broker.partitions.tail_cache import TailCache
    from stentor.core.replica import Replica
    from stentor.core.replica_events import ReplicaEvent
    from stentor.storage.compaction import Compaction
    from stentor.storage.memory_log import AnyLog
    from stentor.wire.messages import TopicSettings

logger = logging.getLogger(__name__)


COMPACTION_BYTES_MIN: Final = 1 * MIB
"""Less than this, written since the last horizon, is compacted only when the log has been quiet for a while."""

COMPACTION_SHARE: Final = 0.5
"""A head logs a horizon when so much was written since the last one, as a share of what is below it. So a log is at
most half as large again as it must be, and what stays in it is written anew once for every half of it that is new."""

COMPACTION_QUIET_S: Final = 60.0
"""After so long without a horizon, less is enough:"""

COMPACTION_QUIET_SHARE: Final = 0.1
"""this share of what is below the last one,"""

COMPACTION_QUIET_BYTES_MIN: Final = 16 * KIB
"""and this much; a table that hardly changes is left alone."""


COMPACTION_STALE_SHARE: Final = 0.1
"""Of a table: so many changes, as a share of its keys, must have replaced or deleted something. One that only grows has
nothing to give, and looking for it takes memory for each key."""

LOOKS_MAX: Final = 20
"""So often a compaction waits for segments to be on disk; then it does without those that are not. If nothing is left,
it waits for the next horizon."""


class Shrinking(Protocol):
    """The partition whose log is compacted."""

    log: AnyLog
    replica: Replica
    sync: LogSync
    tail: TailCache
    followers: Followers
    settings: TopicSettings
    successor: Successor

    @property
    def name(self) -> str: ...

    def step(self, event: ReplicaEvent) -> None: ...


class PartitionCompaction:
    """What one partition knows of its compactions."""

    def __init__(self, partition: Shrinking) -> None:
        self._partition = partition
        self._state = next((state for state in partition.replica.states if isinstance(state, HorizonState)), None)
        self._rolled = NOWHERE  # the horizon for which a segment was begun
        self._done = NOWHERE  # the horizon that was used last
        self._used = NOWHERE  # the horizon of the compaction that runs
        self._waited = 0  # how often it was looked whether all below the horizon is on disk
        self._totals = CompactionReport()
        self._runs = 0
        self._last_at_us = 0
        self._holds_back = False  # the last compaction left deletions for copies that were being filled
        self._removed_until = 0  # up to here it removed them
        self.running = False
        self.replacing = False  # files are put into their places right now
        self._table = next((state for state in partition.replica.states if isinstance(state, TableState)), None)
        self._keys_before: int | None = None  # of a table, at the last horizon, as far as this broker knows
        self.proposed_at_s: float | None = None  # when this broker logged a horizon, or found that none is needed

    @property
    def horizon(self) -> Horizon:
        """The newest that is committed."""
        return NOWHERE if self._state is None else self._state.committed

    @property
    def newest(self) -> Horizon:
        """The newest in the log: whoever filled this copy may have used it, before this one hears of its commit."""
        return NOWHERE if self._state is None else self._state.applied

    @property
    def is_settled(self) -> bool:
        """Whether no horizon is on its way, or waits to be used."""
        return self._state is not None and self._state.applied == self._state.committed == self._done

    @property
    def is_due(self) -> bool:
        """Whether there is a horizon that was not used."""
        return self.horizon.offset > self._done.offset

    def committed(self) -> None:
        """More is committed. Below a new horizon, everything goes into segments that are no longer written."""
        state, partition = self._state, self._partition
        if state is None or state.committed is self._rolled or partition.replica.failed or partition.sync.is_cutting:
            return
        self._rolled = state.committed
        try:
            if on_disk(partition.log).roll_behind(state.committed.offset + 1):
                partition.sync.start_if_idle()
        except StentorError as error:
            logger.warning("partition %s: %s", partition.name, error)

    def begin(self) -> Compaction | None:
        """A compaction with the newest horizon; None if that must wait."""
        partition = self._partition
        kept_us = int(partition.settings.deletions_kept_s * 1_000_000)
        horizon = self.horizon
        # Copies that are being filled hold deletions back, once: those that are as far behind the next time begin anew.
        held = [each for each in partition.followers.copies_below(horizon.deletions_until) if each.cursor.position]
        self._holds_back = bool(held) and not self._holds_back
        if self._holds_back or partition.successor.is_below(horizon.deletions_until):
            horizon = Horizon(horizon.offset, self._removed_until)
        job = on_disk(partition.log).compaction(horizon, committed=partition.replica.committed, kept_us=kept_us)
        self._waited += 1
        if not job.possible or not (job.whole or self._waited > LOOKS_MAX):
            if self._waited > LOOKS_MAX:  # not with this horizon: a crash took the snapshot behind it, for example
                self._waited, self._done = 0, self.horizon
            return None
        self._waited = 0
        self.running = True
        self._used = self.horizon
        self._removed_until = horizon.deletions_until
        return job

    def before_replacing(self) -> None:
        """Deletions are about to go: no copy may have read what they delete and miss them (C23)."""
        self.replacing = True
        followers, horizon = self._partition.followers, self.horizon
        if self._partition.successor.is_below(self._removed_until):
            self._partition.step(LinkAgain())  # only a joiner's log can be as short as that
        for stream in followers.copies_below(self._removed_until):
            stream.fail(self._gone() if stream.cursor.position else _not_now())
        for stream in followers.copies_below(horizon.offset):
            if stream.cursor.end is not None and stream.cursor.end < horizon.offset:
                stream.fail(self._past(stream.cursor.end))

    def replaced(self) -> None:
        """Files are in their places."""
        if self.replacing:
            self.replacing = False
            self._partition.successor.wake()

    def holds(self, position: int) -> bool:
        """Whether a copy that begins there must wait, or it would get half of what was and half of what will be."""
        return self.replacing and position < self._removed_until

    def check_copy(self, start: int, end: int | None) -> None:
        """Whether a reader that keeps the latest of each key may go on from an offset, up to an end if it has one."""
        if end is not None and end < self.newest.offset:
            raise self._past(end)
        if 0 < start < self.newest.deletions_until:
            raise self._gone()
        if self.holds(start):
            raise _not_now()

    def _past(self, end: int) -> Compacted:
        return Compacted(
            f"{self._partition.name} as it was at offset {end} is no longer known: the log was compacted up to"
            f" {self.newest.offset}.",
            hint="Read the table as it is now, or at a sequence that is not below that.",
            object=self._partition.name,
            horizon=self.newest.offset,
        )

    def _gone(self) -> Compacted:
        horizon = self.newest
        return Compacted(
            f"Deletions below offset {horizon.deletions_until} of {self._partition.name} were compacted away.",
            hint="Fill the copy anew, from the earliest message.",
            object=self._partition.name,
            horizon=horizon.offset,
        )

    def ended(self, report: CompactionReport, now_us: int) -> None:
        """It is over."""
        self.running = False
        self._done = self._used
        if report.rows_dropped:
            self._partition.tail.forget_below(self.horizon.offset)
        totals = self._totals
        totals.bytes_before += report.bytes_before
        totals.bytes_after += report.bytes_after
        totals.rows_dropped += report.rows_dropped
        self._runs += 1
        self._last_at_us = now_us

    def is_worth_it(self, now_s: float) -> bool:
        """Whether so much was written since the last horizon that another one saves enough."""
        horizon = self.horizon
        if not self._replaces_enough():
            return False
        below, since = on_disk(self._partition.log).bytes_since(0 if horizon == NOWHERE else horizon.offset + 1)
        if since >= COMPACTION_BYTES_MIN and since >= below * COMPACTION_SHARE:
            return True
        if self.proposed_at_s is None:
            self.proposed_at_s = now_s
        return (
            now_s - self.proposed_at_s >= COMPACTION_QUIET_S
            and since >= COMPACTION_QUIET_BYTES_MIN
            and since >= below * COMPACTION_QUIET_SHARE
        )

    def _replaces_enough(self) -> bool:
        """Of a table: whether changes since the last horizon replaced or deleted much, or only added keys."""
        if self._table is None:
            return True
        horizon, keys = self.horizon, self._table.statistics()["keys"]
        if self._keys_before is None:
            self._keys_before = 0 if horizon == NOWHERE else keys
        # Of what is committed: rows on their way are no keys yet, and would seem to have replaced some.
        replaced = self._partition.replica.committed - horizon.offset - max(0, keys - self._keys_before)
        return replaced > keys * COMPACTION_STALE_SHARE

    def proposed(self, now_s: float) -> None:
        """This broker is about to log a horizon."""
        self.proposed_at_s = now_s
        if self._table is not None:
            self._keys_before = self._table.statistics()["keys"]

    def statistics(self) -> CompactionStatistics:
        totals, horizon = self._totals, self.horizon
        return CompactionStatistics(
            horizon=horizon.offset,
            compacted_to=self._done.offset,
            deletions_until=horizon.deletions_until,
            runs=self._runs,
            running=self.running,
            bytes_before=totals.bytes_before,
            bytes_after=totals.bytes_after,
            messages_removed=totals.rows_dropped,
            last_at_us=self._last_at_us,
        )


def _not_now() -> NotReady:
    return NotReady("The log is being compacted at this moment.", hint="Try again in a moment.")
