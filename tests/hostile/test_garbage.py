"""Whatever arrives at the port, the worst outcome is a typed refusal and a closed connection."""

import random
import socket
from contextlib import suppress

import msgspec
import pytest

from stentor import limits
from stentor.errors import CorruptData, PartitionNotFound, ProtocolError, StentorError
from stentor.testing import broker
from stentor.wire import batch, frames, messages
from stentor.wire.frames import Kind
from stentor.wire.header import stamp


def sessions(local):
    return len(local.inner.parts.admission.sessions)


def throw(connection, data):
    """Send without minding that the other side may hang up."""
    with suppress(OSError):
        connection.send_bytes(data)
    with suppress(OSError):
        connection.socket.shutdown(socket.SHUT_WR)
    return connection.refusal()


def topic_id(connection, name="target"):
    return connection.ask(messages.CreateTopic(name=name, exist_ok=True)).topic.id


# --- bytes that are no frames -------------------------------------------------------------------


def test_random_bytes_are_refused(attacked, raw, wait_until):
    before = sessions(attacked)
    for seed in range(60):
        chance = random.Random(seed)
        reason = throw(raw(attacked.url), chance.randbytes(chance.choice([1, 15, 16, 100, 5_000, 300_000])))
        assert reason is None or reason.code in ("protocol_error", "limit_exceeded")
    wait_until(lambda: sessions(attacked) == before, "the connections are gone")


@pytest.mark.parametrize(
    "greeting",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        b"SSH-2.0-OpenSSH_9.6\r\n" + bytes(20),
        b"*1\r\n$4\r\nPING\r\n" + bytes(20),
        bytes(64),
        b"\xff" * 64,
    ],
)
def test_other_protocols_are_told_that_this_is_not_theirs(attacked, raw, greeting):
    connection = raw(attacked.url)
    connection.send_bytes(greeting)
    reason = connection.refusal()
    assert reason is not None
    assert reason.code in ("protocol_error", "limit_exceeded")
    assert reason.message.endswith(".")


@pytest.mark.parametrize("greeted", [False, True])
def test_a_frame_that_is_cut_off_by_a_disconnect_leaves_nothing_behind(attacked, raw, wait_until, greeted):
    before = sessions(attacked)
    whole = frames.frame(Kind.HELLO, 0, messages.encode(messages.Hello(version_min=1, version_max=1)))
    for length in range(1, len(whole)):
        connection = raw(attacked.url)
        if greeted:
            connection.greet()
        connection.send_bytes(whole[:length])
        connection.close()
    wait_until(lambda: sessions(attacked) == before, "the connections are gone")


@pytest.mark.parametrize("length", [limits.FRAME_BODY_BYTES_MAX + 1, 2**31, 2**32 - 1])
def test_a_huge_length_is_refused_before_its_body_comes(attacked, raw, length):
    connection = raw(attacked.url).greet()
    connection.send_bytes(frames.HEADER.pack(length, Kind.PUBLISH, 0, 0, 1))
    reason = connection.refusal()
    assert reason.code == "limit_exceeded"
    assert str(length) in reason.message


def test_a_stranger_cannot_make_the_broker_keep_a_large_frame(attacked, raw):
    connection = raw(attacked.url)
    connection.send_bytes(frames.HEADER.pack(limits.UNGREETED_BODY_BYTES_MAX + 1, Kind.HELLO, 0, 0, 1))
    assert connection.refusal().code == "limit_exceeded"


@pytest.mark.parametrize("kind", sorted(set(range(256)) - frames.KINDS)[::17])
def test_an_unknown_kind_is_refused(attacked, raw, kind):
    connection = raw(attacked.url).greet()
    connection.send(kind, 1)
    assert connection.refusal().code == "protocol_error"


def test_reserved_bytes_must_be_zero(attacked, raw):
    connection = raw(attacked.url).greet()
    connection.send_bytes(frames.HEADER.pack(0, Kind.PING, 0, 1, 1))
    assert connection.refusal().code == "protocol_error"


