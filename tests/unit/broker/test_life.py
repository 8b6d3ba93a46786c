"""Starting, stopping and being killed: what was acknowledged stays, once and in order."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path

import pytest

import stentor
from stentor import limits
from stentor.errors import Closed, ConnectionFailed, ForkDetected, StentorError
from stentor.storage.journal import load_journal
from stentor.testing import broker
from stentor.wire import frames, messages
from stentor.wire.frames import Kind


class Producers:
    """Several threads that publish at full speed and remember what was acknowledged."""

    def __init__(self, url, topic, *, count=3, size=100):
        self._stop = threading.Event()
        self._url, self._topic, self._size = url, topic, size
        self.sent = [0] * count
        self.acknowledged = [[] for _ in range(count)]  # (number, offset) in the order of the answers
        self.errors = []
        self._threads = [threading.Thread(target=self._run, args=(index,)) for index in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self, index):
        try:
            with stentor.connect(self._url, timeout=60) as client, client.producer(self._topic) as producer:
                while not self._stop.is_set():
                    number = self.sent[index]
                    value = b"%d:%d:" % (index, number) + bytes(self._size)
                    producer.send(value, on_delivery=self._noter(index, number))
                    self.sent[index] += 1
        except BaseException as error:  # noqa: BLE001 - shown at the end
            self.errors.append(error)

    def _noter(self, index, number):
        def note(receipt, error):
            if error is None:
                self.acknowledged[index].append((number, receipt.offset))
            else:
                self.errors.append(error)

        return note

    def total(self):
        return sum(map(len, self.acknowledged))

    def finish(self):
        self._stop.set()
        for thread in self._threads:
            thread.join(90)
            assert not thread.is_alive(), "a producer hangs"
        assert not self.errors, f"{len(self.errors)} errors, the first: {self.errors[0]!r}"


def check_log(url, producers):
    """No acknowledged message lost, none doubled, order kept, and each where the receipt said."""
    found = {}
    with stentor.connect(url) as client:
        for message in client.read("t"):
            index, number, _ = message.value.split(b":", 2)
            found.setdefault(int(index), []).append((int(number), message.offset))
    for index, acknowledged in enumerate(producers.acknowledged):
        in_log = found.get(index, [])
        numbers = [number for number, _ in in_log]
        assert numbers == list(range(len(numbers))), f"lost, doubled or reordered near {first_oddity(numbers)}"
        assert acknowledged == in_log, f"receipts differ from the log near {first_difference(acknowledged, in_log)}"
        assert len(in_log) == producers.sent[index]


def first_oddity(numbers):
    place = next(place for place, number in enumerate(numbers) if number != place)
    return place, numbers[max(0, place - 2) : place + 3]


def first_difference(one, other):
    pairs = enumerate(zip_longest(one, other))
    return next((place, pair) for place, pair in pairs if pair[0] != pair[1])


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("settings", [{}, {"segment_bytes": 65536}], ids=["one segment", "many segments"])
def test_killed_in_full_flight_nothing_acknowledged_is_lost_doubled_or_reordered(served, wait_until, settings):
    process = served(**settings).start()
    producers = Producers(process.url, "t")
    for _ in range(3):
        before = producers.total()
        wait_until(lambda before=before: producers.errors or producers.total() > before + 2000, seconds=60)
        process.kill()
        process.start()
    before = producers.total()
    wait_until(lambda: producers.errors or producers.total() > before, seconds=60)
    producers.finish()
    check_log(process.url, producers)
    assert process.stop() == 0


@pytest.mark.long
@pytest.mark.timeout(120)
def test_stopped_in_full_flight_nothing_is_lost_doubled_or_reordered(local, wait_until):
    producers = Producers(local.url, "t")
    for _ in range(3):
        before = producers.total()
        wait_until(lambda before=before: producers.errors or producers.total() > before + 1000, seconds=60)
        local.stop()
        local.start()
    producers.finish()
    check_log(local.url, producers)


def test_a_graceful_stop_answers_what_it_took_and_says_goodbye(local, raw):
    link = raw(local.url).greet()
    target = link.ask(messages.CreateTopic(name="t")).topic.id
    wish = messages.OpenStream(topic_id=target, partition=0, start=0, credit=1 << 20)
    link.send(Kind.OPEN_STREAM, 900, messages.encode(wish))
    sent = [link.publish(target, [b"x" * 5000]) for _ in range(200)]
    link.published(sent[0])
    local.stop()
    answered, kinds = {sent[0]}, []
    with suppress(EOFError):
        while True:
            kind, correlation, _ = link.receive()
            kinds.append(kind)
            if kind == Kind.PUBLISHED:
                answered.add(correlation)
    assert kinds[-1] == Kind.GOODBYE
    assert Kind.STREAM_ENDED in kinds
    local.start()
    with local.client() as client:
        assert client.describe_topic("t").partitions[0].committed == len(answered), "answered what it took, no more"


def test_a_broker_stops_in_time_although_clients_do_not_read(local, raw, monkeypatch):
    monkeypatch.setattr(limits, "SHUTDOWN_S", 1.0)
    deaf = raw(local.url, receive_buffer=4096).greet()
    deaf.socket.settimeout(0.3)
    with suppress(TimeoutError):
        while True:
            deaf.socket.send(frames.frame(Kind.PING, 1) * 4096)
    began = time.monotonic()
    local.stop()
    assert time.monotonic() - began < 10


def test_a_broker_can_be_started_and_stopped_many_times(tmp_path):
    before = threading.active_count()
    with broker(tmp_path) as local:
        for number in range(6):
            with local.client() as client:
                assert client.publish("t", b"x").offset == number
            local.stop()
            local.start()
            assert local.inner.parts.ground.journal.incarnation == number + 2
    assert threading.active_count() <= before + 1


def test_a_stopped_broker_leaves_no_descriptors_behind(tmp_path, wait_until):
    def descriptors():
        return len(list(Path("/proc/self/fd").iterdir()))

    with broker(tmp_path / "warm"):
        pass
    before = descriptors()
    for _ in range(3):
        with broker(tmp_path / "data") as local, local.client() as client:
            client.create_topic(f"t{descriptors()}", partitions=20, exist_ok=True)
            client.publish("t", b"x")
    wait_until(lambda: descriptors() <= before + 2, "all descriptors are closed")


def test_the_commit_floor_is_written_down_while_running(tmp_path, wait_until, monkeypatch):
    monkeypatch.setattr(limits, "CHECKPOINT_S", 0.05)
    with broker(tmp_path) as local, local.client() as client:
        for _ in range(10):
            client.publish("t", b"x")
        path = local.inner.parts.ground.journal._path

        def floors():
            return [(state.synced_end, state.committed) for _, _, state in load_journal(path).replicas]

        wait_until(lambda: floors() == [(10, 10)], "the journal knows how far the log must reach")


# --- clients at the end -------------------------------------------------------------------------


def in_time(work, seconds=15.0):
    """Run in a thread; a hang is a failure, not a wait."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(seconds)


