"""A broker on its own takes no other brokers at all (S6)."""

import pytest

from stentor.core.membership import Heartbeat
from stentor.core.records import ChainRecord, Member
from stentor.wire import frames, messages, peer
from stentor.wire.frames import Kind

GHOST = ChainRecord(1_000_000, (Member("ghost", 1, 1),), proposal=1, factor=1, min_replicas=1)


@pytest.mark.parametrize("nonce", [b"", b"n" * 32])
@pytest.mark.parametrize("purpose", ["control", "data"])
def test_a_client_that_says_it_is_a_broker_is_refused(attacked, raw, purpose, nonce):
    with attacked.client() as client:
        topic = client.create_topic(f"kept-{purpose}-{len(nonce)}")
        client.publish(topic.name, b"first")
        known = client.broker()
        connection = raw(attacked.url)
        hello = messages.Hello(
            version_min=1, version_max=1, broker="ghost", cluster_id=known.cluster_id, purpose=purpose, nonce=nonce
        )
        said = [peer.Pushed([(topic.id, 0, GHOST, 2**40)]), Heartbeat("ghost", 2**60), Heartbeat(known.id, 2**60)]
        connection.send_bytes(
            frames.frame(Kind.HELLO, 0, messages.encode(hello)) + frames.frame(Kind.PEER, 0, peer.encode(said))
        )
        reason = connection.refusal()
        assert reason.code == "peer_refused"
        assert reason.hint
        assert client.publish(topic.name, b"second").offset == 1
        assert [message.value for message in client.read(topic.name)] == [b"first", b"second"]


@pytest.mark.parametrize("kind", [Kind.PEER, Kind.PROVE, Kind.REPLICATE], ids=lambda kind: kind.name)
def test_a_client_may_say_nothing_that_only_brokers_say(attacked, raw, kind):
    connection = raw(attacked.url).greet()
    connection.send(kind, 0, b"\x90")
    assert connection.refusal().code == "protocol_error"


def test_a_client_cannot_choose_the_listener_that_it_came_in_by(attacked, raw):
    raw(attacked.url).greet(listener="internal", relay="somebody")
    listeners = {session.listener for session in attacked.inner.parts.admission.sessions}
    assert listeners == {"default"}