# --- frames in the wrong order or place ---------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(frames.KINDS - {Kind.HELLO}))
def test_nothing_is_taken_before_the_greeting(attacked, raw, kind):
    connection = raw(attacked.url)
    connection.send(kind, 1, b"\x80")
    reason = connection.refusal()
    assert reason.code == "protocol_error"
    assert "HELLO" in reason.message


BROKERS_ONLY = [
    Kind.HELLO,
    Kind.WELCOME,
    Kind.ERROR,
    Kind.RESPONSE,
    Kind.ROUTES,
    Kind.PUBLISHED,
    Kind.DELIVER,
    Kind.STREAM_ENDED,
    Kind.STREAM_STATE,
]


@pytest.mark.parametrize("kind", BROKERS_ONLY, ids=lambda kind: kind.name)
def test_a_client_that_sends_what_is_not_its_to_send_is_refused(attacked, raw, kind):
    connection = raw(attacked.url).greet()
    connection.send(kind, 1, messages.encode(messages.Hello(version_min=1, version_max=1)))
    reason = connection.refusal()
    assert reason.code == "protocol_error"
    assert kind.name in reason.message


@pytest.mark.parametrize(("lowest", "highest"), [(2, 2), (5, 2**32 - 1), (0, 0)])
def test_a_client_without_a_common_version_is_told_both_sides_versions(attacked, raw, lowest, highest):
    connection = raw(attacked.url)
    hello = messages.Hello(version_min=lowest, version_max=highest)
    connection.send(Kind.HELLO, 0, messages.encode(hello))
    reason = connection.refusal()
    assert reason.code == "version_mismatch"
    assert str(highest) in reason.message
    assert reason.hint


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x80", b"\x93\x01\x02\x03", b"\x81\xabversion_min\xa1x"])
def test_a_greeting_that_cannot_be_understood_is_refused(attacked, raw, body):
    connection = raw(attacked.url)
    connection.send(Kind.HELLO, 0, body)
    assert connection.refusal().code == "protocol_error"


def test_a_newer_client_is_spoken_to_in_the_older_version(attacked, raw):
    raw(attacked.url).greet(version_min=1, version_max=99, features=["from-the-future"])


def test_frames_behind_a_goodbye_do_no_harm(attacked, raw):
    connection = raw(attacked.url).greet()
    connection.send_bytes(frames.frame(Kind.GOODBYE, 0) + frames.frame(Kind.PING, 1) * 3 + b"\xff" * 40)
    connection.refusal()


# --- streams ------------------------------------------------------------------------------------


def open_stream(connection, stream_id, **wish):
    fields = {"topic_id": 1, "partition": 0, "start": 0, "credit": 1000}
    connection.send(Kind.OPEN_STREAM, stream_id, messages.encode(messages.OpenStream(**{**fields, **wish})))


def ended(connection, stream_id):
    body = connection.answer_to(stream_id, Kind.STREAM_ENDED)
    return messages.decode(body, messages.StreamEnded).failure


def still_talks(connection):
    connection.send(Kind.PING, 987)
    assert connection.answer_to(987, Kind.PONG) == b""


def test_credit_for_a_stream_that_is_not_there_is_ignored(attacked, raw):
    connection = raw(attacked.url).greet()
    connection.send(Kind.CREDIT, 77, frames.CREDIT.pack(2**64 - 1))
    connection.send(Kind.CLOSE_STREAM, 77)
    still_talks(connection)


@pytest.mark.parametrize("body", [b"", b"1234567", b"123456789"])
def test_credit_of_the_wrong_size_is_refused(attacked, raw, body):
    connection = raw(attacked.url).greet()
    connection.send(Kind.CREDIT, 1, body)
    assert connection.refusal().code == "protocol_error"


