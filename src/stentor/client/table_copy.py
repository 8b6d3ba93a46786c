"""A client's copy of a table, kept up to date in the client's loop.

    subscription from the table's first row ──deliveries──► apply ──► entries, read in any thread
                                                              └─────► watchers, and who waits for a sequence

The copy is whole once it has everything that was committed when it was opened. From then on it follows: every change
once, in log order. A change that was refused is in the log without effect, and only moves the sequence.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from stentor import limits
from stentor.client.convert import as_bytes
from stentor.client.decode import decode_messages
from stentor.client.message import Receipt
from stentor.client.producer_core import ProducerCore
from stentor.client.subscription_core import SubscriptionCore
from stentor.core.table import ABSENT
from stentor.errors import Closed, InvalidArgument, LimitExceeded, StentorError
from stentor.wire import batch, messages, table_rows
from stentor.wire.header import CONDITIONAL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stentor.client.core import ClientCore
    from stentor.client.deadline import Deadline
    from stentor.client.message import Message
    from stentor.client.reader import Delivery
    from stentor.wire.rows import Headers

TableSequence = tuple[int, ...]
"""How far a copy is: for each partition of the table the offset after the last change that it has."""


class TableEntry(msgspec.Struct, frozen=True, gc=False):
    """A key of a table as it is at some version."""

    key: str
    value: bytes
    version: int  # grows with every change of the key; for `if_version`


class TableChange(msgspec.Struct, frozen=True):
    """What happened to a key."""

    key: str
    old: TableEntry | None  # None: it was not there
    new: TableEntry | None  # None: it was deleted


Watcher = Callable[[TableChange | StentorError], None]
"""Who is told of changes, and of the end; in the client's loop."""


class TableCopy:
    """One copy of one table."""

    def __init__(self, core: ClientCore, name: str) -> None:
        self.core = core
        self.name = name
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
        self._topic_id = 0

    # --- opening and closing --------------------------------------------------------------------

    async def open(self, deadline: Deadline) -> None:
        """Take the whole table, as it is committed now."""
        route = await self._route(deadline)
        self.applied = [0] * len(route.partitions)
        self._topic_id = route.id
        self._producer = _Changes(self.core, route, ack="all", keep_failures=False)
        self._subscription = SubscriptionCore(self.core, self.name, start="earliest", put=self._take)
        self.core.closers.add(self.close)
        try:
            await self._subscription.open(deadline)
            await self.catch_up(deadline)
        except BaseException:
            await self.close()
            raise

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
        subscription, self._subscription = self._subscription, None
        producer, self._producer = self._producer, None
        if subscription is not None:
            await subscription.close()
        if producer is not None:
            await producer.close()
        self._fail(self._closed())

    def _closed(self) -> Closed:
        return Closed(f"This copy of table {self.name} is closed.", hint="Open the table again.")

    def watch(self, watcher: Watcher) -> None:
        """Tell somebody of all changes from now on, and of the end."""
        with self.lock:
            self.check()
            self.watchers.append(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """Tell it no more."""
        with self.lock:
            if watcher in self.watchers:
                self.watchers.remove(watcher)

    def check(self) -> None:
        """What ended the copy, if it has ended."""
        if self.failure is not None:
            raise self.failure

    def _fail(self, error: StentorError) -> None:
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
            self._fail(item or self._closed())
            return
        reader, subscription = item.reader, self._subscription
        if self.failure is not None or subscription is None:
            return
        try:
            runs = decode_messages(item.body, self.name, reader.partition, self.applied[reader.partition], None)
            for run in runs:
                self._apply(list(run.messages))
        except StentorError as error:
            self._fail(error)
            return
        reader.taken = self.applied[reader.partition] = item.next_offset
        subscription.streams.grant(reader, len(item.body))
        self._tell_reached()

    def _apply(self, rows: list[Message]) -> None:
        changes: list[TableChange] = []
        entries = self.entries
        with self.lock:
            watchers = tuple(self.watchers)
            watched = bool(watchers)
            for row in rows:
                key = (row.key or b"").decode(errors="replace")
                old = entries.get(key) if watched else None
                if row.value is None:
                    new = None
                    entries.pop(key, None)
                else:
                    new = entries[key] = TableEntry(key, row.value, row.offset)
                if watched and (old is not None or new is not None):
                    changes.append(TableChange(key, old, new))
        for change in changes:
            for watcher in watchers:
                watcher(change)

    @property
    def sequence(self) -> TableSequence:
        return tuple(self.applied)

    def has(self, sequence: TableSequence) -> bool:
        return all(have >= wanted for have, wanted in zip(self.applied, sequence, strict=True))

    def _tell_reached(self) -> None:
        waiting, self._waiting = self._waiting, []
        for sequence, reached in waiting:
            if not self.has(sequence):
                self._waiting.append((sequence, reached))
            elif not reached.done():
                reached.set_result(None)

    async def wait(self, sequence: TableSequence, deadline: Deadline) -> None:
        """Until the copy has everything up to a sequence."""
        if len(sequence) != len(self.applied):
            raise InvalidArgument(
                f"Table {self.name} has {len(self.applied)} partitions; the sequence has {len(sequence)}.",
                hint="Use the sequence of a copy of the same table.",
            )
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
            messages.FindOffset(topic_id=self._topic_id, partition=index, at="latest")
            for index in range(len(self.applied))
        ]
        found = await asyncio.gather(*(self.core.find_offset(wish, self.name, deadline) for wish in wishes))
        await self.wait(tuple(each.offset for each in found), deadline)

    # --- changing -------------------------------------------------------------------------------

    async def change(
        self, rows: Mapping[str, bytes | None], conditions: Mapping[str, int], deadline: Deadline
    ) -> list[int]:
        """Set or delete keys, all at once or not at all; their versions. The copy has the change then."""
        self.check()
        producer = self._producer
        if producer is None:
            raise self._closed()  # in a moment
        partition = self._partition_of(rows, producer)
        encoded = _encode(rows, conditions)
        done: asyncio.Future[Receipt] = self.core.loop.create_future()
        lane = producer.lanes[partition]
        lane.add_encoded(encoded, [(0, _resolve(done), encoded.first_timestamp_us)])
        lane.awake = True
        lane.pump()
        try:
            async with deadline.bound():
                receipt = await done
        except TimeoutError as error:
            if isinstance(error, StentorError):
                raise
            raise self.core.late_publish(deadline.seconds, lane.refusal) from error
        wanted = list(self.applied)
        wanted[partition] = receipt.offset + len(rows)
        await self.wait(tuple(wanted), deadline)
        return [receipt.offset + index for index in range(len(rows))]

    def _partition_of(self, rows: Mapping[str, bytes | None], producer: ProducerCore) -> int:
        found = {producer.lane_for(key.encode(), None).partition for key in rows}
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


