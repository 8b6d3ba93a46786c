"""Clients in trouble: nothing is lost silently, failed twice, or waited for in vain."""

import asyncio
import threading
import time

import msgspec
import pyarrow as pa
import pytest
import uvloop

import stentor
from stentor import limits
from stentor.client.link import BrokerLink
from stentor.testing import broker


def values_of(client, topic):
    return [message.value for message in client.read(topic)]


def wait_for(condition, timeout=10):
    deadline = time.monotonic() + timeout
    waiting = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        waiting.wait(0.01)


def test_a_producer_without_acknowledgements_goes_on_after_a_restart():
    with broker() as local, local.client() as client:
        client.create_topic("loose")
        producer = client.producer("loose", ack="none", batch_messages=1)
        for number in range(200):
            producer.send(b"%d" % number)
        local.stop()
        local.start()
        client.topics()
        producer.send(b"after")
        producer.flush()
        wait_for(lambda: b"after" in values_of(client, "loose"))


def test_a_message_that_cannot_be_encoded_does_not_stop_the_next_one(client):
    with pytest.raises(stentor.LimitExceeded):
        client.publish("odd", "x", headers={"h": bytes(2_000_000)})
    with pytest.raises(stentor.InvalidArgument):
        client.publish("odd", "x", headers={"k\udcff": b""})
    with pytest.raises(stentor.InvalidArgument):
        client.publish("odd", "bad \udcff")
    assert client.publish("odd", "y", timeout=5).offset == 0


def test_a_key_that_is_too_long_fails_alone_and_is_told(client):
    with client.producer("keys") as producer:
        for number in range(50):
            producer.send(b"%d" % number, b"k" * 70_000 if number == 30 else b"k")
        with pytest.raises(stentor.PublishError) as error:
            producer.flush()
        assert error.value.failed[0].count == 1
    assert len(values_of(client, "keys")) == 49


def test_async_flush_reports_what_was_never_sent(shared):
    async def work():
        async with stentor.connect_async(shared.url) as client:
            producer = await client.producer("never")
            await producer.send("x", b"k" * 1000)
            producer._core.lanes[0].rows.extend((object(), None))
            with pytest.raises(stentor.PublishError):
                await producer.flush()
            await producer.close()

    asyncio.run(work())


def test_a_refused_batch_leaves_those_before_it_alone(shared, client, monkeypatch):
    from stentor.storage.log import PartitionLog
    from stentor.wire import batch

    real = PartitionLog.sync
    proceed = threading.Event()

    def slow(log):
        proceed.wait(5)
        return real(log)

    before_1970 = pa.array([-5], pa.timestamp("us", "UTC"))
    with pytest.raises(stentor.InvalidArgument):
        client.producer("times").send_batch(pa.table({"value": [b"x"], "timestamp": before_1970}))
    client.create_topic("good")
    monkeypatch.setattr(PartitionLog, "sync", slow)
    told = []
    producer = client.producer("good", batch_messages=1)
    producer.send(b"good", on_delivery=lambda receipt, error: told.append((receipt, error)))
    wait_for(lambda: producer.statistics()["in_flight_batches"] == 1)
    bad = batch.encode([1], [None], [b"bad"])
    lane = producer._core.lanes[0]
    lane.add_encoded(msgspec.structs.replace(bad, body_checksum=bad.body_checksum ^ 1))
    producer._post(lane.pump)
    wait_for(lambda: producer._core.outcomes.failed == 1)
    proceed.set()
    with pytest.raises(stentor.PublishError) as error:
        producer.flush()
    assert [failed.count for failed in error.value.failed] == [1]
    assert told[0][1] is None
    producer.send(b"next")
    producer.flush()
    producer.close()
    assert values_of(client, "good") == [b"good", b"next"]


