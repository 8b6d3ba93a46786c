"""What a broker promises to a producer: order, once, on disk; also across restarts."""

import threading

import pytest

from stentor import limits
from stentor.errors import NotReady, PartitionNotFound, SequenceError, StentorError, UnknownOutcome
from stentor.testing import broker
from stentor.wire import frames, messages
from stentor.wire.frames import Ack, Kind

PRODUCER = 4711


def make_topic(connection, name="t", **settings):
    return connection.ask(messages.CreateTopic(name=name, settings=settings, exist_ok=True)).topic.id


@pytest.fixture
def link(local, raw):
    return raw(local.url).greet()


# --- acknowledgement ----------------------------------------------------------------------------


@pytest.mark.parametrize("ack", ["head", "quorum", "all"])
def test_every_level_above_none_tells_where_the_message_is(client, ack):
    assert [client.publish("t", b"x", ack=ack).offset for _ in range(3)] == [0, 1, 2]


def test_without_acknowledgement_messages_arrive_all_the_same(client, wait_until, read):
    with client.producer("t", ack="none") as producer:
        for number in range(100):
            producer.send(b"%d" % number)
    wait_until(lambda: client.describe_topic("t").partitions[0].committed == 100)
    assert read(client, "t") == [b"%d" % number for number in range(100)]


def test_a_batch_without_acknowledgement_is_not_answered(link):
    target = make_topic(link)
    link.publish(target, [b"x"], ack=Ack.NONE)
    asked = link.publish(target, [b"y"])
    kind, correlation, _ = link.receive()
    assert (kind, correlation) == (Kind.PUBLISHED, asked)


def test_a_batch_without_acknowledgement_is_not_remembered(local, link, wait_until):
    target = make_topic(link)
    partition = local.inner.parts.serving.partition(target, 0)
    for _ in range(50):
        link.publish(target, [b"x"], ack=Ack.NONE)
    link.published(link.publish(target, [b"y"]))
    wait_until(lambda: not partition._requests._waiting, "nobody is waited for")


def test_a_publisher_far_ahead_of_the_disk_is_not_read_from_until_the_disk_follows(
    local, link, wait_until, monkeypatch
):
    monkeypatch.setattr(limits, "UNSYNCED_BYTES_MAX", 200_000)
    target = make_topic(link)
    partition = local.inner.parts.serving.partition(target, 0)
    (session,) = local.inner.parts.admission.sessions
    gate, sync = threading.Event(), partition.log.sync

    def slow():
        gate.wait(30)
        return sync()

    partition.log.sync = slow
    sent = []
    publishing = threading.Thread(target=lambda: sent.extend(link.publish(target, [bytes(50_000)]) for _ in range(200)))
    publishing.start()
    wait_until(lambda: session._holds, "the broker stops reading")
    taken = partition.traffic.bytes_in
    assert taken <= 200_000 + 2 * limits.READ_BUFFER_BYTES
    gate.set()
    publishing.join(30)
    assert [link.published(correlation) for correlation in sent] == list(range(200))
    wait_until(lambda: not session._holds, "and reads again")


def test_an_answer_means_that_the_disk_has_it(local, link):
    target = make_topic(link)
    log = local.inner.parts.serving.partition(target, 0).log
    for number in range(20):
        link.published(link.publish(target, [b"x" * 100]))
        assert log.synced_end >= number + 1


def test_answers_come_in_the_order_of_the_log(link):
    target = make_topic(link)
    sent = [link.publish(target, [b"x"] * (number % 3 + 1)) for number in range(50)]
    answered, offsets = [], []
    for _ in sent:
        kind, correlation, body = link.receive()
        assert kind == Kind.PUBLISHED
        answered.append(correlation)
        offsets.append(frames.PUBLISHED.unpack(body)[0])
    assert answered == sent
    assert offsets == sorted(offsets)


