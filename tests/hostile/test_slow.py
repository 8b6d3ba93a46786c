"""Connections that cost the broker something by doing little: slow, silent, deaf, or many."""

import socket
import threading
from contextlib import suppress

import pytest

from stentor import limits
from stentor.errors import Closed
from stentor.testing import broker
from stentor.wire import frames, messages
from stentor.wire.frames import Kind


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """The real bounds, but short, so that tests need not wait for long."""
    monkeypatch.setattr(limits, "HANDSHAKE_S", 1.0)
    monkeypatch.setattr(limits, "PARTIAL_FRAME_S", 1.5)
    monkeypatch.setattr(limits, "SILENCE_S", 3.0)
    monkeypatch.setattr(limits, "HEARTBEAT_S", 0.5)


def sessions(local):
    return len(local.inner.parts.admission.sessions)


def test_a_connection_that_never_greets_is_closed(attacked, raw):
    reason = raw(attacked.url).refusal()
    assert reason.code == "protocol_error"
    assert "greeting" in reason.message


def test_a_greeting_that_comes_drop_by_drop_is_closed(attacked, raw):
    connection = raw(attacked.url)
    whole = frames.frame(Kind.HELLO, 0, bytes(limits.UNGREETED_BODY_BYTES_MAX))
    stop = threading.Event()

    def drip():
        with suppress(OSError):
            for byte in whole:
                connection.send_bytes(bytes([byte]))
                if stop.wait(0.05):
                    return

    dripping = threading.Thread(target=drip)
    dripping.start()
    reason = connection.refusal()
    stop.set()
    dripping.join()
    assert reason is None or "greeting" in reason.message


def test_half_a_frame_and_then_silence_is_closed(attacked, raw):
    connection = raw(attacked.url).greet()
    connection.send_bytes(frames.frame(Kind.REQUEST, 1, bytes(100))[:50])
    reason = connection.refusal()
    assert reason.code == "protocol_error"
    assert "whole" in reason.message


def test_a_frame_that_comes_drop_by_drop_is_closed(attacked, raw):
    connection = raw(attacked.url).greet()
    stop = threading.Event()

    def drip():
        with suppress(OSError):
            connection.send_bytes(frames.HEADER.pack(1 << 20, Kind.PUBLISH, 0, 0, 1))
            while not stop.wait(0.05):
                connection.send_bytes(b"x")

    dripping = threading.Thread(target=drip)
    dripping.start()
    reason = connection.refusal()
    stop.set()
    dripping.join()
    assert reason is None or "whole" in reason.message


def test_a_client_that_falls_silent_is_closed_and_one_that_pings_is_not(attacked, raw):
    silent, alive = raw(attacked.url).greet(), raw(attacked.url).greet()
    stop = threading.Event()

    def ping():
        while not stop.wait(0.3):
            alive.send(Kind.PING, 1)

    pinging = threading.Thread(target=ping)
    pinging.start()
    try:
        assert "heard" in silent.refusal().message
        alive.ask(messages.ListClients())
    finally:
        stop.set()
        pinging.join()


def test_many_strangers_at_once_are_all_closed_again(attacked, raw, wait_until):
    before = sessions(attacked)
    strangers = [raw(attacked.url) for _ in range(300)]
    for number, stranger in enumerate(strangers):
        stranger.send_bytes(b"\x05\0\0\0\x01"[: number % 6])
    wait_until(lambda: sessions(attacked) > before, "they are there")
    wait_until(lambda: sessions(attacked) == before, "they are gone")
    assert all(stranger.refusal().code == "protocol_error" for stranger in strangers[:20])


def test_past_the_limit_of_connections_newcomers_are_told_and_later_ones_get_in(raw, wait_until):
    with broker(connections_max=3) as local:
        guests = [raw(local.url).greet() for _ in range(3)]
        refused = raw(local.url)
        reason = refused.refusal()
        assert reason.code == "closed"
        assert "3 connections" in reason.message
        assert reason.hint
        with pytest.raises(Closed, match="limit"):
            local.client(timeout=2)
        guests.pop().close()
        wait_until(lambda: sessions(local) < 3, "one has left")
        raw(local.url).greet()


def stuff(connection, data, seconds=20.0):
    """Send until the other side stops taking, or hangs up; how many bytes went out."""
    connection.socket.settimeout(0.5)
    sent = 0
    with suppress(OSError):
        while sent < 200 << 20:
            sent += connection.socket.send(data)
    return sent