def test_a_late_answer_does_not_call_back_twice(client, monkeypatch):
    from stentor.storage.log import PartitionLog

    real = PartitionLog.sync
    proceed = threading.Event()
    monkeypatch.setattr(PartitionLog, "sync", lambda log: (proceed.wait(10), real(log))[1])
    told = []
    producer = client.producer("late", timeout=0.3)
    producer.send(b"x", on_delivery=lambda _, error: told.append(error))
    wait_for(lambda: told)
    proceed.set()
    assert isinstance(told[0], stentor.UnknownOutcome)
    wait_for(lambda: values_of(client, "late") == [b"x"])
    assert len(told) == 1
    with pytest.raises(stentor.PublishError):
        producer.flush()


def test_closing_goes_through_although_one_producer_fails(shared, client):
    other = shared.client()
    other.create_topic("doomed")
    doomed, good = other.producer("doomed"), other.producer("kept")
    subscription = other.subscribe("kept")
    seen = []
    reader = threading.Thread(target=lambda: seen.extend(subscription))
    reader.start()
    client.delete_topic("doomed")
    for number in range(3_000):
        doomed.send(b"x")
        good.send(b"%d" % number)
    with pytest.raises(stentor.PublishError):
        other.close()
    assert len(values_of(client, "kept")) == 3_000
    reader.join(10)
    assert not reader.is_alive()


def test_get_then_batches_gives_every_message_once(client):
    with client.producer("mixed") as producer:
        producer.send_many([b"%d" % n for n in range(1_000)])
    with client.subscribe("mixed", start="earliest", end=1_000) as subscription:
        first = subscription.get(timeout=5)
        rest = [offset for found in subscription.batches() for offset in found.column("offset").to_pylist()]
    assert [first.offset, *rest] == list(range(1_000))


def test_waiting_calls_in_a_callback_are_refused_instead_of_hanging(client):
    errors = []

    def callback(receipt, error):
        for call in (producer.flush, producer.close, lambda: client.publish("callbacks", "x"), client.topics):
            try:
                call()
            except stentor.InvalidArgument as refused:
                errors.append(refused)

    producer = client.producer("callbacks")
    producer.send(b"x", on_delivery=callback)
    producer.flush(timeout=10)
    wait_for(lambda: len(errors) == 4)
    assert client.topics(timeout=5)


def test_flush_with_the_broker_gone_reports_every_message_and_calls_back():
    with broker() as local, local.client() as client:
        told = []
        producer = client.producer("gone", timeout=0.4)
        producer.send(b"a")
        producer.flush()
        local.stop()
        producer.send(b"b", on_delivery=lambda _, error: told.append(error))
        with pytest.raises(stentor.PublishError) as error:
            producer.flush()
        assert sum(batch.count for batch in error.value.failed) == 1
        wait_for(lambda: told)
        with pytest.raises(stentor.DeadlineExceeded):
            client.publish("new", "x", timeout=0.2)
        local.start()


def test_an_interval_topic_takes_more_than_it_may_hold_unsynced(client, monkeypatch):
    from stentor import limits

    monkeypatch.setattr(limits, "UNSYNCED_BYTES_MAX", 1_000_000)
    client.create_topic("hourly", flush="interval", flush_interval_ms=3_600_000)
    with client.producer("hourly") as producer:
        for _ in range(50):
            producer.send(bytes(200_000))
    assert len(values_of(client, "hourly")) == 50


def test_a_stalled_reader_does_not_gather_more_with_every_new_link(client):
    with client.producer("stalled") as producer:
        for _ in range(60):
            producer.send(bytes(1_000_000))
    subscription = client.subscribe("stalled", start="earliest")
    (reader,) = subscription._core.readers.values()
    for number in range(4):
        wait_for(lambda: reader.waiting > 7_000_000)
        client._core.loop.call_soon_threadsafe(client._core.link.connection.abort)
        wait_for(lambda wanted=number + 2: client._core.links_made == wanted)
    assert reader.waiting < 20_000_000
    assert sum(1 for _, _ in zip(range(60), subscription, strict=False)) == 60
    subscription.close()


