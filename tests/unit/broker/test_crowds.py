"""What strangers can make a broker hold, and that it is given back."""

from contextlib import suppress

import pytest

from stentor import connect, limits
from stentor.limits import MIB
from stentor.testing import broker
from stentor.wire import frames, messages
from stentor.wire.frames import Kind

UNFINISHED = 400
HALF_SENT = 40


def send_what_it_takes(connection, data):
    """Send until the broker reads no further."""
    connection.socket.settimeout(0.2)
    with suppress(TimeoutError, ConnectionError):
        connection.socket.sendall(data)


@pytest.mark.long
def test_unfinished_greetings_and_half_sent_frames_cost_little_and_it_comes_back(served, raw, wait_until):
    process = served().start()
    with connect(process.url) as client:
        client.publish("t", b"1")
        before = process.resident_bytes
        half = frames.HEADER.pack(16 * MIB, Kind.PUBLISH, 0, 0, 1) + bytes(12 * MIB)
        crowd = [raw(process.url).greet() for _ in range(HALF_SENT)]
        for guest in crowd:
            send_what_it_takes(guest, half)
        for _ in range(UNFINISHED):
            crowd.append(raw(process.url))
            crowd[-1].send_bytes(frames.frame(Kind.HELLO, 0, bytes(limits.UNGREETED_BODY_BYTES_MAX))[:-1])
        client.publish("t", b"2")
        assert process.resident_bytes - before < limits.RECEIVE_BYTES_MAX + 60 * MIB
        for guest in crowd:
            guest.close()
        wait_until(lambda: process.resident_bytes < 1.2 * before, "the memory is given back", 60)
        client.publish("t", b"3")


def test_batches_get_through_while_half_sent_frames_hold_the_memory(raw):
    """Those that make no progress are closed, the oldest first."""
    with broker() as local, local.client() as client, client.producer("t") as producer:
        producer.send(b"1")
        producer.flush()
        crowd = [raw(local.url).greet() for _ in range(20)]
        for guest in crowd:
            send_what_it_takes(guest, frames.HEADER.pack(15 * MIB, Kind.PUBLISH, 0, 0, 1) + bytes(3 * MIB))
        assert local.inner.parts.admission.receiving.contended
        producer.send_many([bytes(1000)] * 2000)
        producer.send(bytes(7 * MIB))
        producer.flush()
        assert list(client.offsets("t").values()) == [2002]
        assert local.inner.parts.admission.receiving.closed_frames > 0


def test_answers_that_a_client_asked_for_and_does_not_read_are_not_made(raw, wait_until, monkeypatch):
    made = []

    async def large(*_):
        made.append(1)
        return messages.Statistics(statistics={"large": "x" * (2 * MIB)})

    with broker() as local:
        deaf = raw(local.url, receive_buffer=4096).greet()
        (session,) = local.inner.parts.admission.sessions
        monkeypatch.setattr(session._desk, "serve", large)
        asked = frames.frame(Kind.REQUEST, 1, messages.encode(messages.GetStatistics()))
        deaf.send_bytes(asked * 40)
        wait_until(lambda: len(made) >= 40, "all are under way")
        assert session.connection.unsent_bytes < 5 * MIB
        deaf.close()


def test_a_client_that_does_not_read_what_changes_is_dropped(raw, wait_until):
    with broker() as local:
        deaf = raw(local.url, receive_buffer=4096).greet()
        deaf.ask(messages.WatchRoutes())
        (session,) = local.inner.parts.admission.sessions
        loop = local.inner.loop
        for _ in range(40):
            loop.call_soon_threadsafe(session.routes_changed, bytes(MIB))
        wait_until(lambda: session.ended, "it is dropped")
        assert session.connection.bytes_out <= limits.UNSENT_BYTES_MAX + 30 * MIB


@pytest.mark.long
def test_of_many_clients_that_do_not_read_those_go_that_took_nothing_for_longest(raw, wait_until, monkeypatch):
    monkeypatch.setattr(limits, "UNSENT_TOTAL_BYTES_MAX", 8 * MIB)
    with broker() as local:
        for _ in range(6):
            raw(local.url, receive_buffer=4096).greet()
        sessions = list(local.inner.parts.admission.sessions)
        for session in sessions:
            local.inner.loop.call_soon_threadsafe(session.connection.write, [bytes(6 * MIB)])
        wait_until(lambda: sum(session.ended for session in sessions) >= 4, "most are dropped")
        assert sum(session.connection.unsent_bytes for session in local.inner.parts.admission.sessions) <= 8 * MIB
