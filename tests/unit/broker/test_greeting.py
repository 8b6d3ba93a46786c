"""Both sides prove themselves before either counts; a relay proves which listener its client came in by."""

from types import SimpleNamespace

import msgspec
import pytest

from stentor.broker.cluster.greeting import Arrival, Dialling, listener_of, relayed
from stentor.broker.environment import BrokerIdentity
from stentor.errors import NotReady, PeerRefused, ProtocolError
from stentor.wire import messages

OLDER, OLD, NEW = (bytes([number]) * 32 for number in (1, 2, 3))
INFO = messages.BrokerInfo(id="b2", cluster_id="c", version="1", address="h:1")
WELCOME = messages.Welcome(version=1, broker=INFO)


def make_broker(name, *secrets, must_prove=True, single=False, known=("b1", "b2")):
    told, looks = [], []
    identity = BrokerIdentity()
    identity.broker_id, identity.cluster_id, identity.alone = name, "c", single
    return SimpleNamespace(
        identity=identity,
        trust=SimpleNamespace(
            secrets=secrets, all_prove=must_prove, must_prove=lambda _: must_prove, tell_unproven=told.append
        ),
        catalogue=SimpleNamespace(brokers=dict.fromkeys(known)),
        look=lambda: looks.append(1),
        told=told,
        looks=looks,
    )


def dial(broker, name, purpose):
    return Dialling(broker.identity, broker.trust, name, purpose)


def arrive(broker, hello):
    return Arrival(broker.identity, broker.trust, hello)


def pass_on(broker, hello, listener):
    return relayed(broker.identity, broker.trust, hello, listener)


def came_in_by(broker, hello, own):
    return listener_of(broker.identity, broker.trust, hello, own)


def greet(one, two, purpose="data"):
    """The secrets by which the dialler believes the acceptor and the acceptor the dialler."""
    dialling = dial(one, two.identity.broker_id, purpose)
    arrival = arrive(two, messages.decode(dialling.hello(), messages.Hello))
    answer = dialling.answer(arrival.challenge(WELCOME))
    return dialling.proven_by, arrival.proven_by(memoryview(answer))


@pytest.mark.parametrize(
    ("ones", "twos", "common"),
    [
        ((OLD,), (OLD,), OLD),
        ((NEW, OLD), (NEW, OLD), NEW),
        ((NEW, OLD), (OLD,), OLD),
        ((OLD,), (NEW, OLD), OLD),
        ((NEW, OLD), (OLD, OLDER), OLD),
    ],
)
def test_brokers_that_share_a_secret_believe_each_other(ones, twos, common):
    assert greet(make_broker("b1", *ones), make_broker("b2", *twos)) == (common, common)


def test_a_dialler_tells_nothing_to_who_has_another_secret():
    with pytest.raises(PeerRefused, match="b2 does not prove"):
        greet(make_broker("b1", NEW), make_broker("b2", OLD))


def test_a_dialler_tells_nothing_to_who_proves_nothing():
    dialling = dial(make_broker("b1", NEW), "b2", "control")
    for welcome in (WELCOME, msgspec.structs.replace(WELCOME, nonce=b"n" * 32)):
        with pytest.raises(PeerRefused):
            dialling.answer(welcome)


def test_an_older_version_is_told_what_it_understands_while_the_level_allows_it():
    broker = make_broker("b1", NEW, must_prove=False)
    assert dial(broker, "b2", "control").answer(WELCOME) is None
    assert broker.told == ["b2"]
    other = make_broker("b2", NEW, must_prove=False)
    hello = messages.Hello(version_min=1, version_max=1, broker="b1", cluster_id="c", purpose="control")
    assert not arrive(other, hello).proves
    assert arrive(other, hello).challenge(WELCOME) == WELCOME


def test_who_says_that_it_can_prove_itself_must_whatever_the_level():
    broker = make_broker("b2", NEW, must_prove=False)
    dialling = dial(make_broker("b1", OLD), "b2", "control")
    arrival = arrive(broker, messages.decode(dialling.hello(), messages.Hello))
    with pytest.raises(PeerRefused):
        arrival.proven_by(memoryview(messages.encode(messages.Prove(proof=b"p" * 32))))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"cluster_id": "other"}, PeerRefused),
        ({"broker": "b2"}, PeerRefused),
        ({"nonce": b""}, PeerRefused),
        ({"nonce": b"short"}, PeerRefused),
        ({"purpose": ""}, ProtocolError),
        ({"purpose": "relay"}, ProtocolError),
    ],
)
def test_a_greeting_that_cannot_be_true_is_refused(changes, error):
    hello = messages.decode(dial(make_broker("b1", NEW), "b2", "data").hello(), messages.Hello)
    with pytest.raises(error):
        arrive(make_broker("b2", NEW), msgspec.structs.replace(hello, **changes))


def test_a_broker_on_its_own_takes_no_others_and_one_without_a_secret_none_yet():
    hello = messages.decode(dial(make_broker("b1", NEW), "b2", "data").hello(), messages.Hello)
    with pytest.raises(PeerRefused, match="on its own"):
        arrive(make_broker("b2", NEW, single=True), hello)
    with pytest.raises(NotReady, match="secret"):
        arrive(make_broker("b2"), hello)


def test_a_broker_that_is_not_registered_is_looked_up():
    hello = messages.decode(dial(make_broker("b9", NEW), "b2", "data").hello(), messages.Hello)
    broker = make_broker("b2", NEW)
    with pytest.raises(NotReady, match="not registered"):
        arrive(broker, hello).check_registered(broker.catalogue, broker.look)
    assert broker.looks


# --- relays -------------------------------------------------------------------------------------

CLIENT = messages.Hello(version_min=1, version_max=1, name="n", library="l", features=["rows"], target="b2")


def test_a_listener_counts_that_a_relay_has_proved():
    passed = pass_on(make_broker("b1", OLD), CLIENT, "public")
    assert (passed.name, passed.library, passed.features, passed.target) == ("n", "l", ["rows"], "")
    assert not passed.broker
    assert came_in_by(make_broker("b2", NEW, OLD), passed, "internal") == "public"


@pytest.mark.parametrize(
    "changes", [{"listener": "secret"}, {"relay": "b3"}, {"nonce": b"n" * 32}, {"proof": b""}, {"proof": b"p" * 32}]
)
def test_a_listener_that_nobody_proves_is_the_one_that_the_client_came_in_by(changes):
    passed = msgspec.structs.replace(pass_on(make_broker("b1", NEW), CLIENT, "public"), **changes)
    assert came_in_by(make_broker("b2", NEW), passed, "internal") == "internal"
    assert came_in_by(make_broker("b3", NEW), pass_on(make_broker("b1", NEW), CLIENT, "public"), "own") == "own"


def test_the_word_of_an_older_relay_is_taken_while_the_level_allows_it():
    passed = messages.Hello(version_min=1, version_max=1, listener="public")
    assert came_in_by(make_broker("b2", NEW, must_prove=False), passed, "internal") == "public"
    assert came_in_by(make_broker("b2", single=True, must_prove=False), passed, "internal") == "internal"
