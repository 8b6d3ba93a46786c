"""Dramatiq on Stentor: a broker for actors and workers.

    dramatiq.set_broker(DramatiqBroker("stentor://localhost:7440"))

Every queue of Dramatiq is a queue of Stentor. Delayed messages wait in the queue itself, not in a worker, so there are
no delay queues. Retries are Dramatiq's: its middleware enqueues a failed message again. What Dramatiq gives up goes to
the queue's dead-letter topic, with reason and traceback.
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stentor.errors import Closed, ConnectionFailed, DeadlineExceeded, NotReady, StentorError
from stentor.integrations.packages import need

need("dramatiq", "stentor.integrations.dramatiq", "pip install 'dramatiq>=2.0'")

from dramatiq.broker import Broker, Consumer, MessageProxy  # noqa: E402
from dramatiq.errors import ConnectionClosed, DecodeError, QueueJoinTimeout, QueueNotFound  # noqa: E402
from dramatiq.message import Message  # noqa: E402
from dramatiq.middleware import Middleware, SkipMessage  # noqa: E402

from stentor.integrations.per_process import ClientPerProcess  # noqa: E402
from stentor.integrations.source import JobSource  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stentor.client.job import Job

logger = logging.getLogger(__name__)

_PASSING = (ConnectionFailed, DeadlineExceeded, NotReady, Closed)  # what Dramatiq tries again by itself
_JOIN_PAUSE_S = 0.02


@contextmanager
def _dramatic_errors() -> Iterator[None]:
    """Errors that pass are those that Dramatiq knows; all others say what to do, and stay as they are."""
    try:
        yield
    except _PASSING as error:
        raise ConnectionClosed(error) from error


class DramatiqBroker(Broker):
    """Enqueues messages, and hands them to Dramatiq's workers."""

    def __init__(
        self,
        url: str | None = None,
        *,
        middleware: list[Middleware] | None = None,
        prefix: str = "",
        settings: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(middleware=middleware)
        self.middleware.insert(0, _Beginning())  # first: the others may start clocks for what is about to begin
        self.actor_options.add("broker_priority")
        self._clients = ClientPerProcess(url, "dramatiq", settings)
        self._prefix = prefix

    def close(self) -> None:
        """Disconnect this process."""
        self._clients.close()

    def declare_queue(self, queue_name: str) -> None:
        """Note a queue. It is made when it is used first, so that actors can be declared without a broker."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = None
            self.emit_after("declare_queue", queue_name)

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """Put a message into its queue, due after `delay` milliseconds, and wait until it is committed."""
        self.declare_queue(message.queue_name)
        self.emit_before("enqueue", message, delay)
        actor = self.actors.get(message.actor_name)
        standing = actor.options.get("broker_priority", 0) if actor is not None else 0
        with _dramatic_errors():
            self._clients.queue(self._prefix + message.queue_name).put(
                message.encode(),
                delay=None if delay is None else max(0, delay) / 1_000,
                priority=message.options.get("broker_priority", standing),
            )
        self.emit_after("enqueue", message, delay)
        return message

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30_000) -> DramatiqConsumer:
        """The messages of a queue; at most `prefetch` of them at a time are held here."""
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        with _dramatic_errors():
            return DramatiqConsumer(JobSource(self._clients, self._prefix + queue_name, prefetch), timeout / 1_000)

    def flush(self, queue_name: str) -> None:
        """Drop all messages of a queue that nobody works on."""
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        with _dramatic_errors():
            self._clients.queue(self._prefix + queue_name).purge()

    def flush_all(self) -> None:
        """The same for all queues."""
        for queue_name in self.get_declared_queues():
            self.flush(queue_name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until a queue has no message that is not done, delayed ones included. For tests."""
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        deadline = None if timeout is None else time.monotonic() + timeout / 1_000
        while True:
            with _dramatic_errors():
                info = self._clients.queue(self._prefix + queue_name).describe()
            if not info.waiting and not info.held:
                return
            if deadline is not None and time.monotonic() > deadline:
                raise QueueJoinTimeout(queue_name)
            time.sleep(_JOIN_PAUSE_S)


class _Beginning(Middleware):
    """Says that the work on a message begins: what a worker only holds is no attempt."""

    def before_process_message(self, _: Broker, message: MessageProxy) -> None:
        """Let the message begin, or skip it if another worker has it by now."""
        if not isinstance(message, JobProxy):
            return
        try:
            begins = message.source.begin(message.job)
        except StentorError as error:  # the client is closed
            logger.warning("%r does not begin: %s", message.job, error)
            begins = False
        if not begins:
            message.options["store_results"] = False  # whoever has it says what comes of it
            raise SkipMessage(f"{message.job!r} is not this worker's any more.")


class DramatiqConsumer(Consumer):
    """The messages of one queue, for one consumer thread of a worker."""

    def __init__(self, source: JobSource, timeout_s: float) -> None:
        self._source = source
        self._timeout_s = timeout_s

    def __next__(self) -> JobProxy | None:
        with _dramatic_errors():
            job = self._source.take(self._timeout_s)
        if job is None:
            return None
        try:
            return JobProxy(Message.decode(job.value or b""), job, self._source)
        except DecodeError as error:
            self._source.bury(job, error)
            return None

    def ack(self, message: MessageProxy) -> None:
        """It is done."""
        assert isinstance(message, JobProxy)
        message.source.ack(message.job)

    def nack(self, message: MessageProxy) -> None:
        """It goes to the dead-letter topic."""
        assert isinstance(message, JobProxy)
        message.source.bury(message.job, message._exception)  # noqa: SLF001 - where Dramatiq keeps it

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Nobody began these: they are handed out again, and the attempt is not counted."""
        for message in messages:
            assert isinstance(message, JobProxy)
            message.source.release(message.job)

    def close(self) -> None:
        """Leave the queue."""
        try:
            self._source.close()
        except StentorError as error:
            raise ConnectionClosed(error) from error


class JobProxy(MessageProxy):
    """A message of Dramatiq, and the job that it came as."""

    def __init__(self, message: Message[Any], job: Job, source: JobSource) -> None:
        super().__init__(message)
        self.job = job
        self.source = source  # a worker may settle it after its consumer was replaced