def test_a_topic_that_flushes_by_interval_answers_before_the_disk_and_flushes_soon(client, local, wait_until):
    client.create_topic("t", flush="interval", flush_interval_ms=50)
    client.publish("t", b"x")
    log = local.inner.parts.serving.partition(client.describe_topic("t").id, 0).log
    wait_until(lambda: log.synced_end == 1, "the interval brings it to disk")


def test_a_topic_that_turns_to_flush_always_has_everything_on_disk_soon(client, local, wait_until):
    client.create_topic("t", flush="interval", flush_interval_ms=3_600_000)
    for _ in range(5):
        client.publish("t", b"x")
    client.alter_topic("t", flush="always")
    log = local.inner.parts.serving.partition(client.describe_topic("t").id, 0).log
    wait_until(lambda: log.synced_end == 5, "what was acknowledged before is on disk too")
    client.publish("t", b"y")
    assert log.synced_end == 6


def test_changing_flush_back_and_forth_leaves_one_timer(client, local, wait_until):
    client.create_topic("t", flush="interval", flush_interval_ms=20)
    partition = local.inner.parts.serving.partition(client.describe_topic("t").id, 0)
    for _ in range(10):
        client.alter_topic("t", flush="always")
        client.alter_topic("t", flush="interval")
    calls = []
    flush = partition.sync.flush_interval
    partition.sync.flush_interval = lambda: (calls.append(1), flush())
    client.publish("t", b"x")
    wait_until(lambda: partition.log.synced_end == 1)
    began = local.inner.parts.ground.environment.clock.monotonic()
    wait_until(lambda: local.inner.parts.ground.environment.clock.monotonic() - began > 0.4)
    assert len(calls) <= 60, "each change left a timer behind"


# --- once, in order -----------------------------------------------------------------------------


def test_a_resend_gets_the_original_offset_and_is_not_written_again(link):
    target = make_topic(link)
    batch = {"producer_id": PRODUCER, "sequence": 0}
    first = link.published(link.publish(target, [b"a", b"b"], **batch))
    assert link.published(link.publish(target, [b"a", b"b"], **batch)) == first == 0
    assert link.published(link.publish(target, [b"c"], producer_id=PRODUCER, sequence=1)) == 2