def test_reading_on_after_the_client_was_closed_is_no_traceback_of_the_loop(shared):
    connected = shared.client()
    with connected.producer("closing") as producer:
        producer.send_many([b"x"] * 100)
    history = connected.read("closing")
    connected.close()
    assert len(list(history)) in (0, 100)


def test_a_bounded_pattern_read_ends_although_a_topic_goes(client):
    for name in ("ends.a", "ends.b"):
        with client.producer(name) as producer:
            for _ in range(40):
                producer.send(bytes(500_000))
    history = iter(client.read("ends.*"))
    next(history)
    client.delete_topic("ends.a")
    assert sum(1 for _ in history) >= 39


def test_publishers_of_deleted_topics_are_let_go(client):
    for _ in range(5):
        client.publish("again.and.again", "x")
        client.delete_topic("again.and.again")
    client.publish("again.and.again", "x")
    assert len([c for c in client._core.closers if "ProducerCore" in repr(c)]) <= 2


def test_a_waiting_message_is_had_without_waiting(shared):
    async def work():
        async with stentor.connect_async(shared.url) as client:
            subscription = await client.subscribe("at.once")
            await client.publish("at.once", "x")
            deadline = time.monotonic() + 10
            while not subscription._inbox.items:
                assert time.monotonic() < deadline
                await asyncio.sleep(0)
            assert (await subscription.get(timeout=0)).value == b"x"

    asyncio.run(work())


def test_topics_made_while_a_pattern_is_subscribed_are_all_found(client, monkeypatch):
    core = client._core
    real = core.call

    async def slow(request, timeout=None):
        if type(request).__name__ == "FindOffset":
            await asyncio.sleep(0.02)
        return await real(request, timeout)

    monkeypatch.setattr(core, "call", slow)
    with client.subscribe("burst.*") as subscription:
        for number in range(6):
            client.publish(f"burst.t{number}", f"{number}")
        assert {int(subscription.get(timeout=10).value) for _ in range(6)} == set(range(6))


def test_many_threads_never_have_more_unanswered_than_a_broker_remembers(client):
    from stentor import limits

    producer = client.producer("crowd", batch_messages=1)
    lane = producer._core.lanes[0]
    most = 0

    def send(thread):
        nonlocal most
        for number in range(20):
            producer.send(b"%d:%d" % (thread, number))
            most = max(most, len(lane.pending) - len(lane.unsent))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.close()
    assert most <= limits.PRODUCER_IN_FLIGHT_BATCHES_MAX
    assert len(values_of(client, "crowd")) == 800


def test_a_connection_given_up_in_its_last_moment_does_not_hold_up_closing(shared, monkeypatch):
    """uvloop tells nobody that it closed such a connection; the client must not wait to hear of it."""

    async def give_up_late():
        client = await stentor.connect_async(shared.url)
        attempts = []
        connected = BrokerLink.connected
        monkeypatch.setattr(
            BrokerLink,
            "connected",
            lambda link, *rest: (connected(link, *rest), attempts[0].cancel(), attempts.append(link)),
        )
        attempts.append(asyncio.create_task(client._core.links._make(client._core.addresses[0], 5.0)))
        with pytest.raises(asyncio.CancelledError):
            await attempts[0]
        assert attempts[1].opened
        began = time.monotonic()
        await client.close()
        assert time.monotonic() - began < limits.LINK_CLOSE_S

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(give_up_late(), 10))


def test_a_deadline_that_ends_together_with_a_change_is_a_deadline(shared):
    async def run():
        async with stentor.connect_async(shared.url) as client:
            waits = asyncio.create_task(client._core.changes(30))
            await asyncio.sleep(0)
            client._core._tell_routes()
            waits.cancel()
            await asyncio.gather(waits, return_exceptions=True)
            return waits.cancelled()

    assert asyncio.run(run())