def test_a_stream_that_cannot_be_opened_is_ended_with_the_reason(attacked, raw):
    connection = raw(attacked.url).greet()
    target = topic_id(connection)
    open_stream(connection, 5, topic_id=12345)
    assert ended(connection, 5).code == "partition_not_found"
    open_stream(connection, 6, topic_id=target, partition=9)
    assert ended(connection, 6).code == "partition_not_found"
    open_stream(connection, 7, topic_id=target, start=1)
    failure = ended(connection, 7)
    assert failure.code == "offset_out_of_range"
    assert failure.detail == {"start": 0, "end": 0}
    connection.send(Kind.OPEN_STREAM, 8, b"\xc1")
    assert ended(connection, 8).code == "protocol_error"
    still_talks(connection)


def test_a_stream_id_in_use_is_not_opened_again(attacked, raw):
    connection = raw(attacked.url).greet()
    target = topic_id(connection)
    open_stream(connection, 5, topic_id=target)
    open_stream(connection, 5, topic_id=target)
    assert ended(connection, 5).code == "protocol_error"
    connection.publish(target, [b"x"])
    connection.answer_to(5, Kind.DELIVER)


def test_streams_per_connection_are_limited(attacked, raw, monkeypatch):
    monkeypatch.setattr(limits, "STREAMS_PER_CONNECTION_MAX", 3)
    connection = raw(attacked.url).greet()
    target = topic_id(connection)
    for stream_id in range(1, 5):
        open_stream(connection, stream_id, topic_id=target)
    failure = ended(connection, 4)
    assert failure.code == "limit_exceeded"
    assert "3" in failure.message


# --- requests and publishes ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x80", b"\x91" * 60_000, b"\xdf\xff\xff\xff\xff", b"\x81\xa4type\xa1x"]
)
def test_a_request_that_cannot_be_understood_is_answered_and_the_connection_goes_on(attacked, raw, body):
    connection = raw(attacked.url).greet()
    connection.send(Kind.REQUEST, 5, body)
    with pytest.raises(ProtocolError):
        connection.answer_to(5, Kind.RESPONSE)
    still_talks(connection)


def test_a_control_message_of_many_megabytes_is_refused(attacked, raw):
    connection = raw(attacked.url).greet()
    reason = throw(connection, frames.frame(Kind.REQUEST, 5, bytes(limits.CONTROL_BODY_BYTES_MAX + 1)))
    assert reason is None or reason.code == "limit_exceeded"


def test_too_many_requests_at_once_are_told_to_wait(attacked, raw):
    connection = raw(attacked.url).greet()
    body = messages.encode(messages.GetStatistics())
    connection.send_bytes(b"".join(frames.frame(Kind.REQUEST, number, body) for number in range(1, 501)))
    answered, told = 0, 0
    for _ in range(500):
        kind, _, answer = connection.receive()
        if kind == Kind.RESPONSE:
            answered += 1
        else:
            assert messages.decode(answer, messages.Failure).code == "limit_exceeded"
            told += 1
    assert answered >= 64
    assert told > 0


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (messages.FindOffset(topic_id=1, partition=0, at="latest"), PartitionNotFound),
        (messages.ReportDamage(topic_id=1, partition=0, offset=0), PartitionNotFound),
        (messages.AlterTopic(name="target", changes={"partitions": 5}), StentorError),
        (messages.AlterTopic(name="target", changes={"segment_bytes": -1}), StentorError),
        (messages.AlterTopic(name="target", changes={"no": [[[{}]]]}), StentorError),
        (messages.AlterTopic(name="target", changes={"retention_age_s": 2**64 - 1}), None),
        (messages.RegisterSchema(name="target", columns=[]), StentorError),
        (messages.RegisterSchema(name="target", columns=[{"name": "n", "type": "anything"}]), StentorError),
        (messages.RegisterSchema(name="nowhere", columns=[{"name": "n", "type": "bool"}]), StentorError),
        (messages.CreateTopic(name="../../etc/passwd"), StentorError),
        (messages.CreateTopic(name="a\0b"), StentorError),
        (messages.ListTopics(pattern="a.>.b"), StentorError),
        (messages.DeleteTopic(name="nowhere"), StentorError),
    ],
    ids=str,
)
def test_a_request_for_the_impossible_gets_a_typed_answer(attacked, raw, request_, error):
    connection = raw(attacked.url).greet()
    topic_id(connection)
    if error is None:
        connection.ask(request_)
    else:
        with pytest.raises(error) as caught:
            connection.ask(request_)
        assert caught.value.code != "internal_error"
    still_talks(connection)


