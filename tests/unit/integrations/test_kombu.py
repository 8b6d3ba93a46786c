"""The transport as kombu's own producers and consumers use it, in threads of one process."""

import os
import socket
import threading
import time

import pytest

kombu = pytest.importorskip("kombu")

from kombu import Connection, Consumer, Exchange, Producer, Queue  # noqa: E402
from kombu.exceptions import ChannelError, OperationalError  # noqa: E402

from stentor.errors import ConnectionFailed  # noqa: E402

TRANSPORT = "stentor.integrations.kombu:Transport"


@pytest.fixture
def connect(shared):
    opened = []

    def connect(**options):
        connection = Connection(shared.url, transport=TRANSPORT, transport_options=options)
        opened.append(connection)
        return connection

    yield connect
    for connection in opened:
        connection.release()


@pytest.fixture
def queue(name):
    return Queue(name, Exchange(f"{name}-exchange", type="direct"), routing_key="key")


def publish(connection, queue, *bodies, **options):
    producer = Producer(connection.channel())
    for body in bodies:
        producer.publish(body, exchange=queue.exchange, routing_key=queue.routing_key, declare=[queue], **options)


class Receiver:
    """A consumer that keeps what it gets."""

    def __init__(self, connection, queue, prefetch=10, **options):
        self.connection = connection
        self.channel = connection.channel()
        self.messages = []
        self.channel.basic_qos(prefetch_count=prefetch)
        self.consumer = Consumer(
            self.channel, [queue], callbacks=[lambda _, message: self.messages.append(message)], **options
        )
        self.consumer.consume()

    def receive(self, count, timeout=5):
        while len(self.messages) < count:
            self.connection.drain_events(timeout=timeout)
        return [message.payload for message in self.messages]


def test_messages_come_as_they_were_sent(connect, queue, client, name):
    publish(connect(), queue, {"a": 1}, "text", headers={"own": "header"})
    publish(connect(), queue, b"\x00\xff", content_type="application/data", content_encoding="binary")
    receiver = Receiver(connect(), queue)
    assert receiver.receive(3) == [{"a": 1}, "text", b"\x00\xff"]
    assert receiver.messages[0].headers["own"] == "header"
    for message in receiver.messages:
        message.ack()
    receiver.connection.release()
    assert client.queue(name).describe().finished == 3


def test_prefetch_bounds_what_is_handed_out_and_an_ack_wakes_whoever_waits(connect, queue):
    publish(connect(), queue, *range(4))
    receiver = Receiver(connect(), queue, prefetch=2)
    assert receiver.receive(2) == [0, 1]
    with pytest.raises(socket.timeout):
        receiver.receive(3, timeout=0.2)
    threading.Timer(0.2, receiver.messages[0].ack).start()
    began = time.monotonic()
    assert receiver.receive(3, timeout=10) == [0, 1, 2]
    assert time.monotonic() - began < 5


def test_a_consumer_takes_no_more_than_its_prefetch_from_others(connect, queue):
    publish(connect(), queue, *range(4))
    one, two = Receiver(connect(), queue, prefetch=2), Receiver(connect(), queue, prefetch=2)
    assert sorted(one.receive(2) + two.receive(2)) == [0, 1, 2, 3]


def test_rejected_messages_come_again_or_are_dead(connect, queue, client, letters, name):
    publish(connect(queue_settings={"retry_delay_ms": 0}), queue, "again", "dead")
    receiver = Receiver(connect(), queue)
    receiver.receive(2)
    receiver.messages[0].requeue()
    receiver.messages[1].reject()
    assert receiver.receive(3)[-1] == "again"
    assert receiver.messages[-1].delivery_info["redelivered"]
    receiver.messages[-1].ack()
    assert letters(name)[0].value == b"dead"


