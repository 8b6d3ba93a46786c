"""A transport for kombu, so that Celery runs on Stentor.

    app = Celery("shop", broker="stentor://localhost:7440")
    app.conf.broker_transport = "stentor.integrations.kombu:Transport"

Every queue is a queue of Stentor. Exchanges and bindings are kept by each process, as it declares them: direct and
topic exchanges work, fanout does not, so Celery runs without remote control. A message with an `eta` waits in its
queue and reaches a worker when it is due. What is rejected without being put back goes to the dead-letter topic.

    drain_events ──► JobSource of each consumed queue ──► callback ──► ack, reject (any thread)
         ▲                 │ none has a job, or all channels hold what they may
         └── wakes ────────┴──── a job comes, or something was settled

A message begins when the callback gets it. Only Celery's callback puts tasks aside for its pool; and it has no signal
for what its pool accepts that the process with the connection could hear. So it is looked, as often as heads are told
what has begun, which tasks are active by Celery's own books. A task that may kill its worker at once must begin before
its worker can die: it counts when Celery gets it, which is when Celery has no other one that has not begun.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from stentor._version import __version__
from stentor.errors import (
    Closed,
    ConnectionFailed,
    DeadlineExceeded,
    ForkDetected,
    NotReady,
    StentorError,
    TopicNotFound,
)
from stentor.integrations.packages import need

need("kombu", "stentor.integrations.kombu", "pip install 'celery>=5.4'")

from kombu.exceptions import ChannelError  # noqa: E402
from kombu.transport import virtual  # noqa: E402
from kombu.utils.json import dumps  # noqa: E402

from stentor.integrations.per_process import ClientPerProcess  # noqa: E402
from stentor.integrations.source import JobSource, checked_prefetch  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stentor.client.job import Job

logger = logging.getLogger(__name__)

_CELERY = "celery.worker.state"  # the module in which a worker of Celery keeps its books
_HEADER = "kombu"  # what a job says beside its body, as JSON


class NotBoundError(ChannelError):
    """Nothing is bound to a direct exchange under this key: the message would be lost."""


class JobQoS(virtual.QoS):
    """What a channel was handed and has not settled."""

    def ack(self, delivery_tag: str) -> None:
        """It is done."""
        self.channel.settle(delivery_tag, JobSource.ack)
        super().ack(delivery_tag)
        self.channel.connection.wake()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """It is not: another attempt after the queue's pause, or the dead-letter topic."""
        self.channel.settle(delivery_tag, JobSource.try_again if requeue else JobSource.bury)
        super().ack(delivery_tag)
        self.channel.connection.wake()


