"""After its greeting a connection is a client's, another broker's or a relay's, and knows only its own frames."""

import pytest

from stentor.broker.sessions import client_session, peer_session
from stentor.broker.sessions.client_session import ClientSession
from stentor.broker.sessions.newcomer import Newcomer
from stentor.broker.sessions.relay_session import RelaySession
from stentor.wire import frames
from stentor.wire.frames import Kind

BETWEEN_BROKERS = {Kind.PEER, Kind.REPLICATE}
OF_CLIENTS = {Kind.REQUEST, Kind.OPEN_STREAM, Kind.CLOSE_STREAM, Kind.CREDIT}


def test_the_frames_of_brokers_and_of_clients_are_apart():
    assert set(peer_session._HANDLERS) >= BETWEEN_BROKERS
    assert set(client_session._HANDLERS) >= OF_CLIENTS
    assert not BETWEEN_BROKERS & set(client_session._HANDLERS)
    assert not {*OF_CLIENTS, Kind.PUBLISH} & set(peer_session._HANDLERS)


@pytest.mark.parametrize("kind", sorted(BETWEEN_BROKERS), ids=lambda kind: kind.name)
def test_a_client_that_speaks_as_a_broker_is_refused(local, raw, kind):
    connection = raw(local.url).greet()
    connection.send_bytes(frames.frame(kind, 0, b""))
    assert connection.refusal().code == "protocol_error"


def test_a_newcomer_becomes_a_client_and_nothing_of_it_stays(local, raw, wait_until):
    connection = raw(local.url)
    sessions = local.inner.parts.admission.sessions
    wait_until(lambda: [type(session) for session in sessions] == [Newcomer], "the newcomer")
    connection.greet()
    wait_until(lambda: [type(session) for session in sessions] == [ClientSession], "the client")
    connection.close()
    wait_until(lambda: not sessions, "the end")


def test_a_relay_takes_two_of_the_connections_that_there_are():
    assert (ClientSession.connections, RelaySession.connections) == (1, 2)