def _resolve(done: asyncio.Future[Receipt]) -> Callable[[Receipt | None, StentorError | None], None]:
    def resolve(receipt: Receipt | None, error: StentorError | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        elif receipt is not None:
            done.set_result(receipt)

    return resolve


def _encode(rows: Mapping[str, bytes | None], conditions: Mapping[str, int]) -> batch.Encoded:
    now_us = time.time_ns() // 1000
    keys, values = [key.encode() for key in rows], list(rows.values())
    for key, value in zip(keys, values, strict=True):
        batch.check_message(key, value)
    if not conditions:
        return batch.encode_at(now_us, keys, values)
    headers: list[Headers | None] = [
        [table_rows.condition(conditions[key])] if key in conditions else None for key in rows
    ]
    encoded = batch.encode([now_us] * len(keys), keys, values, headers)
    return msgspec.structs.replace(encoded, attributes=encoded.attributes | CONDITIONAL)


def check_key(key: object) -> str:
    """A key is a path: words with slashes between them."""
    if not isinstance(key, str):
        raise InvalidArgument(f"A key of a table is text, not {type(key).__name__}.")
    if not key or key.startswith("/") or key.endswith("/") or "//" in key:
        raise InvalidArgument(
            f"{key!r} is no key of a table.", hint="Use a path such as 'app/limits/rate': words with slashes between."
        )
    encoded = as_bytes(key, "key") or b""
    if len(encoded) > limits.MESSAGE_KEY_BYTES_MAX:
        raise LimitExceeded(
            f"A key has {len(encoded)} bytes; the limit is {limits.MESSAGE_KEY_BYTES_MAX}.",
            hint="Use a shorter path.",
        )
    return key


def check_subtree(subtree: object) -> str:
    """A subtree is a path that ends with a slash; empty, it is the whole table."""
    if not isinstance(subtree, str):
        raise InvalidArgument(f"A subtree is text, not {type(subtree).__name__}.")
    if subtree and (not subtree.endswith("/") or subtree.startswith("/") or "//" in subtree):
        raise InvalidArgument(
            f"{subtree!r} is no subtree: it would end in the middle of a word.",
            hint=f"Use a path that ends with a slash, such as {subtree.strip('/') + '/'!r}.",
        )
    return subtree


def condition_of(if_version: Any, *, if_absent: bool) -> int | None:
    """What a change depends on, if on anything."""
    if if_absent and if_version is not None:
        raise InvalidArgument("A change depends on a version or on absence, not on both.")
    if if_absent:
        return ABSENT
    if if_version is not None and (isinstance(if_version, bool) or not isinstance(if_version, int) or if_version < 0):
        raise InvalidArgument(f"if_version={if_version!r} is no version.", hint="Use the version of an entry.")
    return if_version
