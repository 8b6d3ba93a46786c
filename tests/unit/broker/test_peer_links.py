"""The connections to other brokers: what is said in one turn, and how often they are dialled."""

import socket
from types import SimpleNamespace

from stentor import limits
from stentor.broker.cluster import peer_links as peers
from stentor.broker.cluster.peer_links import PeerLink
from stentor.core.chain_messages import Linked
from stentor.testing import broker
from stentor.wire import frames, peer


def test_what_is_said_in_one_turn_is_split_before_it_is_too_large_for_a_frame(monkeypatch):
    monkeypatch.setattr(peers, "_FRAME_BYTES_MAX", 1000)
    said = [peer.ForPartition(1, index, Linked(1, 1, 5, reset=True, snapshot=bytes(300))) for index in range(10)]
    link = SimpleNamespace(_buffers=[])
    link._pack_messages = lambda messages: PeerLink._pack_messages(link, messages)
    link._pack_messages([*said, peer.ForPartition(1, 10, Linked(1, 1, 5, reset=True, snapshot=bytes(5000)))])
    bodies = [buffer[frames.HEADER.size :] for buffer in link._buffers]
    heard = [message for body in bodies for message in peer.decode(memoryview(body))]
    assert heard[:10] == said
    assert len(heard) == 11
    assert all(len(body) <= 1000 or len(peer.decode(memoryview(body))) == 1 for body in bodies)


def link_to(local, name, address):
    """As the broker itself would dial another one."""
    parts = local.inner.parts
    return PeerLink(parts.ground.environment, name, address, peer.CONTROL, parts.cluster.peers._greeting)


def test_a_broker_that_takes_no_more_connections_is_not_dialled_all_the_time(wait_until):
    with broker(connections_max=1) as full, broker() as other, full.client():
        before, made = full.inner.parts.admission.refusals, []
        address = full.url.removeprefix("stentor://")
        started = other.inner.loop.time()
        other.inner.loop.call_soon_threadsafe(lambda: made.append(link_to(other, "full", address)))
        wait_until(lambda: full.inner.parts.admission.refusals - before >= 5, "five attempts")
        took = other.inner.loop.time() - started
        attempts = full.inner.parts.admission.refusals - before
        other.inner.loop.call_soon_threadsafe(made[0].close)
    assert attempts <= 10 + 25 * took


def test_a_broker_that_takes_a_connection_and_says_nothing_is_dialled_again(monkeypatch):
    """It may have vanished in that moment: nothing would ever come on that connection."""
    monkeypatch.setattr(limits, "HANDSHAKE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent, broker() as local:
        silent.settimeout(15)
        address, made, accepted = "{}:{}".format(*silent.getsockname()), [], []
        dial = lambda: made.append(link_to(local, "silent", address))  # noqa: E731
        local.inner.loop.call_soon_threadsafe(dial)
        try:
            accepted.extend(silent.accept()[0] for _ in range(2))
        finally:
            local.inner.loop.call_soon_threadsafe(made[0].close)
            for connection in accepted:
                connection.close()