@pytest.mark.parametrize("what", ["pings", "statistics", "refused publishes"])
def test_a_client_that_never_reads_its_answers_is_not_read_from_and_then_dropped(
    attacked, raw, wait_until, resident_bytes, what
):
    flood = {
        "pings": frames.frame(Kind.PING, 1) * 4096,
        "statistics": frames.frame(Kind.REQUEST, 1, messages.encode(messages.GetStatistics())) * 512,
        "refused publishes": frames.frame(Kind.PUBLISH, 1, bytes(100), 3) * 512,
    }[what]
    before = sessions(attacked)
    deaf = raw(attacked.url, receive_buffer=4096).greet()
    memory = resident_bytes()
    sent = stuff(deaf, flood)
    assert sent < 100 << 20, "the broker went on reading from a client that does not read"
    assert resident_bytes() - memory < 64 << 20
    wait_until(lambda: sessions(attacked) == before, "it is dropped")


def test_a_subscriber_that_never_reads_costs_little_however_much_credit_it_gives(
    attacked, raw, wait_until, resident_bytes
):
    with attacked.client() as client, client.producer("big") as producer:
        for _ in range(300):
            producer.send(bytes(200_000))
        producer.flush()
        target = client.describe_topic("big").id
    before = sessions(attacked)
    deaf = raw(attacked.url, receive_buffer=4096).greet()
    memory = resident_bytes()
    wish = {"topic_id": target, "partition": 0, "start": 0, "credit": limits.STREAM_CREDIT_BYTES_MAX}
    for stream_id in range(1, 41):
        deaf.send(Kind.OPEN_STREAM, stream_id, messages.encode(messages.OpenStream(**wish)))
        deaf.send(Kind.CREDIT, stream_id, frames.CREDIT.pack(2**64 - 1))
    wait_until(lambda: attacked.inner.statistics().broker.streams > 1, "the streams are open")
    wait_until(lambda: sessions(attacked) == before, "it is dropped")
    assert resident_bytes() - memory < 96 << 20


def test_a_refused_client_that_does_not_read_is_dropped_all_the_same(attacked, raw, wait_until):
    before = sessions(attacked)
    deaf = raw(attacked.url, receive_buffer=4096).greet()
    stuff(deaf, frames.frame(Kind.PING, 1) * 4096)
    stuff(deaf, b"\xff" * 100)
    wait_until(lambda: sessions(attacked) == before, "it is dropped")


def test_a_slow_reader_that_does_read_is_kept(attacked, raw):
    with attacked.client() as client, client.producer("big") as producer:
        for _ in range(100):
            producer.send(bytes(100_000))
        producer.flush()
        target = client.describe_topic("big").id
    slow = raw(attacked.url, receive_buffer=4096).greet()
    wish = {"topic_id": target, "partition": 0, "start": 0, "end": 100, "credit": limits.STREAM_CREDIT_BYTES_MAX}
    slow.send(Kind.OPEN_STREAM, 5, messages.encode(messages.OpenStream(**wish)))
    pause = threading.Event()
    received, kind = 0, None
    while kind != Kind.STREAM_ENDED:
        # A heartbeat, and a sip now and then: about 5 s for everything, longer than silence is allowed.
        slow.send(Kind.PING, 1)
        kind, _, body = slow.receive()
        if kind == Kind.DELIVER:
            received = frames.DELIVERY.unpack_from(body)[-1]
            pause.wait(0.2)
    assert received == 100


def test_a_half_open_connection_is_noticed(attacked, raw, wait_until):
    """The peer vanishes without a word: no FIN, no RST, just nothing any more."""
    before = sessions(attacked)
    connection = raw(attacked.url).greet()
    descriptor = connection.socket.detach()  # nobody reads or writes it, and nobody closes it
    try:
        wait_until(lambda: sessions(attacked) > before, "it is there")
        wait_until(lambda: sessions(attacked) == before, "it is gone")
    finally:
        socket.close(descriptor)
        connection.socket = socket.socket()


def test_a_broker_that_stood_still_itself_does_not_blame_its_clients(attacked, raw, wait_until):
    """A paused process sees a long silence of everyone, and it is its own."""
    clock = attacked.inner.parts.ground.environment.clock
    quiet, stranger = raw(attacked.url).greet(), raw(attacked.url)
    refusals = attacked.inner.parts.admission.refusals

    class Jumped:
        now_us = clock.now_us

        def monotonic(self):
            return clock.monotonic() + 1000

    swept = attacked.inner._swept_at
    attacked.inner.parts.ground.environment.clock = Jumped()
    wait_until(lambda: attacked.inner._swept_at > swept + 900, "a sweep has seen the jump")
    assert attacked.inner.parts.admission.refusals == refusals
    quiet.ask(messages.ListClients())
    assert "greeting" in stranger.refusal().message, "the time given to strangers begins again, and ends"