def test_a_resend_on_another_connection_is_recognised_as_well(local, link, raw):
    target = make_topic(link)
    sent = [link.publish(target, [b"%d" % s], producer_id=PRODUCER, sequence=s) for s in range(5)]
    assert [link.published(correlation) for correlation in sent] == [0, 1, 2, 3, 4]
    other = raw(local.url).greet()
    again = [other.publish(target, [b"%d" % s], producer_id=PRODUCER, sequence=s) for s in range(6)]
    assert [other.published(correlation) for correlation in again] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        ({"sequence": 3}, "gap"),
        ({"sequence": 0, "values": [b"other"]}, "changed"),
        ({"sequence": 0, "producer_id": 99, "generation": 0, "prior": 5}, "unknown_producer"),
        ({"sequence": 1, "generation": 0, "moved_on": True}, "old_generation"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_sequence_that_does_not_fit_is_refused_with_its_reason(link, batch, reason):
    target = make_topic(link)
    link.published(link.publish(target, [b"a"], producer_id=PRODUCER, sequence=0))
    if batch.pop("moved_on", False):
        link.published(link.publish(target, [b"a"], producer_id=PRODUCER, generation=1, sequence=0))
    fields = {"producer_id": PRODUCER, **batch}
    fields["sequence"] += fields.pop("prior", 0)
    expected = UnknownOutcome if reason == "old_generation" else SequenceError  # it is not in the log (C32)
    with pytest.raises(expected) as caught:
        link.published(link.publish(target, fields.pop("values", [b"a"]), **fields))
    assert caught.value.detail["reason"] == reason
    assert caught.value.hint


def test_sequences_are_counted_per_partition(link):
    target = make_topic(link, partitions=2)
    for partition in (0, 1):
        correlation = link.publish(target, [b"x"], partition=partition, producer_id=PRODUCER, sequence=0)
        assert link.published(correlation) == 0


@pytest.mark.parametrize("crash", [False, True], ids=["stop", "crash"])
def test_a_resend_after_a_restart_gets_the_original_offset(tmp_path, raw, crash):
    batches = [[b"%d" % number] * (number % 4 + 1) for number in range(10)]
    with broker(tmp_path / "data") as local:
        link = raw(local.url).greet()
        target = make_topic(link)
        sent = [link.publish(target, values, producer_id=PRODUCER, sequence=s) for s, values in enumerate(batches)]
        before = [link.published(correlation) for correlation in sent]
        if crash:
            # Whatever the journal and snapshots would have learnt at a graceful stop is not written.
            local.inner.parts.books.store_now = lambda: None
        local.stop()
        local.start()
        link = raw(local.url).greet()
        sent = [link.publish(target, values, producer_id=PRODUCER, sequence=s) for s, values in enumerate(batches)]
        assert [link.published(correlation) for correlation in sent] == before
        with pytest.raises(SequenceError):
            link.published(link.publish(target, [b"changed"], producer_id=PRODUCER, sequence=9))
        with pytest.raises(SequenceError):
            link.published(link.publish(target, [b"x"], producer_id=PRODUCER, sequence=11))
        assert link.published(link.publish(target, [b"new"], producer_id=PRODUCER, sequence=10)) == sum(
            map(len, batches)
        )


def test_a_resend_is_recognised_after_many_segments_and_restarts(tmp_path, raw):
    with broker(tmp_path / "data", segment_bytes=64 * 1024) as local:
        target, offsets = None, {}
        for restart in range(3):
            link = raw(local.url).greet()
            target = target or link.ask(messages.CreateTopic(name="t", exist_ok=True)).topic.id
            for sequence in range(restart * 20, restart * 20 + 20):
                values = [b"%d" % sequence * 3000]
                offsets[sequence] = link.published(
                    link.publish(target, values, producer_id=PRODUCER, sequence=sequence)
                )
            local.stop()
            local.start()
        assert local.inner.parts.serving.partition(target, 0).log.statistics().segments > 5
        link = raw(local.url).greet()
        for sequence in range(60 - 32, 60):
            values = [b"%d" % sequence * 3000]
            correlation = link.publish(target, values, producer_id=PRODUCER, sequence=sequence)
            assert link.published(correlation) == offsets[sequence]
        link.close()


def test_a_client_publishes_on_through_a_restart_without_loss_or_repeat(local, read):
    with local.client() as client, client.producer("t") as producer:
        for number in range(3000):
            producer.send(b"%d" % number)
            if number % 1000 == 500:
                local.stop()
                local.start()
        producer.flush()
        assert read(client, "t") == [b"%d" % number for number in range(3000)]


# --- refusals -----------------------------------------------------------------------------------


def test_a_partition_whose_sync_failed_refuses_writes_and_serves_reads(client, local, link, monkeypatch, read):
    target = make_topic(link)
    link.published(link.publish(target, [b"before"]))
    partition = local.inner.parts.serving.partition(target, 0)

    def fails(fd):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.fdatasync", fails)
    with pytest.raises(StentorError) as unknown:
        link.published(link.publish(target, [b"during"]))
    assert unknown.value.code == "unknown_outcome"
    monkeypatch.undo()
    with pytest.raises(NotReady, match="takes no writes"):
        link.published(link.publish(target, [b"after"]))
    assert read(client, "t") == [b"before"]
    assert client.describe_topic("t").partitions[0].failed
    assert partition.replica.failed


def test_a_batch_for_a_deleted_topic_is_refused(client, link):
    target = make_topic(link)
    client.delete_topic("t")
    with pytest.raises(PartitionNotFound, match="deleted"):
        link.published(link.publish(target, [b"x"]))


def test_a_topic_made_again_under_the_same_name_is_another_topic(client, link, read):
    client.publish("t", b"old")
    first = client.describe_topic("t").id
    client.delete_topic("t")
    assert client.publish("t", b"new").offset == 0
    assert client.describe_topic("t").id != first
    assert read(client, "t") == [b"new"]
