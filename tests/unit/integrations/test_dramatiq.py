"""Dramatiq's own worker on a real broker."""

import signal
import time

import pytest

dramatiq = pytest.importorskip("dramatiq")

from dramatiq import Worker  # noqa: E402
from dramatiq.errors import QueueJoinTimeout, QueueNotFound  # noqa: E402
from dramatiq.middleware import Retries, SkipMessage  # noqa: E402

from stentor.errors import InvalidArgument  # noqa: E402
from stentor.integrations.dramatiq import DramatiqBroker  # noqa: E402

APPLICATION = """
import dramatiq
from stentor.integrations.dramatiq import DramatiqBroker

broker = DramatiqBroker(os.environ["URL"], settings={"lease_s": 1})
dramatiq.set_broker(broker)

@dramatiq.actor(queue_name=os.environ["QUEUE"])
def work(number):
    note(f"begin-{number}")
    if number == 0:
        wait_for_go()
    note(f"end-{number}")
"""

DEADLY = """
import dramatiq
from stentor.integrations.dramatiq import DramatiqBroker

broker = DramatiqBroker(os.environ["URL"], settings={"lease_s": 1, "max_attempts": 2, "retry_delay_ms": 10})
dramatiq.set_broker(broker)

@dramatiq.actor(queue_name=os.environ["QUEUE"])
def work(number):
    note(f"begin-{number}")
    if number == 0:
        os._exit(9)
    note(f"end-{number}")
"""


@pytest.fixture
def broker(shared):
    made = DramatiqBroker(shared.url, middleware=[Retries(min_backoff=10, max_backoff=20)])
    yield made
    made.close()


@pytest.fixture
def start(broker):
    """Workers of Dramatiq in threads of this process."""
    workers = []

    def start(threads=4):
        worker = Worker(broker, worker_timeout=50, worker_threads=threads)
        worker.start()
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.stop()


def test_a_message_is_processed_once(broker, start, client, name):
    done = []

    @dramatiq.actor(broker=broker, queue_name=name)
    def work(number):
        done.append(number)

    for number in range(30):
        work.send(number)
    start()
    broker.join(name, timeout=10_000)
    assert sorted(done) == list(range(30))
    info = client.queue(name).describe()
    assert (info.finished, info.died) == (30, 0)


def test_a_failing_message_is_retried_and_then_dead(broker, start, client, name, letters):
    tried = []

    @dramatiq.actor(broker=broker, queue_name=name, max_retries=2)
    def fail():
        tried.append(1)
        raise ValueError("no good")

    sent = fail.send()
    start()
    (letter,) = letters(name)
    said = dict(letter.headers)
    assert len(tried) == 3
    assert said["stentor-dead-reason"] == b"ValueError: no good"
    assert b"raise ValueError" in said["stentor-dead-traceback"]
    assert dramatiq.Message.decode(letter.value).message_id == sent.message_id


def test_a_message_for_nobody_and_one_that_is_none_are_dead(broker, start, client, name, letters):
    broker.declare_queue(name)
    broker.enqueue(dramatiq.Message(queue_name=name, actor_name="nobody", args=(), kwargs={}, options={}))
    client.queue(name).put(b"not a message")
    start()
    assert sorted(dict(letter.headers)["stentor-dead-reason"].split(b":")[0] for letter in letters(name, 2)) == [
        b"ActorNotFound",
        b"DecodeError",
    ]


def test_delay_and_priority_are_the_queues(broker, name):
    @dramatiq.actor(broker=broker, queue_name=name)
    def note(what): ...

    sent = time.monotonic()
    note.send_with_options(args=("late",), delay=500)
    note.send("usual")
    note.send_with_options(args=("urgent",), broker_priority=9)
    consumer = broker.consume(name, prefetch=1, timeout=5_000)
    found = []
    for _ in range(3):
        message = next(consumer)
        found.append(message.args[0])
        consumer.ack(message)
    assert found == ["urgent", "usual", "late"]
    assert time.monotonic() - sent >= 0.5
    consumer.close()