def test_a_cancelled_consumer_may_settle_what_it_has_and_gets_no_more(connect, queue, client, name):
    publish(connect(), queue, 1, 2)
    first = Receiver(connect(), queue, prefetch=1)
    first.receive(1)
    first.channel.basic_qos(prefetch_count=5)
    first.consumer.cancel()
    publish(connect(), queue, 3)
    second = Receiver(connect(), queue)
    assert sorted(second.receive(2)) == [2, 3]
    assert not second.messages[0].delivery_info["redelivered"]
    first.messages[0].ack()
    for message in second.messages:
        message.ack()
    first.connection.release()
    second.connection.release()
    assert client.queue(name).describe().finished == 3


def test_a_closed_channel_puts_back_what_it_did_not_settle(connect, queue):
    publish(connect(), queue, 1, 2)
    first = Receiver(connect(), queue)
    first.receive(2)
    first.messages[0].ack()
    first.channel.close()
    second = Receiver(connect(), queue)
    assert second.receive(1) == [2]
    assert not second.messages[0].delivery_info["redelivered"]


def test_priority_expiration_and_eta(connect, queue, wait_until, client, name):
    connection = connect()
    publish(connection, queue, "late", headers={"eta": "2999-01-01T00:00:00+00:00"})
    publish(connection, queue, "strange", headers={"eta": "soon"})
    publish(connection, queue, "urgent", priority=9)
    publish(connection, queue, "mortal", expiration=0.001)
    wait_until(lambda: connection.channel().queue_declare(queue=name, passive=True).message_count == 4, "all are there")
    receiver = Receiver(connect(), queue)
    assert receiver.receive(2) == ["urgent", "strange"]
    wait_until(lambda: client.queue(name).describe().died == 1, "the mortal one is dead")


def test_single_gets_sizes_purges_and_deletions(connect, queue, client, name, wait_until):
    connection = connect()
    publish(connection, queue, 1, 2, 3)
    channel = connection.channel()
    bound = queue(channel)
    bound.declare()
    message = bound.get()
    assert message.payload == 1
    message.ack()
    assert bound.get(no_ack=True).payload == 2
    wait_until(lambda: channel._size(name) == 1, "the one that nobody asked for is back")
    assert bound.purge() == 1
    assert bound.get() is None
    bound.delete()
    assert client.topics(name) == []
    with pytest.raises(ChannelError, match="no queue"):
        bound.queue_declare(passive=True)


def test_several_queues_on_one_channel_take_turns(connect, name):
    queues = [Queue(f"{name}-{index}", Exchange(""), routing_key=f"{name}-{index}") for index in range(2)]
    connection = connect()
    for each in queues:
        publish(connection, each, *range(5))
    receiver = Receiver(connect(), queues[0], prefetch=20)
    receiver.consumer.add_queue(queues[1])
    receiver.consumer.consume()
    assert sorted(receiver.receive(10)) == sorted([*range(5), *range(5)])
    publish(connection, queues[1], "more")
    assert receiver.receive(11)[-1] == "more"


def test_a_message_that_nothing_is_bound_for_is_refused(connect, name):
    producer = Producer(connect().channel())
    with pytest.raises(ChannelError, match="Declare the queue"):
        producer.publish("lost", exchange=Exchange(f"{name}-nowhere", type="direct"), routing_key="key")


def test_what_kombu_did_not_put_is_dead(connect, queue, client, letters, name):
    connection = connect()
    publish(connection, queue, 1)
    client.queue(name).put("stranger")
    receiver = Receiver(connect(), queue)
    receiver.receive(1)
    with pytest.raises(socket.timeout):
        receiver.receive(2, timeout=0.3)
    assert letters(name)[0].value == b"stranger"


def test_nobody_listens(queue):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"stentor://127.0.0.1:{free.getsockname()[1]}"
        connection = Connection(address, transport=TRANSPORT)
        with pytest.raises((ConnectionFailed, OperationalError)):
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=5)


def test_a_connection_from_before_a_fork_opens_a_client_of_its_own(connect, queue, wait_until, client, name):
    connection = connect()
    publish(connection, queue, "parent")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            publish(connection, queue, "child")
            connection.release()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    receiver = Receiver(connect(), queue)
    assert receiver.receive(2) == ["parent", "child"]
    publish(connection, queue, "parent again")
    assert receiver.receive(3)[-1] == "parent again"
