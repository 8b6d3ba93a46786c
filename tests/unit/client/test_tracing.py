"""Spans and trace context of messages, with the real SDK of OpenTelemetry and one broker."""

import asyncio
import sys
import threading
import time
from itertools import count
from pathlib import Path
from zlib import crc32

import pyarrow as pa
import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.trace import SpanKind, StatusCode

import stentor
from stentor import limits
from stentor.client.producer import Producer
from stentor.client.subscription import Subscription
from stentor.client.tracing import LINKS_MAX, context_of
from stentor.errors import InvalidArgument, MissingPackage
from stentor.integrations.opentelemetry import processing
from stentor.request_errors import HandlerFailed

WAIT_S = 30
names = count()


def wait_for(holds, what):
    deadline, pause = time.monotonic() + WAIT_S, threading.Event()
    while not holds():
        assert time.monotonic() < deadline, what
        pause.wait(0.005)


class Spans:
    """What was traced."""

    def __init__(self):
        self.memory = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.memory))
        self.tracer = self.provider.get_tracer("application")

    def named(self, name, least=1):
        """The spans of a name, once there are so many."""

        def found():
            return [span for span in self.memory.get_finished_spans() if span.name == name]

        wait_for(lambda: len(found()) >= least, f"{least} spans {name}")
        return found()

    def one(self, name):
        (span,) = self.named(name)
        return span


@pytest.fixture
def spans():
    return Spans()


@pytest.fixture
def traced(shared, spans):
    with stentor.connect(shared.url, tracing=spans.provider) as client:
        yield client


@pytest.fixture
def topic(client):
    name = f"traced.{next(names)}"
    client.create_topic(name, partitions=1)
    return name


def ids(span):
    return span.context.trace_id, span.context.span_id


def parent(span):
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def linked(span):
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def carried(message):
    """The context in a message's headers."""
    found = trace.get_current_span(context_of(message.headers)).get_span_context()
    return found.trace_id, found.span_id


def read(client, topic):
    return list(client.read(topic))


def test_a_client_that_is_not_traced_has_the_plain_classes_and_adds_no_header(client, topic, spans):
    with spans.tracer.start_as_current_span("work"):
        client.publish(topic, "a")
        with client.producer(topic) as producer:
            assert type(producer) is Producer
            producer.send("b")
    with client.subscribe(topic) as subscription:
        assert type(subscription) is Subscription
    assert [message.headers for message in read(client, topic)] == [[], []]


def test_publish_has_a_span_whose_context_is_in_the_message(traced, topic, spans):
    with spans.tracer.start_as_current_span("work") as work:
        receipt = traced.publish(topic, "a", headers={"own": "x"})
    span = spans.one(f"send {topic}")
    assert span.kind is SpanKind.PRODUCER
    assert parent(span) == ids(work)
    assert dict(span.attributes) == {
        "messaging.system": "stentor",
        "messaging.client.id": traced.name,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": "0",
        "messaging.stentor.offset": receipt.offset,
    }
    (message,) = read(traced, topic)
    assert carried(message) == ids(span)
    assert message.headers[0] == ("own", b"x")


def test_attributes_have_the_names_of_the_conventions():
    known = {value for value in vars(messaging_attributes).values() if isinstance(value, str)}
    assert {
        "messaging.system",
        "messaging.client.id",
        "messaging.operation.name",
        "messaging.operation.type",
        "messaging.destination.name",
        "messaging.destination.partition.id",
        "messaging.consumer.group.name",
        "messaging.batch.message_count",
        "messaging.message.conversation_id",
    } <= known


def test_a_context_that_the_application_gives_is_left_as_it_is(traced, topic, spans):
    given = f"00-{7:032x}-{9:016x}-01"
    traced.publish(topic, "a", headers={"traceparent": given})
    assert read(traced, topic)[0].headers == [("traceparent", given.encode())]
    assert linked(spans.one(f"send {topic}")) == [(7, 9)]


def test_tracestate_travels_along(traced, topic, spans):
    headers = [("traceparent", f"00-{7:032x}-{9:016x}-01".encode()), ("tracestate", b"vendor=1")]
    token = context.attach(context_of(headers))
    try:
        traced.publish(topic, "a")
    finally:
        context.detach(token)
    found = dict(read(traced, topic)[0].headers)
    assert found["tracestate"] == b"vendor=1"
    assert found["traceparent"].startswith(f"00-{7:032x}-".encode())