@pytest.mark.parametrize("depth", [limits.SCHEMA_DEPTH_MAX, 100, 1_500])
def test_a_schema_of_any_depth_is_answered(attacked, raw, depth):
    connection = raw(attacked.url).greet()
    topic_id(connection)
    leaf = msgspec.msgpack.encode({"name": "n", "type": "int64"})
    level = msgspec.msgpack.encode({"name": "n", "type": "struct", "columns": []})[:-1] + b"\x91"
    request = msgspec.msgpack.encode({"type": "RegisterSchema", "name": "target", "columns": []})[:-1] + b"\x91"
    connection.send(Kind.REQUEST, 77, request + level * depth + leaf)
    with pytest.raises(StentorError) as caught:
        connection.answer_to(77, Kind.RESPONSE)
    assert caught.value.code in ("limit_exceeded", "protocol_error")
    still_talks(connection)


def test_positions_beyond_any_number_are_answered(attacked, raw):
    connection = raw(attacked.url).greet()
    target = topic_id(connection)
    connection.published(connection.publish(target, [b"a", b"b"]))
    ask = {"topic_id": target, "partition": 0}
    for beyond in (2**63, 2**64 - 1):
        assert connection.ask(messages.FindOffset(**ask, timestamp_us=beyond)).offset == 2
        assert connection.ask(messages.FindOffset(**ask, last=beyond)).offset == 0
    assert connection.ask(messages.FindOffset(**ask, timestamp_us=0)).offset == 0
    with pytest.raises(StentorError, match="position"):
        connection.ask(messages.FindOffset(**ask))


def test_a_batch_that_is_none_is_answered_and_the_connection_goes_on(attacked, raw):
    connection = raw(attacked.url).greet()
    target = topic_id(connection)
    for body in (b"", b"x", bytes(96), bytes(200), b"STB\x01" + bytes(200)):
        connection.send(Kind.PUBLISH, 50, body, frames.Ack.ALL)
        with pytest.raises(CorruptData):
            connection.answer_to(50, Kind.PUBLISHED)
    with pytest.raises(PartitionNotFound):
        connection.published(connection.publish(12345, [b"x"]))
    with pytest.raises(PartitionNotFound):
        connection.published(connection.publish(target, [b"x"], partition=1))
    assert connection.published(connection.publish(target, [b"x"])) == 0


def test_a_producer_cannot_choose_its_own_offset_epoch_or_time(attacked, raw):
    connection = raw(attacked.url).greet()
    target = topic_id(connection)
    connection.published(connection.publish(target, [b"x"]))
    encoded = batch.encode_at(5, [None], [b"y"])
    header = batch.address(encoded, topic_id=target, partition=0, producer_id=0, generation=0, sequence=0)
    data = header + encoded.body
    stamp(memoryview(data), 0, base_offset=99, epoch=77, appended_at_us=1)
    connection.send(Kind.PUBLISH, 60, bytes(data), frames.Ack.ALL)
    offset, epoch, appended_at_us = frames.PUBLISHED.unpack(connection.answer_to(60, Kind.PUBLISHED))
    assert (offset, epoch) == (1, 1)
    assert appended_at_us > 1_700_000_000_000_000


def test_unknown_ack_bits_do_no_harm(attacked, raw):
    connection = raw(attacked.url).greet()
    target = topic_id(connection)
    for number, flags in enumerate((3, 0xFF, 1, 2)):
        assert connection.published(connection.publish(target, [b"x"], ack=flags)) == number


# --- clients that leave in the middle -----------------------------------------------------------


