"""Spans and trace context of messages, by OpenTelemetry. Loaded only by a client that was opened with `tracing`.

    send orders      PRODUCER    from the call to the acknowledgement; its context goes into the message's headers
    receive orders   CLIENT      a `get`, or a batch that was asked for; linked to the contexts of its messages
    process orders   CONSUMER    around a handler; the child of its message's context, or linked to those of a batch
    request svc      PRODUCER    from the call to the answer; its handler's span is `process svc`

Names and attributes are those of the semantic conventions for messaging. The context travels as W3C Trace Context, in
the headers `traceparent` and `tracestate`. A `traceparent` that the application gave is left as it is, and one that
cannot be read counts as none.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncGenerator, Awaitable, Generator
from contextlib import contextmanager
from functools import wraps
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context, trace
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from stentor import limits
from stentor._version import __version__
from stentor.client.convert import as_headers
from stentor.client.job import Job
from stentor.client.reply import ServiceRequest
from stentor.errors import InvalidArgument
from stentor.wire.batch import header_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator

    from stentor.client.message import Message, Receipt
    from stentor.client.options import HeadersLike
    from stentor.errors import StentorError
    from stentor.wire.rows import Headers

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

LINKS_MAX: Final = 128
"""Links of one span: as many as the SDK keeps unless it is told otherwise."""

_propagator: Final = TraceContextTextMapPropagator()


def context_of(headers: Headers) -> Any:
    """The context that headers carry; an empty one if there is none, or none that can be read."""
    carrier: dict[str, list[str]] = {}
    for name, value in headers:
        if name in (TRACEPARENT, TRACESTATE) and value is not None and value.isascii():
            carrier.setdefault(name, []).append(value.decode())
    if TRACEPARENT not in carrier:
        return context.Context()
    return _propagator.extract(carrier, context.Context())


def _span_context(headers: Headers) -> Any:
    """The same as a span's context, or None."""
    if not headers:
        return None
    found = trace.get_current_span(context_of(headers)).get_span_context()
    return found if found.is_valid else None


def _links(all_headers: Iterable[Headers]) -> list[Any]:
    """To the contexts of messages, each of them once."""
    found = {}
    for headers in all_headers:
        one = _span_context(headers)
        if one is not None:
            found[one.trace_id, one.span_id] = one
            if len(found) == LINKS_MAX:
                break
    return [Link(one) for one in found.values()]


def _fail(span: Any, error: BaseException) -> None:
    if span.is_recording():
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        span.set_attribute("error.type", name)
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, str(error)))


class SendSpan:
    """The span of something that is being sent, and the headers to send it with."""

    def __init__(self, span: Any, headers: HeadersLike | None) -> None:
        self._span = span
        self.headers = headers
        self._awaited = 0  # answers; below zero while one is quicker than whoever expects it
        self._complete = False  # everything was handed over: no further answer will be expected
        self._ended = False
        self._lock = threading.Lock()

    def told(self, on_delivery: Callable[..., None] | None, *, single: bool = True) -> Callable[..., None] | None:
        """What to call with an answer; `on_delivery` is called, too. With `single` there is one answer."""
        if not self._span.is_recording():
            return on_delivery
        if single:
            self._awaited, self._complete = 1, True

        def told(receipt: Receipt | None, error: StentorError | None) -> None:
            if error is not None:
                _fail(self._span, error)
            elif single and receipt is not None:
                self._place(receipt.partition, receipt.offset)
            self._count(-1)
            if on_delivery is not None:
                on_delivery(receipt, error)

        told.on_delivery = on_delivery  # type: ignore[attr-defined]  # by which its message is found (`Lane.withdraw`)
        return told

    def _place(self, partition: int, offset: int) -> None:
        self._span.set_attribute("messaging.destination.partition.id", str(partition))
        if offset >= 0:  # else nobody said it: ack=none
            self._span.set_attribute("messaging.stentor.offset", offset)

    def expect(self) -> None:
        """Another answer will come, or has come."""
        self._count(1)

    def complete(self) -> None:
        """Everything was handed over: with the last answer the span ends."""
        self._complete = True
        self._count(0)

    def _count(self, change: int) -> None:
        with self._lock:
            self._awaited += change
            over = self._complete and self._awaited == 0
        if over:
            self._end()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._span.end()

    def fail(self, error: BaseException) -> None:
        """It was not sent."""
        _fail(self._span, error)
        self._end()

    async def awaited(self, work: Awaitable[Any]) -> Any:
        """Until the work is done."""
        try:
            result = await work
        except BaseException as error:
            self.fail(error)
            raise
        self._end()
        return result