class Channel(virtual.Channel):
    """Queues as kombu uses them."""

    QoS = JobQoS
    body_encoding = None  # a job's value is the body as it is
    supports_fanout = False
    from_transport_options = ("deadletter_queue", "queue_name_prefix")
    queue_name_prefix = ""

    def __init__(self, connection: Transport, **options: Any) -> None:
        super().__init__(connection, **options)
        self.sources: dict[str, JobSource] = {}
        self._jobs: dict[str, tuple[JobSource, Job]] = {}  # by delivery tag
        self._aside: dict[
            str, Job
        ] = {}  # by delivery tag: tasks that Celery has not given to its pool, as far as known
        self._alone = ""  # the delivery tag of the one that no others are to be put aside with
        self._unacknowledged: set[str] = set()  # queues whose consumers want no acknowledgement
        self._prefetch = 0

    @property
    def _clients(self) -> ClientPerProcess:
        clients: ClientPerProcess = self.connection.clients
        return clients

    def _named(self, queue: str) -> str:
        return f"{self.queue_name_prefix}{queue}"

    # --- queues ---------------------------------------------------------------------------------

    def _new_queue(self, queue: str, **_: Any) -> None:
        self._clients.queue(self._named(queue))

    def _has_queue(self, queue: str, **_: Any) -> bool:
        try:
            return bool(self._clients.client().describe_topic(self._named(queue)).settings.kind == "queue")
        except TopicNotFound:
            return False

    def _size(self, queue: str) -> int:
        return self._clients.queue(self._named(queue)).describe().waiting

    def _purge(self, queue: str) -> int:
        return self._clients.queue(self._named(queue)).purge()

    def _delete(self, queue: str, *_: Any, **__: Any) -> None:
        self._clients.forget(self._named(queue))
        with suppress(TopicNotFound):
            self._clients.client().delete_topic(self._named(queue))

    # --- publishing -----------------------------------------------------------------------------

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        body = message["body"]
        said = {key: value for key, value in message.items() if key != "body"}
        said["text"] = isinstance(body, str)
        eta, expiration = (message.get("headers") or {}).get("eta"), message["properties"].get("expiration")
        self._clients.queue(self._named(queue)).put(
            body.encode() if isinstance(body, str) else bytes(body or b""),
            headers={_HEADER: dumps(said)},
            at=_due(eta),
            priority=self._get_message_priority(message),
            ttl=max(1, int(expiration)) / 1_000 if expiration else None,
        )

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> Any:
        found = super()._lookup(exchange, routing_key, default)
        if not found and self.state.exchanges.get(exchange, {}).get("type", "direct") == "direct":
            raise NotBoundError(
                f"No queue is bound to exchange {exchange!r} under {routing_key!r} in this process. Declare the queue"
                " before you publish: Stentor keeps no bindings."
            )
        return found

    # --- consuming ------------------------------------------------------------------------------

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """How many messages this channel may be handed before it settles one."""
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self._prefetch = prefetch_count
        for source in self.sources.values():
            source.hold_at_most(checked_prefetch(prefetch_count))
        self.connection.wake()

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **options: Any) -> None:
        """Consume a queue. Jobs are taken from the first time that events are drained: the prefetch is known then."""
        (self._unacknowledged.add if no_ack else self._unacknowledged.discard)(queue)
        super().basic_consume(queue, no_ack, callback, consumer_tag, **options)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Take no more from a queue. What was handed out can still be settled."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        source = self.sources.get(queue)
        if source is not None and queue not in self._active_queues:
            with suppress(StentorError):  # closed, or the parent's
                source.hold_at_most(0)

    def _open_source(self, queue: str, prefetch: int) -> JobSource:
        self.sources[queue] = source = JobSource(self._clients, self._named(queue), prefetch)
        source.consumer.looks_for_begun = self._look_for_begun
        return source

    def open_sources(self) -> Iterator[tuple[str, JobSource]]:
        """Those that a message may be taken from now."""
        if self._consumers and self.qos.can_consume():
            for queue in list(self._active_queues):
                source = self.sources.get(queue)
                if source is None:
                    source = self._open_source(queue, self._prefetch)
                elif source.consumer.is_paused:
                    source.hold_at_most(checked_prefetch(self._prefetch))
                yield queue, source

    def message_of(self, queue: str, source: JobSource, job: Job, *, no_ack: bool) -> dict[str, Any] | None:
        """What kombu makes a message of; None if it is not one of kombu's."""
        try:
            payload: dict[str, Any] = json.loads(dict(job.headers)[_HEADER] or b"")
            payload["body"] = (job.value or b"").decode() if payload.pop("text") else job.value
            properties = payload["properties"]
            tag = properties["delivery_tag"] = f"{queue}/{job.partition}@{job.offset}#{job.attempt}"
            properties.setdefault("delivery_info", {})["redelivered"] = job.attempt > 1
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            logger.warning("%r was not put by kombu, and is dead", job)
            source.bury(job, error)
            return None
        waits = not no_ack and _is_put_aside(payload)
        if waits and job.alone:
            self._alone = tag
        if (job.alone or not waits) and not source.begin(job):
            return None
        if no_ack:
            source.ack(job)
            return payload
        self._jobs[tag] = source, job
        if waits:
            self._aside[tag] = job
        return payload

    def _look_for_begun(self) -> None:
        """Mark the jobs that Celery's pool has accepted. In the client's loop, while Celery goes on in its thread."""
        accepted = [tag for tag in _active_tags() if tag in self._aside] if self._aside else []
        for tag in accepted:
            job = self._aside.pop(tag, None)
            if job is not None:
                job.begun = True
        if accepted and self._alone and self.connection is not None:
            self.connection.wake()

    def next_message(self, queue: str, source: JobSource) -> dict[str, Any] | None:
        """A message of a queue that is consumed, if there is one now."""
        if self._alone in self._aside:
            return None
        job = source.take_now()
        if job is None:
            return None
        if job.alone and self._aside:  # it comes when these have begun
            self._alone = next(reversed(self._aside))
            source.early.appendleft(job)
            return None
        return self.message_of(queue, source, job, no_ack=queue in self._unacknowledged)

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Any:
        """One message, if there is one within a moment. For tools and tests."""
        source = self.sources.get(queue)
        if source is None:
            source = self._open_source(queue, 1)
        elif source.consumer.is_paused:
            source.hold_at_most(checked_prefetch(len(self.qos._delivered) + 1))  # noqa: SLF001 - what it holds
        job = source.take(self.connection.get_s)
        if queue not in self._active_queues:
            source.hold_at_most(0)  # the next one is not asked for yet
        payload = None if job is None else self.message_of(queue, source, job, no_ack=no_ack)
        if payload is None:
            return None
        message = self.Message(payload, channel=self)
        if not no_ack:
            self.qos.append(message, message.delivery_tag)
        return message

    # --- settling -------------------------------------------------------------------------------

    def settle(self, delivery_tag: str, how: Any) -> None:
        """Once; kombu's own books say the rest."""
        self._aside.pop(delivery_tag, None)
        found = self._jobs.pop(delivery_tag, None)
        if found is not None and self._clients.is_open:
            how(*found)

    def _restore(self, message: Any) -> None:
        """A channel ends before it settled this. Nobody began it, as far as kombu knows."""
        self.settle(message.delivery_tag, JobSource.release)

    def close(self) -> None:
        """Put back what was not settled, and leave all queues."""
        connection = self.connection
        super().close()
        sources, self.sources = self.sources, {}
        if connection is not None and connection.clients.is_open:
            for source in sources.values():
                with suppress(StentorError):
                    source.close()