def test_a_client_that_leaves_while_a_topic_is_made_does_not_spoil_the_name(attacked, raw):
    settings = {"partitions": 40}
    for attempt in range(12):
        connection = raw(attacked.url).greet()
        create = messages.CreateTopic(name="contested", settings=settings, exist_ok=True)
        connection.send(Kind.REQUEST, 1, messages.encode(create))
        if attempt % 2:
            connection.socket.shutdown(socket.SHUT_RDWR)
        connection.close()
    with attacked.client() as client:
        assert len(client.create_topic("contested", partitions=40, exist_ok=True).partitions) == 40
        assert client.publish("contested", b"x", partition=39).offset == 0
        client.delete_topic("contested")
        assert len(client.create_topic("contested", partitions=2).partitions) == 2


def test_a_client_that_leaves_while_a_topic_is_deleted_does_not_spoil_the_name(attacked, raw, wait_until):
    with attacked.client() as client:
        for _ in range(6):
            client.create_topic("contested", partitions=20)
            connection = raw(attacked.url).greet()
            connection.send(Kind.REQUEST, 1, messages.encode(messages.DeleteTopic(name="contested")))
            connection.close()
            wait_until(lambda: not client.topics("contested"), "the topic is gone")
        wait_until(
            lambda: len(list((attacked.data_directory / "partitions").iterdir())) == 1, "the files are gone as well"
        )


def test_a_client_that_leaves_while_it_publishes_is_forgotten(attacked, raw, wait_until):
    before = sessions(attacked)
    with raw(attacked.url) as first:
        target = topic_id(first.greet())
    for _ in range(30):
        connection = raw(attacked.url).greet()
        for _ in range(20):
            connection.publish(target, [b"x" * 1000])
        connection.close()
    wait_until(lambda: sessions(attacked) == before, "the connections are gone")
    partition = attacked.inner.parts.serving.partition(target, 0)
    wait_until(lambda: not partition._requests._waiting, "nobody is waited for")


def test_limits_of_names_hold(attacked, raw):
    connection = raw(attacked.url)
    hello = {"version_min": 1, "version_max": 1, "name": "x" * (limits.CLIENT_NAME_CHARACTERS_MAX + 1)}
    connection.send(Kind.HELLO, 0, messages.encode(messages.Hello(**hello)))
    assert connection.refusal().code == "protocol_error"


def test_many_streams_of_one_client_that_does_not_read_cost_the_broker_little(raw, wait_until):
    """Each would have half a megabyte read for it; together they get what one connection gets."""
    with broker() as local:
        with local.client() as client:
            topic_id = client.create_topic("t").id
            with client.producer("t") as producer:
                for _ in range(60):  # more than the broker keeps at hand
                    producer.send(bytes(200_000))
        link = raw(local.url, receive_buffer=4096).greet()
        wish = messages.encode(messages.OpenStream(topic_id=topic_id, partition=0, start=0, credit=1))
        link.send_bytes(b"".join(frames.frame(Kind.OPEN_STREAM, number, wish) for number in range(1, 201)))
        wait_until(
            lambda: sum(len(session.streams) for session in local.inner.parts.admission.sessions) == 200, "all streams"
        )
        (session,) = local.inner.parts.admission.sessions
        wait_until(lambda: session.blocked and not session.history_bytes, "what there is room for")
        assert session.connection.unsent_bytes < 8 * limits.MIB
        assert len(session.blocked) > 100


def test_streams_that_wait_for_room_get_it_in_turn(raw):
    with broker() as local, local.client() as client:
        topic_id = client.create_topic("t").id
        with client.producer("t") as producer:
            for _ in range(60):
                producer.send(bytes(200_000))
        link = raw(local.url).greet()
        wish = messages.encode(messages.OpenStream(topic_id=topic_id, partition=0, start=0, end=5, credit=1 << 22))
        link.send_bytes(b"".join(frames.frame(Kind.OPEN_STREAM, number, wish) for number in range(1, 31)))
        ended = set()
        while len(ended) < 30:
            kind, stream, _ = link.receive()
            if kind == Kind.STREAM_ENDED:
                ended.add(stream)
