"""A client's copy of a table, kept up to date in the client's loop.

    subscription from the table's first row ──deliveries──► apply ──► entries, read in any thread
                                                              └─────► watchers, and who waits for a sequence

The copy is whole once it has everything that was committed when it was opened. From then on it follows: every change
once, in log order. A change that was refused is in the log without effect, and only moves the sequence.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from stentor import limits
from stentor.client.awaited import TaskWaiter
from stentor.client.decode import PlainRows, decode_rows
from stentor.client.producer_core import ProducerCore
from stentor.client.subscription_core import SubscriptionCore
from stentor.client.table_changes import encode_changes, inside, keys_of, terms_of, texts
from stentor.client.table_keys import check_subtree
from stentor.client.table_leases import Leases
from stentor.client.table_state import CopyState, state_of
from stentor.core.names import check_topic_name
from stentor.errors import (
    Closed,
    Compacted,
    DeadlineExceeded,
    InvalidArgument,
    OffsetOutOfRange,
    PartitionNotFound,
    StentorError,
    TopicNotFound,
)
from stentor.wire import messages, table_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stentor.client.core import ClientCore
    from stentor.client.deadline import Deadline
    from stentor.client.message import Message
    from stentor.client.reader import Delivery
    from stentor.client.table_leases import NewLease
    from stentor.client.table_reload import TableResync
    from stentor.wire.rows import Headers

logger = logging.getLogger(__name__)

TableSequence = tuple[int, ...]
"""How far a copy is: for each partition of the table the offset after the last change that it has."""


class TableEntry(msgspec.Struct, frozen=True, gc=False):
    """A key of a table as it is at some version."""

    key: str
    value: bytes
    version: int  # grows with every change of the key; for `if_version`
    ttl: float | None = None  # it expires so many seconds after it was last put or touched; None: never
    session: bytes = b""  # of an ephemeral key: the session that it belongs to

    @property
    def fence(self) -> int:
        """A number that is greater for whoever puts the key later: a store that refuses smaller ones refuses a leader
        whose key has become another's. It is the version.
        """
        return self.version


class TableChange(msgspec.Struct, frozen=True):
    """What happened to a key."""

    key: str
    old: TableEntry | None  # None: it was not there
    new: TableEntry | None  # None: it was deleted
    version: int = 0  # of the change itself, also of one that deletes
    partition: int = 0
    # Earlier changes that this one includes, because the watcher was behind: those of its key, and, at most, those of
    # any key that a compaction removed before they came to this copy.
    skipped: int = 0
    expired: bool = False  # it was deleted because its time was over
    headers: Sequence[tuple[str, bytes | None]] = ()  # of the message that made the change


class Overtaken(NamedTuple):
    """Changes that a copy never got, because they were removed from the log before they came to it (C23)."""

    removed: int  # at most so many, of any keys
    before: TableSequence  # they lie before this sequence
    reason: str


Watcher = Callable[[list[TableChange] | Overtaken | StentorError], None]
"""Who is told of changes, a batch at a time, of those that are missing before them, and of the end; in the client's
loop."""


class _Behind(msgspec.Struct):
    """A compaction has overtaken a copy, which has not caught up yet."""

    before: TableSequence  # how far it was
    reason: str
    keys: set[bytes] = msgspec.field(default_factory=set)  # that have changed since
    removed: int = 0


class TableCopy:
    """One copy of one table."""

    def __init__(self, core: ClientCore, name: str, subtree: str = "") -> None:
        check_topic_name(name)
        self.core = core
        self.name = name
        self.subtree = check_subtree(subtree)  # what it is a copy of; empty: the whole table
        self.entries: dict[str, TableEntry] = {}
        # Held while a batch is applied, and while somebody begins or ends to watch: who wants several keys at one
        # sequence takes it, and who watches and then reads misses nothing in between.
        self.lock = threading.Lock()
        self.applied: list[int] = []
        self.failure: StentorError | None = None
        self.watchers: list[Watcher] = []
        self._waiting: list[tuple[TableSequence, asyncio.Future[None]]] = []
        self._subscription: SubscriptionCore | None = None
        self._producer: ProducerCore | None = None
        self.topic_id = 0
        self.leases = Leases(self)
        self.resync_listeners: list[Callable[[TableResync], None]] = []
        self._behind: _Behind | None = None
        self._whole = False  # it has once had everything, and its log goes on from where it is
        self._reloading: asyncio.Task[None] | None = None
        self._current_at = core.loop.time()  # when it was last known to have everything that is committed

    # --- opening and closing --------------------------------------------------------------------

    async def open(self, deadline: Deadline) -> None:
        """Take the whole table, as it is committed now."""
        route = await self._route(deadline)
        self._producer = _Changes(self.core, route, ack="all", awaited=True)
        self.core.closers.add(self.close)
        try:
            await self.follow(route.id, len(route.partitions), deadline)
        except BaseException:
            await self.close()
            raise
        self._whole = True

    async def follow(self, topic_id: int, partitions: int, deadline: Deadline) -> None:
        """Take the whole table; without its lock, while nobody reads it."""
        self.topic_id = topic_id
        self.applied = [0] * partitions
        self._subscription = SubscriptionCore(
            self.core, self.name, start="earliest", put=self._take, subtree=self.subtree, copies=True
        )
        try:
            await self._subscription.open(deadline)
        except PartitionNotFound as error:
            raise self._deleted() from error
        for reader in self._subscription.readers_now():
            if reader.topic_id != topic_id:
                raise self._deleted()
            self.applied[reader.partition] = max(self.applied[reader.partition], reader.start)
        await self.catch_up(deadline)

    def adopt(
        self, fresh: TableCopy, changes: list[TableChange], lacking: Overtaken | None = None
    ) -> tuple[TableSequence, int]:
        """Go on as another copy, which is further; it is nobody's any more. Watchers are told that changes are lacking,
        and what is different. Return where this copy was when it fell behind, and how many keys have changed since.
        """
        subscription, self._subscription, fresh._subscription = self._subscription, fresh._subscription, None
        assert self._subscription is not None
        self._subscription.put = self._take
        behind, self._behind = self._behind, None  # who is told the difference is told of this, too
        before = self.sequence if behind is None else behind.before
        keys = {change.key.encode() for change in changes} | (set() if behind is None else behind.keys)
        with self.lock:
            self.entries, self.applied = fresh.entries, fresh.applied
            watchers = tuple(self.watchers)
        for change in changes:
            if change.key in self.leases.own or (change.new is not None and change.new.session):
                self.leases.see(change.key, change.new, change.partition, expired=change.new is None)
        self._whole = True
        if subscription is not None:
            subscription.put = _ignore
            self.core.loop.create_task(subscription.close())
        for watcher in watchers:
            if lacking is not None:
                watcher(lacking)
            if changes:
                watcher(changes)
        self._tell_reached()
        return before, len(keys)

    async def _route(self, deadline: Deadline) -> messages.TopicRoute:
        """Of the table as it is now: what this client knows of the name may be older, and nothing is made here."""
        while True:
            topic = (await self.core.call(messages.DescribeTopic(name=self.name), deadline)).topic
            if topic.settings.kind != "table":
                raise InvalidArgument(
                    f"Topic {self.name} is no table.",
                    hint=f"Make tables with client.create_topic({self.name!r}, kind='table').",
                    object=self.name,
                )
            for _ in range(2):
                route = self.core.routes.get(self.name)
                if route is not None and route.id == topic.id:
                    return route
                await self.core.refresh_routes(deadline)
            await asyncio.sleep(limits.PRODUCER_RESEND_S)

    async def close(self) -> None:
        """Let go. Who waits for something is told."""
        self.core.closers.discard(self.close)
        await self.leases.end()
        subscription, self._subscription = self._subscription, None
        producer, self._producer = self._producer, None
        if self._reloading is not None:
            self._reloading.cancel()
        if subscription is not None:
            await subscription.close()
        if producer is not None:
            await producer.close()
        self.fail(self._closed())

    def _closed(self) -> Closed:
        return Closed(f"This copy of table {self.name} is closed.", hint="Open the table again.")

    def _deleted(self) -> TopicNotFound:
        return TopicNotFound(f"Table {self.name} was deleted.", hint="If it was made anew, open it.", object=self.name)

    def check_inside(self, key: object) -> None:
        """A copy of a subtree knows nothing of other keys: neither what they hold nor that they are absent."""
        if self.subtree and isinstance(key, str) and not key.startswith(self.subtree):
            raise InvalidArgument(
                f"{key!r} is outside of {self.subtree}, the subtree of table {self.name} that this copy has.",
                hint="Open the table without a subtree, or with one that includes it.",
                object=self.name,
            )

    def part(self, subtree: object) -> str:
        """A subtree of what this copy has; empty, it is all of that."""
        found = check_subtree(subtree) or self.subtree
        self.check_inside(found)
        return found

    def unwatch(self, watcher: Watcher) -> None:
        """Tell a watcher no more."""
        with self.lock:
            if watcher in self.watchers:
                self.watchers.remove(watcher)

    def check(self) -> None:
        """What ended the copy, if it has ended."""
        if self.failure is not None:
            raise self.failure

    def fail(self, error: StentorError) -> None:
        """The copy ends here; who waits for something is told."""
        if self.failure is not None:
            return
        with self.lock:
            self.failure = error
            watchers = tuple(self.watchers)
        for watcher in watchers:
            watcher(error)
        waiting, self._waiting = self._waiting, []
        for _, reached in waiting:
            if not reached.done():
                reached.set_exception(error)

    # --- following ------------------------------------------------------------------------------

    def _take(self, item: Delivery | StentorError | None) -> None:
        """A delivery of the subscription, or its end."""
        if item is None or isinstance(item, StentorError):
            again = self._whole or (isinstance(item, Compacted) and self._reloading is None)
            if again and item is not None and self._is_gone(item):
                self._reload(item)
            elif self._reloading is None or self._whole:
                self.fail(self._deleted() if isinstance(item, PartitionNotFound) else item or self._closed())
            return
        reader, subscription = item.reader, self._subscription
        if self.failure is not None or subscription is None:
            return
        if item.removed and (self._whole or self._reloading is not None):  # and else nobody has it yet
            self._overtaken(item)
        try:
            for rows in decode_rows(item.body, self.name, reader.partition, self.applied[reader.partition]):
                # A broker that does not know subtrees sends everything.
                self._apply(reader.partition, inside(rows, self.subtree.encode()) if self.subtree else rows)
        except StentorError as error:
            self.fail(error)
            return
        reader.taken = self.applied[reader.partition] = item.next_offset
        subscription.streams.grant(reader, len(item.body))
        if all(each.taken >= each.committed for each in subscription.readers_now()):
            self._is_current()
        self._tell_reached()

    def _overtaken(self, item: Delivery) -> None:
        """What comes next lacks changes that a compaction removed: watchers hear of it before they are told more."""
        if self._behind is None:
            self._behind = _Behind(self.sequence, "")
        behind = self._behind
        behind.removed += item.removed
        behind.reason = (
            f"A compaction of table {self.name} removed up to {behind.removed} changes before this copy came to them."
        )
        end = list(self.applied)
        end[item.reader.partition] = item.next_offset
        news = Overtaken(item.removed, tuple(end), behind.reason)
        for watcher in tuple(self.watchers):
            watcher(news)

    def _is_current(self) -> None:
        """It has everything that there is."""
        self._current_at = self.core.loop.time()
        if not self._whole:
            return  # it is being taken anew: who takes its place says what was missed
        behind, self._behind = self._behind, None
        if behind is None:
            return
        from stentor.client.table_reload import tell_resync

        logger.warning("%s It has what is left.", behind.reason)
        tell_resync(self, behind.before, self.sequence, len(behind.keys), behind.reason)

    def _is_gone(self, error: StentorError) -> bool:
        """Whether the log no longer has what comes next for this copy."""
        readers = [] if self._subscription is None else self._subscription.readers_now()
        start = error.start or 0 if isinstance(error, OffsetOutOfRange) else 0
        return isinstance(error, Compacted) or any(reader.finished and reader.received < start for reader in readers)

    def _reload(self, why: StentorError) -> None:
        from stentor.client.table_reload import reload

        # Its other partitions may go on meanwhile, and miss changes, too: who is told wants to know from where on.
        if self._behind is None:
            self._behind = _Behind(self.sequence, "")
        self._whole = False
        self._reloading = self.core.loop.create_task(reload(self, why))

    def _apply(self, partition: int, rows: PlainRows | list[Message]) -> None:
        if self._behind is not None:
            self._behind.keys.update(keys_of(rows))
        if isinstance(rows, PlainRows):
            self._set(partition, texts(rows.keys), rows.values, rows.offsets)
        else:
            self._apply_rows(partition, rows)

    def _apply_rows(self, partition: int, rows: list[Message]) -> None:
        changes: list[TableChange] = []
        entries, own = self.entries, self.leases.own
        with_terms = bool(rows) and rows[0]._block.headers is not None  # noqa: SLF001 - asked once for a run
        with self.lock:
            watchers = tuple(self.watchers)
            watched = bool(watchers)
            for row in rows:
                key = (row.key or b"").decode(errors="replace")
                old = entries.get(key) if watched else None
                terms = terms_of(row.headers) if with_terms else table_rows.NO_TERMS
                if row.value is None:
                    new = None
                    entries.pop(key, None)
                else:
                    new = entries[key] = entry_of(key, row, terms)
                if terms.session or key in own:
                    self.leases.see(key, new, partition, expired=terms.why == table_rows.EXPIRED, holder=terms.holder)
                if watched and (old is not None or new is not None):
                    expired = terms.why == table_rows.EXPIRED
                    headers = row.headers or () if with_terms else ()
                    changes.append(TableChange(key, old, new, row.offset, partition, expired=expired, headers=headers))
            if rows:
                self.applied[partition] = rows[-1].offset + 1  # with the lock: who has it sees what is at this sequence
        if changes:
            for watcher in watchers:
                watcher(changes)

    def _set(self, partition: int, keys: list[str], values: list[bytes], versions: Sequence[int]) -> None:
        """Set many keys. Nothing here is Python row by row, unless somebody watches."""
        entries = self.entries
        made = map(TableEntry, keys, values, versions)
        with self.lock:
            watchers = tuple(self.watchers)
            if not watchers and not self.leases.own:
                entries.update(zip(keys, made, strict=True))
                self.applied[partition] = versions[-1] + 1
                return
            changes = []
            for key, new in zip(keys, made, strict=True):
                changes.append(TableChange(key, entries.get(key), new, new.version, partition))
                entries[key] = new
                if key in self.leases.own:
                    self.leases.see(key, new, partition, expired=False)
            self.applied[partition] = versions[-1] + 1
        for watcher in watchers:
            watcher(changes)

    @property
    def sequence(self) -> TableSequence:
        return tuple(self.applied)

    @property
    def state(self) -> CopyState:
        subscription = self._subscription
        readers = [] if subscription is None else subscription.readers_now()
        return state_of(readers, self.applied, self._current_at, self.core.loop.time(), whole=self._whole)

    def has(self, sequence: TableSequence) -> bool:
        return all(have >= wanted for have, wanted in zip(self.applied, sequence, strict=True))

    def _tell_reached(self) -> None:
        waiting, self._waiting = self._waiting, []
        for sequence, reached in waiting:
            if not self.has(sequence):
                self._waiting.append((sequence, reached))
            elif not reached.done():
                reached.set_result(None)

    def check_sequence(self, sequence: TableSequence) -> TableSequence:
        """A sequence has an offset for each partition of the table."""
        if len(sequence) != len(self.applied):
            raise InvalidArgument(
                f"Table {self.name} has {len(self.applied)} partitions; the sequence has {len(sequence)}.",
                hint="Use the sequence of a copy of the same table.",
            )
        return tuple(sequence)

    async def wait(self, sequence: TableSequence, deadline: Deadline) -> None:
        """Until the copy has everything up to a sequence."""
        sequence = self.check_sequence(sequence)
        self.check()
        if self.has(sequence):
            return
        reached: asyncio.Future[None] = self.core.loop.create_future()
        self._waiting.append((sequence, reached))
        try:
            async with deadline.bound():
                await reached
        except TimeoutError as error:
            if isinstance(error, StentorError):
                raise
            raise self.core.late("wait", deadline.seconds) from error

    async def catch_up(self, deadline: Deadline) -> None:
        """Until the copy has everything that is committed by now, as the chain says."""
        self.check()
        # Asked by its id: whoever asks by name makes a topic of that name, if somebody has deleted the table.
        wishes = [
            messages.FindOffset(topic_id=self.topic_id, partition=index, at="latest")
            for index in range(len(self.applied))
        ]
        try:
            found = await asyncio.gather(*(self.core.find_offset(wish, self.name, deadline) for wish in wishes))
        except PartitionNotFound as error:
            raise self._deleted() from error
        await self.wait(tuple(each.offset for each in found), deadline)

    # --- changing -------------------------------------------------------------------------------

    async def change(
        self,
        rows: Mapping[str, bytes | None],
        conditions: Mapping[str, int],
        deadline: Deadline,
        lease: NewLease | None = None,
        more_headers: Mapping[str, Headers] | None = None,
    ) -> list[int]:
        """Set or delete keys, all at once or not at all; their versions. The copy has the change then."""
        self.check()
        producer = self._producer
        if producer is None:
            raise self._closed()  # in a moment
        partition = self._partition_of(rows)
        encoded = encode_changes(rows, conditions, lease, more_headers or {}, self.name)
        asked = self.leases.clock()
        waiter = TaskWaiter(producer, deadline)
        lane = producer.lanes[partition]
        lane.add_encoded(encoded, [(0, waiter, encoded.first_timestamp_us)])
        lane.awake = True
        lane.pump()
        receipt = await waiter.acknowledged()
        wanted = list(self.applied)
        wanted[partition] = receipt.offset + len(rows)
        if lease is not None and lease.session:
            for version, key in enumerate(rows, receipt.offset):
                self.leases.put_at(key, version, asked)
        try:
            await self.wait(tuple(wanted), deadline)
        except DeadlineExceeded as error:
            error.message += f" The change was made, as version {receipt.offset}; this copy does not have it yet."
            raise
        return [receipt.offset + index for index in range(len(rows))]

    async def touch(self, key: str, deadline: Deadline) -> None:
        """The time of a key begins anew."""
        self.check()
        await self.leases.touch(self.partition_of(key), [key.encode()], b"", deadline)

    def partition_of(self, key: str) -> int:
        """The partition that a key is in."""
        producer = self._producer
        if producer is None:
            raise self._closed()
        return producer.lane_for(key.encode(), None).partition

    def _partition_of(self, rows: Mapping[str, bytes | None]) -> int:
        found = set(map(self.partition_of, rows))
        if len(found) > 1:
            raise InvalidArgument(
                f"These keys are in {len(found)} partitions of table {self.name}; one change is for one partition.",
                hint="Use a table with one partition, or change the keys one by one.",
                object=self.name,
            )
        return found.pop()


class _Changes(ProducerCore):
    """A producer for one table: versions are those of its log, and say nothing of one that is made anew."""

    def _fits(self, _: messages.TopicRoute) -> bool:
        return False


def entry_of(key: str, row: Message, terms: table_rows.Terms) -> TableEntry:
    """The entry that a row with a value makes of a key."""
    if terms.ttl_us:
        return TableEntry(key, row.value or b"", row.offset, terms.ttl_us / 1e6, terms.session)
    return TableEntry(key, row.value or b"", row.offset)


def _ignore(_: object) -> None:
    """Nobody wants what a subscription brings that was replaced."""