class Transport(virtual.Transport):
    """A kombu connection: one client of Stentor."""

    Channel = Channel
    can_parse_url = True
    default_port = 7440
    driver_type = driver_name = "stentor"
    get_s = 0.2  # how long a single get waits for what is on its way
    connection_errors = (
        *virtual.Transport.connection_errors,
        ConnectionFailed,
        DeadlineExceeded,
        NotReady,
        Closed,
        ForkDetected,
        OSError,
    )
    channel_errors = (*virtual.Transport.channel_errors, StentorError)
    implements = virtual.Transport.implements.extend(exchange_type=frozenset({"direct", "topic"}))

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.clients = ClientPerProcess(_url(client), "kombu", client.transport_options.get("queue_settings"))
        self._bell: asyncio.Event | None = None  # of whoever waits in the client's loop
        self._settled = threading.Event()
        self._turn = 0

    def establish_connection(self) -> Transport:
        """Connect now, so that an address where nobody listens is an error now."""
        self.clients.client()
        super().establish_connection()
        return self

    def close_connection(self, connection: Any) -> None:
        """Put back what was not settled, and disconnect."""
        super().close_connection(connection)
        self.clients.close()

    def verify_connection(self, connection: Any) -> bool:
        """Whether this process may use it."""
        del connection
        return self.clients.is_open

    def driver_version(self) -> str:
        """The version of Stentor."""
        return __version__

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """There is no password in it."""
        del include_password, mask
        return uri

    # --- draining -------------------------------------------------------------------------------

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver one message; socket.timeout when none comes in time."""
        del connection
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._settled.clear()
            if self._deliver_one():
                return
            left_s = 60.0 if deadline is None else deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self._wait(left_s)

    def _deliver_one(self) -> bool:
        found = [(channel, *each) for channel in list(self.channels) for each in channel.open_sources()]
        self._turn += 1
        for index in range(len(found)):
            channel, queue, source = found[(self._turn + index) % len(found)]
            message = channel.next_message(queue, source)
            if message is not None:
                self._deliver(message, queue)
                return True
        return False

    def _wait(self, seconds: float) -> None:
        """Until a source has a job, something was settled, or the time is over."""
        sources = [source for channel in list(self.channels) for _, source in channel.open_sources()]
        if not sources:
            self._settled.wait(seconds)
        elif not self._settled.is_set():
            self.clients.client()._call(self._first(sources, seconds))  # noqa: SLF001 - in the client's loop

    async def _first(self, sources: list[JobSource], seconds: float) -> None:
        self._bell = bell = asyncio.Event()
        if self._settled.is_set():
            bell.set()
        takes = {asyncio.ensure_future(source.consumer.draw(1)): source for source in sources}
        ringing = asyncio.ensure_future(bell.wait())
        await asyncio.wait([*takes, ringing], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        self._bell = None
        for each in (*takes, ringing):
            each.cancel()
        outcomes = await asyncio.gather(*takes, return_exceptions=True)
        for source, outcome in zip(takes.values(), outcomes, strict=True):
            if isinstance(outcome, list):
                source.early.extend(outcome)
            elif isinstance(outcome, StentorError):
                raise outcome

    def wake(self) -> None:
        """Something was settled: a channel may be handed more. Any thread."""
        self._settled.set()
        bell = self._bell
        if bell is not None and self.clients.is_open:
            self.clients.client()._core.loop.call_soon_threadsafe(bell.set)  # noqa: SLF001 - the same


def _url(client: Any) -> str | None:
    """Kombu hands over a URL as it is; what was given in parts is put together."""
    host = client.hostname or "localhost"
    if "://" in host:
        return "stentor://" + host.partition("://")[2]
    return f"{host}:{client.port}" if client.port else str(host)


def _is_put_aside(payload: dict[str, Any]) -> bool:
    """Return whether a message goes to a worker of Celery, whose pool begins it later."""
    return _CELERY in sys.modules and "task" in (payload.get("headers") or {})


def _active_tags() -> frozenset[str]:
    """Return the delivery tags of the messages that Celery's pool works on. Any thread."""
    celery = sys.modules.get(_CELERY)
    requests: Any = () if celery is None else celery.active_requests
    with suppress(RuntimeError):  # it changed meanwhile; this is looked at again soon
        return frozenset(getattr(request.message, "delivery_tag", "") for request in list(requests))
    return frozenset()


def _due(eta: Any) -> datetime | None:
    """When a message may reach a worker. What is due, or makes no sense, is the worker's to judge."""
    if not isinstance(eta, str):
        return None
    try:
        due = datetime.fromisoformat(eta)
    except ValueError:
        return None
    due = due if due.tzinfo is not None else due.replace(tzinfo=UTC)
    return due if due > datetime.now(UTC) else None