@pytest.mark.parametrize(
    "value", [b"", b"x", None, b"\xff\xfe", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01", b"00-zz-yy-01", b"-" * 4000]
)
def test_a_malformed_context_is_ignored(client, traced, topic, spans, value):
    client.publish(topic, "a", headers=[("traceparent", value)])
    with (
        traced.subscribe(topic, start="earliest") as subscription,
        processing(subscription.get(WAIT_S), tracer_provider=spans.provider),
    ):
        pass
    span = spans.one(f"process {topic}")
    assert (parent(span), linked(span)) == (None, [])


def test_a_message_with_as_many_headers_as_it_may_have_is_sent_without_context(traced, topic, spans):
    headers = [(f"h{index}", b"") for index in range(limits.MESSAGE_HEADERS_MAX)]
    traced.publish(topic, "a", headers=headers)
    assert read(traced, topic)[0].headers == headers


def test_what_is_not_sampled_is_not_recorded_but_its_context_travels(shared, topic):
    off = Spans()
    off.provider = TracerProvider(sampler=ALWAYS_OFF)
    with stentor.connect(shared.url, tracing=off.provider) as client:
        client.publish(topic, "a")
        ((name, value),) = read(client, topic)[0].headers
    assert name == "traceparent"
    assert not int(value[-2:], 16) & trace.TraceFlags.SAMPLED


def test_a_failure_is_told_to_the_span(traced, topic, spans):
    with pytest.raises(InvalidArgument):
        traced.publish(topic, "a", partition=5)
    span = spans.one(f"send {topic}")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "stentor.errors.InvalidArgument"


def test_every_message_of_a_producer_has_a_span_until_it_is_acknowledged(traced, topic, spans):
    told = []
    with traced.producer(topic) as producer:
        for number in range(3):
            producer.send(f"{number}", on_delivery=lambda receipt, _: told.append(receipt.offset))
    sent = spans.named(f"send {topic}", 3)
    assert told == [0, 1, 2]
    assert [span.attributes["messaging.stentor.offset"] for span in sent] == told
    assert [carried(message) for message in read(traced, topic)] == [ids(span) for span in sent]


def test_lists_and_tables_have_one_span(traced, topic, spans):
    with traced.producer(topic) as producer:
        producer.send_many([b"a", b"b", b"c"])
        producer.flush()
        producer.send_batch(pa.table({"value": [b"d", b"e"]}))
    many, table = spans.named(f"send {topic}", 2)
    assert many.attributes["messaging.batch.message_count"] == 3
    assert table.attributes["messaging.batch.message_count"] == 2
    assert [carried(message) for message in read(traced, topic)] == [ids(many)] * 3 + [ids(table)] * 2


def test_lists_keep_their_keys_partitions_and_odd_values(traced, client, spans):
    topic = f"traced.{next(names)}"
    client.create_topic(topic, partitions=3)
    keys = [f"k{number}".encode() for number in range(20)]
    with traced.producer(topic) as producer:
        producer.send_many([b"v"] * 20, keys)
        producer.send_many([b"a", "b"], partition=2)
        with pytest.raises(InvalidArgument):
            producer.send_many([b"a", 7], partition=2)
    found = read(traced, topic)
    assert {message.key: message.partition for message in found if message.key} == {key: crc32(key) % 3 for key in keys}
    assert [message.value for message in found if message.key is None] == [b"a", b"b", b"a"]
    keyed, odd, wrong = sorted(spans.named(f"send {topic}", 3), key=lambda span: span.start_time)
    assert {carried(message) for message in found} == {ids(keyed), ids(odd), ids(wrong)}
    assert [span.status.status_code for span in (keyed, odd, wrong)] == [
        StatusCode.UNSET,
        StatusCode.UNSET,
        StatusCode.ERROR,
    ]


def test_a_producer_with_an_identity_sends_the_same_bytes_again(traced, topic, spans):
    for _ in range(2):
        with traced.producer(topic, identity="job-17", secret="s") as producer:
            producer.send("a", timestamp=1)
    assert [message.headers for message in read(traced, topic)] == [[]]
    assert len(spans.named(f"send {topic}", 2)) == 2


def test_get_and_batches_have_receive_spans_with_links(traced, topic, spans):
    traced.publish(topic, "a")
    with traced.subscribe(topic, start="earliest") as subscription:
        subscription.get(WAIT_S)
        traced.publish(topic, "b")
        next(iter(subscription.batches()))
    sent = spans.named(f"send {topic}", 2)
    single, batch = spans.named(f"receive {topic}", 2)
    assert (single.kind, linked(single)) == (SpanKind.CLIENT, [ids(sent[0])])
    assert (batch.attributes["messaging.batch.message_count"], linked(batch)) == (1, [ids(sent[1])])


def test_a_loop_of_the_application_has_its_spans_by_processing(traced, topic, spans):
    traced.publish(topic, "a")
    with traced.subscribe(topic, start="earliest") as subscription:
        message = next(iter(subscription))
    with processing(message, group="billing", tracer_provider=spans.provider):
        inner = trace.get_current_span()
    span, sent = spans.one(f"process {topic}"), spans.one(f"send {topic}")
    assert span.context == inner.get_span_context()
    assert (span.kind, parent(span), linked(span)) == (SpanKind.CONSUMER, ids(sent), [ids(sent)])
    assert span.attributes["messaging.consumer.group.name"] == "billing"


def run_group(client, topic, handler, until, **options):
    with client.group(f"g.{topic}", topic) as group:
        ender = threading.Thread(target=lambda: (until.wait(WAIT_S), group.stop()))
        ender.start()
        group.run(handler, **options)
        ender.join()
    return f"g.{topic}"


@pytest.mark.parametrize("mode", ["thread", "async"])
def test_spans_of_a_groups_handler_are_children_of_the_message(traced, topic, spans, mode):
    traced.publish(topic, "a")
    done = threading.Event()

    def handle(message):
        with spans.tracer.start_as_current_span("inner"):
            done.set()

    async def handle_async(message):
        await asyncio.sleep(0)
        handle(message)

    group = run_group(traced, topic, handle if mode == "thread" else handle_async, done, mode=mode, workers=2)
    sent, process, inner = spans.one(f"send {topic}"), spans.one(f"process {topic}"), spans.one("inner")
    assert (parent(process), linked(process), parent(inner)) == (ids(sent), [ids(sent)], ids(process))
    assert process.attributes["messaging.consumer.group.name"] == group
    assert process.attributes["messaging.stentor.offset"] == 0


def test_a_batch_is_linked_to_all_its_producers(traced, topic, spans):
    for number in range(3):
        traced.publish(topic, f"{number}")
    done, seen = threading.Event(), []

    def handle(messages):
        seen.extend(messages)
        if len(seen) == 3:
            done.set()

    run_group(traced, topic, handle, done, batch=10)
    batches = spans.named(f"process {topic}")
    assert {link for span in batches for link in linked(span)} == set(map(ids, spans.named(f"send {topic}")))
    assert sum(span.attributes["messaging.batch.message_count"] for span in batches) == 3
    assert all(span.parent is None for span in batches)


def test_links_are_bounded_and_each_is_there_once(traced, topic, spans):
    with traced.producer(topic) as producer:
        producer.send_many([b"x"] * 10)
        for _ in range(2 * LINKS_MAX):
            producer.send(b"y")
    messages = read(traced, topic)
    with processing(messages[:10], tracer_provider=spans.provider):
        pass
    with processing(messages, tracer_provider=spans.provider):
        pass
    few, many = spans.named(f"process {topic}", 2)
    assert len(few.links) == 1
    assert len(many.links) <= LINKS_MAX


def test_a_handler_that_fails_is_told_to_its_span(traced, topic, spans):
    traced.publish(topic, "a")

    def handle(message):
        raise ValueError("no")

    with traced.group(f"g.{topic}", topic) as group, pytest.raises(ValueError, match="no"):
        group.run(handle)
    span = spans.one(f"process {topic}")
    assert (span.status.status_code, span.attributes["error.type"]) == (StatusCode.ERROR, "ValueError")


def test_handlers_in_processes_have_the_context(traced, topic, spans, tmp_path, monkeypatch):
    monkeypatch.setenv("NOTES", str(tmp_path))
    monkeypatch.syspath_prepend(Path(__file__).parent)
    traced.publish(topic, "a")
    with traced.group(f"g.{topic}", topic) as group:
        running = threading.Thread(target=group.run, args=("worker_handlers:tell_trace",), kwargs={"mode": "process"})
        running.start()
        wait_for(lambda: group.statistics()["done"] == 1, "nothing was handled")
        group.stop()
        running.join(WAIT_S)
    assert (tmp_path / "trace").read_text() == f"{spans.one(f'send {topic}').context.trace_id:032x}"


def test_jobs_are_traced_from_put_to_handler(traced, spans):
    name = f"jobs.{next(names)}"
    with traced.queue(name) as jobs:
        with spans.tracer.start_as_current_span("work") as work:
            jobs.put("plain")
            jobs.put("later", priority=3)
            jobs.put_many(["one", "two"])
        seen = []

        def handle(job):
            with spans.tracer.start_as_current_span(f"inner {job.value.decode()}"):
                seen.append(job.value)
            if len(seen) == 4:
                closing.start()

        closing = threading.Thread(target=jobs.close)
        jobs.run(handle)
        closing.join(WAIT_S)
    sent = spans.named(f"send {name}", 3)
    assert [parent(span) for span in sent] == [ids(work)] * 3
    assert sorted(span.attributes.get("messaging.batch.message_count", 1) for span in sent) == [1, 1, 2]
    processed = {ids(span): span for span in spans.named(f"process {name}", 4)}
    for value in ("plain", "later", "one", "two"):
        process = processed[parent(spans.one(f"inner {value}"))]
        assert parent(process) in map(ids, sent)
        assert process.attributes["messaging.stentor.attempt"] == 1


def test_getting_a_job_has_a_receive_span(traced, spans):
    name = f"jobs.{next(names)}"
    with traced.queue(name) as jobs:
        jobs.put("a")
        jobs.ack(jobs.get(WAIT_S))
    assert linked(spans.one(f"receive {name}")) == [ids(spans.one(f"send {name}"))]


def test_a_request_and_its_handler_are_one_trace(traced, shared, spans):
    def price(request):
        with spans.tracer.start_as_current_span("inner"):
            return "7"

    with traced.serve("svc.price", price), spans.tracer.start_as_current_span("work") as work:
        reply = traced.request("svc.price", "x", timeout=WAIT_S)
    request, process, inner = spans.one("request svc.price"), spans.one("process svc.price"), spans.one("inner")
    assert (parent(request), parent(process), parent(inner)) == (ids(work), ids(request), ids(process))
    for span in (request, process):
        assert span.attributes["messaging.message.conversation_id"] == reply.correlation


def test_a_streamed_answer_is_inside_of_its_handlers_span(traced, spans):
    def parts(request):
        for number in range(2):
            with spans.tracer.start_as_current_span(f"part {number}"):
                pass
            yield str(number)

    with traced.serve("svc.parts", parts), traced.request_stream("svc.parts", timeout=WAIT_S) as stream:
        assert [part.value for part in stream] == [b"0", b"1"]
    process = spans.one("process svc.parts")
    assert parent(process) == ids(spans.one("request svc.parts"))
    assert [parent(spans.one(f"part {number}")) for number in range(2)] == [ids(process)] * 2


def test_a_request_that_fails_has_the_error_on_both_sides(traced, spans):
    def fail(request):
        raise ValueError("no")

    with traced.serve("svc.fails", fail), pytest.raises(HandlerFailed):
        traced.request("svc.fails", timeout=WAIT_S)
    assert spans.one("process svc.fails").attributes["error.type"] == "ValueError"
    assert spans.one("request svc.fails").attributes["error.type"] == "stentor.request_errors.HandlerFailed"


def test_async_clients_are_traced_alike(shared, topic, spans):
    async def generate(request):
        with spans.tracer.start_as_current_span("part"):
            yield "1"

    async def work():
        async with stentor.connect_async(shared.url, tracing=spans.provider) as client:
            with spans.tracer.start_as_current_span("work") as outer:
                await client.publish(topic, "a")
                async with client.producer(topic) as producer:
                    await producer.send("b")
                async with client.queue(f"jobs.{topic}") as jobs:
                    await jobs.put("c", priority=1)
                    job = await jobs.get(WAIT_S)
                    await jobs.ack(job)
            async with client.subscribe(topic, start="earliest") as subscription:
                await subscription.get(WAIT_S)
            streaming = client.request_stream("svc.async", timeout=WAIT_S)
            async with client.serve("svc.async", generate), streaming as stream:
                assert [part.value async for part in stream] == [b"1"]
            return ids(outer)

    outer = asyncio.run(work())
    sent = spans.named(f"send {topic}", 2)
    assert [parent(span) for span in [*sent, spans.one(f"send jobs.{topic}")]] == [outer] * 3
    assert linked(spans.one(f"receive {topic}")) == [ids(sent[0])]
    assert parent(spans.one(f"receive jobs.{topic}")) == outer
    process = spans.one("process svc.async")
    assert (parent(process), parent(spans.one("part"))) == (ids(spans.one("request svc.async")), ids(process))


def test_what_is_no_tracer_provider_is_refused(shared):
    with pytest.raises(InvalidArgument, match="tracer provider"):
        stentor.connect(shared.url, tracing="yes")


def test_without_opentelemetry_it_is_said_what_to_install(shared, monkeypatch):
    monkeypatch.delitem(sys.modules, "stentor.client.tracing")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingPackage, match="OpenTelemetry") as raised:
        stentor.connect(shared.url, tracing=True)
    assert "otel" in raised.value.hint