def test_a_stopped_worker_puts_back_what_it_did_not_begin(broker, start, client, name, wait_until):
    begun = []

    @dramatiq.actor(broker=broker, queue_name=name)
    def slow(number):
        begun.append(number)
        wait_until(lambda: stopping, "the worker is told to stop")

    stopping = []
    for number in range(8):
        slow.send(number)
    worker = start(threads=1)
    wait_until(lambda: begun, "the worker begins")
    worker.broker.emit_before("worker_shutdown", worker)
    for thread in worker.workers:
        thread.stop()
    stopping.append(1)
    worker.stop()
    wait_until(lambda: client.queue(name).describe().held == 0, "all are given back")
    with client.queue(name) as queue:
        left = client.queue(name).describe().waiting
        assert left == 8 - len(begun)
        assert {queue.get(timeout=5).attempt for _ in range(left)} == {1}


def test_flush_join_and_unknown_queues(broker, name):
    @dramatiq.actor(broker=broker, queue_name=name)
    def work(): ...

    work.send()
    with pytest.raises(QueueJoinTimeout):
        broker.join(name, timeout=10)
    broker.flush_all()
    broker.join(name, timeout=5_000)
    for call in (broker.flush, broker.join, broker.consume):
        with pytest.raises(QueueNotFound):
            call("unknown")
    with pytest.raises(InvalidArgument, match="priority"):
        work.send_with_options(broker_priority=10)


def test_two_applications_keep_apart_by_their_prefixes(shared, client, name):
    for prefix in ("shop.", "bank."):
        broker = DramatiqBroker(shared.url, prefix=f"{prefix}{name}.")
        broker.declare_queue("default")
        broker.enqueue(dramatiq.Message(queue_name="default", actor_name="x", args=(), kwargs={}, options={}))
        assert client.queue(f"{prefix}{name}.default").describe().waiting == 1
        broker.close()


def test_a_killed_worker_loses_nothing(workplace, monkeypatch, client, name, wait_until):
    workplace.write(APPLICATION)
    app = workplace.load(monkeypatch)
    for number in range(20):
        app.work.send(number)
    app.broker.close()
    arguments = ("dramatiq", workplace.module, "--processes", "1", "--threads", "2")
    first = workplace.start(*arguments)
    wait_until(lambda: "begin-0" in workplace.notes(), "the first worker begins", seconds=30)
    workplace.stop(first)
    assert "end-0" not in workplace.notes()
    workplace.go()
    second = workplace.start(*arguments)
    everything = {f"end-{number}" for number in range(20)}
    wait_until(lambda: everything <= set(workplace.notes()), "the second worker finishes", seconds=30)
    wait_until(lambda: client.queue(name).describe().finished == 20, "all are acknowledged")
    workplace.stop(second, signal.SIGTERM)
    assert second.returncode == 0


def test_what_a_dying_worker_only_held_is_no_attempt(workplace, monkeypatch, client, name, letters):
    """A task that kills its worker at once dies after its attempts; those that wait behind it do not."""
    workplace.write(DEADLY)
    app = workplace.load(monkeypatch)
    sent = [app.work.send(number) for number in range(6)]
    app.broker.close()

    def done():
        ended = {f"end-{number}" for number in range(1, 6)} <= set(workplace.notes())
        return ended and client.queue(name).describe().died == 1

    died = workplace.start_until(done, "dramatiq", workplace.module, "--processes", "1", "--threads", "1")
    (letter,) = letters(name)
    assert dramatiq.Message.decode(letter.value).message_id == sent[0].message_id
    assert dict(letter.headers)["stentor-dead-attempts"] == b"2"
    assert died == workplace.notes().count("begin-0") == 4  # twice it began before the head knew, then twice surely


def test_a_message_that_others_have_by_now_is_skipped(broker, start, client, name, wait_until):
    done = []

    @dramatiq.actor(broker=broker, queue_name=name)
    def work(number):
        done.append(number)

    work.send(1)
    consumer = broker.consume(name, prefetch=1, timeout=5_000)
    message = next(consumer)
    message.source.close()
    with pytest.raises(SkipMessage):
        broker.emit_before("process_message", message)
    start()
    broker.join(name, timeout=10_000)
    assert done == [1]
