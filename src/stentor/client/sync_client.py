"""The sync client: the same API without `await`, for scripts, notebooks and threads.

It drives an AsyncClient in a thread of its own, so it also works beside a running event loop. Calls
wait in the caller's thread; Ctrl-C interrupts them.
"""

from __future__ import annotations

import asyncio
import atexit
import queue
import sys
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

from stentor import limits
from stentor.client.admin import Admin
from stentor.client.async_client import AsyncClient, known
from stentor.client.awaited import ThreadWaiter
from stentor.client.convert import as_seconds, check_limit
from stentor.client.faces import sync_producer, sync_subscription
from stentor.client.help import explained, explained_function
from stentor.client.history import History
from stentor.client.loop_thread import LoopThread, closed_error
from stentor.client.requesting import Requesting
from stentor.client.topic import PlainTopic, Topic
from stentor.client.typed import Codec
from stentor.core import group_limits, queue_limits
from stentor.errors import StentorError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from types import UnionType

    from stentor.client.deadline import Deadline
    from stentor.client.group import Group
    from stentor.client.message import Receipt
    from stentor.client.names import Names
    from stentor.client.options import (
        AckLevel,
        Compression,
        Format,
        GroupOptions,
        HeadersLike,
        MaxLag,
        OnError,
        OnSlow,
        ProducerOptions,
        SubscribeOptions,
        TimestampLike,
    )
    from stentor.client.positions import Place, Stale
    from stentor.client.producer import Producer
    from stentor.client.queue import Queue
    from stentor.client.reader import Event
    from stentor.client.selectors import Partitioner, Selector
    from stentor.client.starts import Start
    from stentor.client.subscription import Subscription
    from stentor.client.table import Table
    from stentor.client.tabular import TabularTopic
    from stentor.client.typed_table import TypedTable

R = TypeVar("R")
T = TypeVar("T")

_open_clients: set[Client] = set()  # held: an application may keep only a producer, whose messages must get out