def test_closing_a_client_flushes_what_was_sent(local):
    client = local.client()
    producer = client.producer("t")
    for number in range(1000):
        producer.send(b"%d" % number)
    in_time(client.close)
    with local.client() as other:
        assert len(list(other.read("t"))) == 1000


def test_closing_twice_or_after_the_broker_does_not_hang(local):
    client, late = local.client(timeout=3), local.client(timeout=3)
    subscription = client.subscribe("t")
    producer = client.producer("t")
    producer.send(b"x")
    in_time(producer.close)
    in_time(producer.close)
    in_time(subscription.close)
    in_time(subscription.close)
    in_time(client.close)
    in_time(client.close)
    local.stop()
    in_time(late.close)
    with pytest.raises(Closed, match=r"stentor\.connect"):
        client.publish("t", b"x")


def test_a_thread_that_waits_in_a_subscription_is_released_by_its_close(local):
    with local.client() as client:
        subscription = client.subscribe("t")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(lambda: list(subscription))
            client.publish("t", b"x")
            subscription.close()
            assert len(waiting.result(15)) <= 1


def test_a_thread_that_waits_in_a_subscription_is_released_by_the_clients_close(local):
    client = local.client()
    subscription = client.subscribe("t")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: list(subscription))
        in_time(client.close)
        assert waiting.result(15) == []


def test_what_cannot_be_delivered_any_more_ends_in_a_typed_error_in_time(local):
    client = local.client(timeout=2)
    client.publish("t", b"x")
    producer = client.producer("t", timeout=1)
    local.stop()
    producer.send(b"lost")
    with pytest.raises(StentorError) as caught:
        in_time(producer.flush)
    assert str(caught.value)
    for call in (
        lambda: client.publish("t", b"x", timeout=0.5),
        lambda: client.topics(timeout=0.5),
        lambda: client.read("t", timeout=0.5),
        lambda: client.subscribe("t", timeout=0.5),
    ):
        with pytest.raises(StentorError):
            in_time(call)
    with suppress(StentorError):  # the message that was lost is mentioned once more, or it is not
        in_time(client.close)
    with pytest.raises(ConnectionFailed, match="stentor serve"):
        local.client(timeout=1)
    local.start()


def test_a_client_carried_into_a_forked_process_says_so(local):
    with local.client() as client:
        client.publish("t", b"x")
        producer = client.producer("t")
        subscription = client.subscribe("t")
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:  # the child: report what each call raised, and leave without any clean-up
            calls = [
                lambda: client.publish("t", b"y"),
                client.topics,
                lambda: client.subscribe("t"),
                lambda: client.producer("t"),
                lambda: producer.send(b"z"),
                producer.flush,
            ]
            for call in calls:
                try:
                    call()
                    os.write(writing, b"nothing\n")
                except ForkDetected:
                    os.write(writing, b"ForkDetected\n")
                except BaseException as error:  # noqa: BLE001 - shown by the parent
                    os.write(writing, f"{error!r}\n".encode())
            client.close()
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            heard = pipe.read().splitlines()
        assert os.waitpid(pid, 0)[1] == 0
        assert heard == ["ForkDetected"] * 6
        assert client.publish("t", b"the parent goes on").offset == 1
        assert subscription.get(timeout=5).value == b"the parent goes on"
        producer.close()