class Tracing:
    """Makes the spans of one client."""

    def __init__(self, provider: object = True, client: str = "") -> None:
        """With True the provider is the one that the application has set for the whole process."""
        if provider is not True and not callable(getattr(provider, "get_tracer", None)):
            raise InvalidArgument(
                f"tracing={provider!r} is no tracer provider.", hint="Use True, or a TracerProvider of OpenTelemetry."
            )
        used: Any = None if provider is True else provider
        self._tracer = trace.get_tracer("stentor", __version__, used)
        self._common = {"messaging.system": "stentor"}
        if client:
            self._common["messaging.client.id"] = client

    def _attributes(self, operation: str, kind: str, topic: str, **more: Any) -> dict[str, Any]:
        named = {
            "messaging.operation.name": operation,
            "messaging.operation.type": kind,
            "messaging.destination.name": topic,
        }
        if more.get("group"):
            named["messaging.consumer.group.name"] = more["group"]
        if more.get("count") is not None:
            named["messaging.batch.message_count"] = more["count"]
        return self._common | named

    # --- sending --------------------------------------------------------------------------------

    def sending(
        self,
        topic: str,
        headers: Any,
        *,
        operation: str = "send",
        count: int | None = None,
        conversation: str = "",
        inject: bool = True,
    ) -> SendSpan:
        """Begin to send; in the thread or task of the caller, whose span is the parent."""
        given = as_headers(headers) or []
        attributes = self._attributes(operation, "send", topic, count=count)
        if conversation:
            attributes["messaging.message.conversation_id"] = conversation
        links = _links([given])
        span = self._tracer.start_span(
            f"{operation} {topic}", kind=SpanKind.PRODUCER, attributes=attributes, links=links
        )
        if not inject or any(name == TRACEPARENT for name, _ in given):
            return SendSpan(span, headers)
        return SendSpan(span, _with_context(given, span) or None)

    def sent(
        self, topic: str, headers: Any, make: Callable[[Any], Coroutine[Any, Any, Any]], count: int | None = None
    ) -> Coroutine[Any, Any, Any]:
        """Work that sends something with the headers that it is given."""
        sending = self.sending(topic, headers, count=count)
        return sending.awaited(make(sending.headers))

    # --- receiving ------------------------------------------------------------------------------

    def received(self, given: Message | Job, began_ns: int, group: str | None = None) -> None:
        """An application asked for a message at a time, and has it now."""
        attributes = _one(given) | self._attributes("receive", "receive", _topic(given), group=group)
        self._received(_topic(given), attributes, _links([given.headers]), began_ns)

    def received_rows(self, topic: str, partition: int, rows: Any, began_ns: int, group: str | None = None) -> None:
        """The same for a batch as Arrow."""
        attributes = self._attributes("receive", "receive", topic, group=group, count=rows.num_rows)
        attributes["messaging.destination.partition.id"] = str(partition)
        found: list[Any] = []
        if "headers" in rows.schema.names:
            found = rows.column(rows.schema.names.index("headers")).slice(0, LINKS_MAX).to_pylist()
        links = _links([[(each["key"], each["value"]) for each in headers] for headers in found if headers])
        self._received(topic, attributes, links, began_ns)

    def _received(self, topic: str, attributes: dict[str, Any], links: list[Any], began_ns: int) -> None:
        kind = SpanKind.CLIENT
        name = f"receive {topic}"
        self._tracer.start_span(name, kind=kind, attributes=attributes, links=links, start_time=began_ns).end()

    # --- processing -----------------------------------------------------------------------------

    def _process(self, given: Any, group: str | None) -> Any:
        """Begin the span of a handler's call: with a message, a job or a request, or with a list of messages."""
        if isinstance(given, list):
            topic, first = _topic(given[0]), given[0]
            attributes = self._attributes("process", "process", topic, group=group, count=len(given))
            attributes["messaging.destination.partition.id"] = str(first.partition)
            links, parent = _links(each.headers for each in islice(given, LINKS_MAX)), None
        else:
            topic, headers = _topic(given), given.headers
            attributes = _one(given) | self._attributes("process", "process", topic, group=group)
            links = _links([headers])
            parent = context_of(headers) if links else None
        name = f"process {topic}"
        return self._tracer.start_span(name, parent, kind=SpanKind.CONSUMER, attributes=attributes, links=links)

    @contextmanager
    def processing(self, given: Any, group: str | None = None) -> Iterator[Any]:
        """A span around what is done with a message, a job or a request, or with a list of messages."""
        span = self._process(given, group)
        try:
            with _inside(span):
                yield span
        finally:
            span.end()

    def traced(self, handler: Callable[..., Any], group: str | None = None) -> Callable[..., Any]:
        """A handler with a span around each call. What it begins and others go on with, is inside of the span, too."""
        if inspect.iscoroutinefunction(handler):

            @wraps(handler)
            async def awaited(given: Any) -> Any:
                with self.processing(given, group):
                    return await handler(given)

            return awaited

        def called(given: Any) -> Any:
            span = self._process(given, group)
            result = None
            try:
                with _inside(span):
                    result = handler(given)
                if isinstance(result, Generator | AsyncGenerator | Awaitable):
                    result, span = _continued(span, result), None
                return result
            finally:
                if span is not None:
                    span.end()

        return called