def _warn_inside_loop() -> None:
    """Every call of this client would hold up that loop. A notebook's cells are for waiting, though."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    if "ipykernel" not in sys.modules:
        text = (
            "stentor.connect() is called in a running event loop, which its calls hold up; use stentor.connect_async()."
        )
        warnings.warn(text, RuntimeWarning, stacklevel=3)


@explained("Client")
class Client(Admin, Requesting):
    """A connection to a Stentor system. Thread-safe. Use as a context manager: leaving it flushes.

    `stentor.connect(url)` makes one, and takes the same arguments.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        name: str | None = None,
        timeout: float = limits.DEFAULT_TIMEOUT_S,
        read_from: Selector | None = None,
        tracing: Any = False,
    ) -> None:
        self._closed = False
        self._thread = LoopThread()
        self._timeout = timeout
        try:
            self._async: AsyncClient = self._thread.call(
                AsyncClient._open(url, name=name, timeout=timeout, read_from=read_from, tracing=tracing)  # noqa: SLF001
            )
        except BaseException:
            self._closed = True
            self._thread.stop()
            raise
        self._core = self._async._core  # noqa: SLF001
        self._core.wait_for = self._thread.call
        self._publishers: dict[tuple[str, str], Producer] = {}
        _open_clients.add(self)

    def _call(self, work: Coroutine[Any, Any, R]) -> R:
        try:
            self._check()
        except StentorError:
            work.close()
            raise
        done: R = self._thread.call(work)
        return done

    def _check(self) -> None:
        if self._core.forked:
            self._core.check_open()
        if self._closed:
            raise closed_error()
        self._core.check_caller()

    # --- publishing -----------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        timestamp: TimestampLike | None = None,
        partition: int | None = None,
        ack: AckLevel = "all",
        timeout: float | None = None,
    ) -> Receipt:
        """Publish one message and wait until it is acknowledged; by default, until it is committed."""
        deadline = self._core.deadline(timeout)
        found = self._ready_publisher(topic, ack)
        publisher = found or self._publisher(topic, ack, deadline)
        waiter = ThreadWaiter(publisher._core, deadline)  # noqa: SLF001
        publisher._offer(value, key, headers, timestamp, partition, waiter)  # noqa: SLF001
        return waiter.acknowledged()

    def _ready_publisher(self, topic: str, ack: AckLevel) -> Producer | None:
        """The shared producer behind `publish`, found without entering the loop; None if none works."""
        if self._core.forked:
            self._core.check_open()
        self._core.check_caller()
        found = known(self._publishers, topic, ack)
        return None if found is None or self._closed or self._async._stale(found) else found  # noqa: SLF001

    def _publisher(self, topic: str, ack: AckLevel, deadline: Deadline) -> Producer:
        """The same, made if there is none."""
        shared = self._call(self._async._publisher(topic, ack, deadline))  # noqa: SLF001
        found = self._publishers[topic, ack] = sync_producer(shared._core)  # noqa: SLF001
        return found

    def producer(
        self,
        topic: str,
        *,
        ack: AckLevel = "all",
        compression: Compression | None = None,
        batch_messages: int = limits.PRODUCER_BATCH_MESSAGES,
        batch_bytes: int = limits.PRODUCER_BATCH_BYTES,
        buffer_bytes: int = limits.PRODUCER_BUFFER_BYTES,
        timeout: float | None = None,
        partitioner: Partitioner | None = None,
        identity: str | None = None,
        secret: str | None = None,
        generation: int = 0,
    ) -> Producer:
        """A self-batching sender to a topic: the fast path.

        A producer with an `identity` may be made again after a crash: the same batches, sent again in the same order
        under the same identity and generation, are recognised by the brokers and written once. What is new gets the
        next generation. Only who knows the identity and the `secret` ($STENTOR_PRODUCER_SECRET unless given) may send
        under it. It must be the same one whenever the producer is opened again.
        """
        options: ProducerOptions = {
            "ack": ack,
            "compression": compression,
            "batch_messages": batch_messages,
            "batch_bytes": batch_bytes,
            "buffer_bytes": buffer_bytes,
            "timeout": timeout,
            "partitioner": partitioner,
            "identity": identity,
            "secret": secret,
            "generation": generation,
        }
        return sync_producer(self._call(self._async._producer_core(topic, **options)))  # noqa: SLF001

    # --- reading --------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: str | list[str],
        *,
        start: Start = "latest",
        end: Place | None = None,
        partition: int | Iterable[int] | None = None,
        on_slow: OnSlow = "catch_up",
        max_lag: MaxLag | None = None,
        stale: Stale = "refuse",
        timeout: float | None = None,
    ) -> Subscription:
        """Messages of one or more topics or patterns, from a position on.

        Partitions that a `start` by partition does not name are read from their beginning.
        """
        inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        options: SubscribeOptions = {
            "start": start,
            "end": end,
            "partition": partition,
            "on_slow": on_slow,
            "max_lag": max_lag,
            "stale": stale,
            "timeout": timeout,
        }
        core = self._call(self._async._subscription_core(topics, inbox.put, **options))  # noqa: SLF001
        return sync_subscription(core, inbox)

    def group(
        self,
        name: str,
        topics: str | list[str],
        *,
        start: Place = "earliest",
        instance: str | None = None,
        auto_commit: bool = True,
        silence: float = group_limits.GROUP_SILENCE_S,
        time_limit: float | None = None,
        zone: str | None = None,
        on_assigned: Callable[[Event], object] | None = None,
        on_revoked: Callable[[Event], object] | None = None,
        timeout: float | None = None,
    ) -> Group:
        """Join a consumer group: its members share the partitions of the topics, and go on where the group stopped.

        Every message is handed out at least once. `start` counts for what is there when the group begins; topics and
        partitions that come later are read from their beginning.
        """
        from stentor.client.group import Group
        from stentor.client.group_core import join_group

        inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        options: GroupOptions = {
            "start": start,
            "instance": instance,
            "auto_commit": auto_commit,
            "silence": silence,
            "time_limit": time_limit,
            "zone": zone,
            "on_assigned": on_assigned,
            "on_revoked": on_revoked,
            "timeout": timeout,
        }
        core = self._async._core  # noqa: SLF001 - two halves of one thing
        return Group(self._call(join_group(core, name, topics, inbox.put, **options)), inbox)

    def queue(
        self,
        name: str,
        *,
        prefetch: int = queue_limits.QUEUE_PREFETCH,
        limit: float | None = None,
        timeout: float | None = None,
    ) -> Queue:
        """A work queue: put jobs into it, or take jobs from it; each is handed to one consumer, and acknowledged.

        It is made if there is none. `create_topic(name, kind="queue")` makes one with other settings.
        """
        from stentor.client.queue import Queue
        from stentor.client.queue_core import open_queue_core

        return Queue(self, self._call(open_queue_core(self._async, name, prefetch, limit, timeout)))

    def read(
        self,
        topics: str | list[str],
        *,
        start: Start = "earliest",
        end: Place = "now",
        partition: int | Iterable[int] | None = None,
        limit: int | None = None,
        stale: Stale = "refuse",
        timeout: float | None = None,
    ) -> History:
        """What topics hold between two positions: iterate it, or take it as a table. A read makes no topic.

        A read knows its end. While no broker is certain where the committed messages end, it waits, and raises
        EndUnknown at its deadline. With `stale="allow"` it takes what is known to be committed; `sure` and `ends` of
        what it returns say whether that was all, and up to where it goes.
        """
        check_limit(limit)
        subscription = self.subscribe(topics, start=start, end=end, partition=partition, stale=stale, timeout=timeout)
        return History(subscription, limit)

    @overload
    def topic(self, name: str) -> PlainTopic: ...

    @overload
    def topic(
        self, name: str, type: type[T], *, format: Format = "json", on_error: Literal["raise", "skip"] = "raise"
    ) -> Topic[T]: ...

    @overload
    def topic(
        self, name: str, type: type[T], *, format: Format = "json", on_error: Literal["raw"]
    ) -> Topic[T | bytes | None]: ...

    @overload
    def topic(
        self, name: str, type: UnionType, *, format: Format = "json", on_error: OnError = "raise"
    ) -> Topic[Any]: ...

    def topic(
        self,
        name: str,
        type: Any = None,  # noqa: A002 - the word of the API
        *,
        format: Format = "json",  # noqa: A002 - the same
        on_error: OnError = "raise",
    ) -> PlainTopic | Topic[Any]:
        """A topic by itself. With a type its values are of that type, checked when they are published and read.

        A type is a msgspec Struct, a dataclass or a pydantic model. `Order | None` also admits messages without value.
        """
        return PlainTopic(self, name) if type is None else Topic(self, name, Codec(type, format, on_error))

    def tabular(self, name: str, schema: Any = None, *, timeout: float | None = None) -> TabularTopic:
        """A tabular topic: tables go in, tables come out, each row is a message.

        The schema, a pyarrow.Schema, is registered as the topic's own. It may add nullable columns to the version
        before; any other change is refused. Without a schema it is the newest that the topic has.
        """
        from stentor.client.tabular import TabularTopic, find_schema

        return TabularTopic(self, self._call(find_schema(self._core, name, schema, timeout)))

    @overload
    def table(self, name: str, *, subtree: str = "", timeout: float | None = None) -> Table: ...

    @overload
    def table(
        self,
        name: str,
        *,
        type: type[T],
        format: Format = "json",
        subtree: str = "",
        timeout: float | None = None,
    ) -> TypedTable[T]: ...

    @overload
    def table(
        self,
        name: str,
        *,
        type: UnionType,
        format: Format = "json",
        subtree: str = "",
        timeout: float | None = None,
    ) -> TypedTable[Any]: ...

    def table(
        self,
        name: str,
        *,
        type: Any = None,  # noqa: A002 - the word of the API
        format: Format = "json",  # noqa: A002 - the same
        subtree: str = "",
        timeout: float | None = None,
    ) -> Any:
        """A copy of a table, kept up to date, and the way to change it.

        Make tables with `create_topic(name, kind="table")`. With a type the values of the table are of that type:
        checked when they are put, and decoded when they are read. With a subtree it is a copy of those keys alone.
        """
        from stentor.client.table import Table
        from stentor.client.table_copy import TableCopy
        from stentor.client.typed_table import TypedTable, ValueCodec

        codec: ValueCodec[Any] | None = None if type is None else ValueCodec(name, type, format)
        copy = TableCopy(self._core, name, subtree)
        self._call(copy.open(self._core.deadline(timeout)))
        table = Table(self, copy)
        return table if codec is None else TypedTable(table, codec)

    @property
    def names(self) -> Names:
        """Where services are: register and resolve names."""
        from stentor.client.names import Names

        return Names(self, self._async.names._core)  # noqa: SLF001 - two halves of one thing

    # --- life -----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """What operators see."""
        return self._async.name

    def close(self, timeout: float | None = None) -> None:
        """Flush what is under way and disconnect, within the time if one is given. Safe to call twice.

        PublishError if messages of a producer were not acknowledged; DeadlineExceeded if something else took longer.
        """
        wait_s = self._timeout if timeout is None else as_seconds(timeout)
        if self._closed or self._core.forked:
            return
        self._core.check_caller()
        self._closed = True
        _open_clients.discard(self)
        try:
            self._thread.call(self._async.close(timeout), limits.SHUTDOWN_S + wait_s)
        except TimeoutError as error:
            if isinstance(error, StentorError):
                raise
            raise self._core.late("close", limits.SHUTDOWN_S + wait_s) from error
        finally:
            self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
            return
        # The error that ended the block is the one to see.
        with suppress(StentorError):
            self.close()

    def __repr__(self) -> str:
        return f"<stentor.Client {self.name!r} {'closed' if self._closed else ','.join(self._core.addresses)}>"


@explained_function("connect")
def connect(
    url: str | None = None,
    *,
    name: str | None = None,
    timeout: float = limits.DEFAULT_TIMEOUT_S,
    read_from: Selector | None = None,
    tracing: Any = False,
) -> Client:
    """Connect to a Stentor system. Use as a context manager: leaving it flushes and disconnects.

    In `async` code use `connect_async`: calls of this client hold up the loop that they are made in.
    """
    _warn_inside_loop()
    return Client(url, name=name, timeout=timeout, read_from=read_from, tracing=tracing)


@atexit.register
def _close_at_exit() -> None:
    """A script that forgot to close still gets its messages out, and never hangs."""
    for client in list(_open_clients):
        with suppress(Exception):  # the interpreter is going down
            client.close()