def _continued(span: Any, result: Any) -> Any:
    """What a handler returned and somebody else goes on with, inside of the span; it ends the span."""
    if isinstance(result, Generator):
        return _parts(span, result)
    return _async_parts(span, result) if isinstance(result, AsyncGenerator) else _awaited(span, result)


@contextmanager
def _inside(span: Any) -> Iterator[None]:
    """Make a span the current one; what is raised is told to it."""
    token = context.attach(trace.set_span_in_context(span))
    try:
        yield
    except BaseException as error:
        if not isinstance(error, GeneratorExit | StopIteration | StopAsyncIteration):
            _fail(span, error)
        raise
    finally:
        context.detach(token)


def _parts(span: Any, parts: Generator[Any, Any, Any]) -> Generator[Any, None, None]:
    try:
        while True:
            try:
                with _inside(span):
                    part = next(parts)
            except StopIteration:
                return
            yield part
    finally:
        parts.close()
        span.end()


async def _async_parts(span: Any, parts: AsyncGenerator[Any, Any]) -> AsyncGenerator[Any, None]:
    try:
        while True:
            try:
                with _inside(span):
                    part = await anext(parts)
            except StopAsyncIteration:
                return
            yield part
    finally:
        await parts.aclose()
        span.end()


async def _awaited(span: Any, result: Awaitable[Any]) -> Any:
    try:
        with _inside(span):
            return await result
    finally:
        span.end()


def _with_context(given: Headers, span: Any) -> Headers:
    """Headers with the context of a span; without it where a message has as many headers as it may have."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, trace.set_span_in_context(span))
    found = [*given, *((name, value.encode()) for name, value in carrier.items())]
    fits = len(found) <= limits.MESSAGE_HEADERS_MAX and header_bytes(found) <= limits.MESSAGE_HEADERS_BYTES_MAX
    return found if fits else given


def _topic(given: Message | Job | ServiceRequest) -> str:
    return given.queue if isinstance(given, Job) else given.topic


def _one(given: Message | Job | ServiceRequest) -> dict[str, Any]:
    """What is said about one message."""
    if isinstance(given, ServiceRequest):
        return {"messaging.message.conversation_id": given.correlation}
    named: dict[str, Any] = {
        "messaging.destination.partition.id": str(given.partition),
        "messaging.stentor.offset": given.offset,
    }
    if isinstance(given, Job):
        named["messaging.stentor.attempt"] = given.attempt
    return named
