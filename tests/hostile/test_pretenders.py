"""Nobody passes for a broker who does not prove it; and a broker speaks for nobody but itself (S6).

A client that was taken for a broker could, with one frame, remove every copy of a topic, stop the cluster, or have
readers served what it made up.
"""

from __future__ import annotations

import select
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from stentor import Client
from stentor.core.chain_messages import Complaint, Down, Link
from stentor.core.membership import Heartbeat
from stentor.core.records import ChainRecord, Member
from stentor.errors import StentorError
from stentor.security.proof import Claim, new_nonce, new_secret, prove
from stentor.testing.cluster import LocalCluster
from stentor.wire import batch, frames, header, messages, peer
from stentor.wire.frames import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.slow

GHOST = ChainRecord(1_000_000, (Member("ghost", 1, 1),), proposal=1, factor=1, min_replicas=1)
TOPIC = "kept"


@pytest.fixture(scope="module")
def three() -> Iterator[LocalCluster]:
    """Three brokers with a topic on all of them."""
    with LocalCluster(3) as cluster:
        with cluster.client() as client:
            client.create_topic(TOPIC, replicas=3)
            client.publish(TOPIC, b"first")
        yield cluster


@pytest.fixture
def attacked(three: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster; at the end the topic is whole, everybody hears everybody, and messages flow."""
    yield three
    with three.client() as client:
        before = client.offsets(TOPIC)[0]
        assert client.publish(TOPIC, b"next", timeout=20).offset == before
        values = [message.value for message in client.read(TOPIC)]
        assert values[0] == b"first"
        assert len(values) == before + 1
        assert {state.info.id for state in client.brokers()} == {"b0", "b1", "b2"}
        assert all(state.view == "heard" for state in client.brokers())
    assert len(three.chain(TOPIC)) == 3


def url(cluster: LocalCluster, name: str = "b0") -> str:
    return f"stentor://{cluster.brokers[name].address}"


def cluster_id(cluster: LocalCluster) -> str:
    with Client(url(cluster)) as client:
        return client.broker().cluster_id


def secret_of(cluster: LocalCluster) -> bytes:
    """What only a broker knows: read from the data directory of one."""
    from stentor.security.cluster_secret import decode_kept
    from stentor.storage.files import FileKind, unseal

    file = cluster.brokers["b0"].directory / "secret"
    return decode_kept(unseal(FileKind.SECRET, file.read_bytes(), what="secret")).secret.current


def addressed(encoded: batch.Encoded, topic_id: int, partition: int) -> bytearray:
    return batch.address(encoded, topic_id=topic_id, partition=partition, producer_id=0, generation=0, sequence=0)


def forged(cluster: LocalCluster) -> list[bytes]:
    """Frames that would each do great harm, if a broker believed them."""
    with cluster.client() as client:
        topic_id = client.describe_topic(TOPIC).id
    said: list[peer.PeerMessage] = [
        peer.Pushed([(topic_id, 0, GHOST, 2**40)], complete=True),
        peer.ForPartition(topic_id, 0, Down(1, 10**9, start=10**9)),
        Heartbeat("b1", 2**60),
        *(Heartbeat(f"invented-{number}", 1) for number in range(20)),
    ]
    encoded = batch.encode_at(1_700_000_000_000_000, [None], [b"forged"])
    body = bytes(addressed(encoded, topic_id, 0)) + bytes(encoded.body)
    replicate = [peer.REPLICATE.pack(topic_id, 0, 1, attempt, 1, 1, 2, 0) + body for attempt in range(1, 20)]
    return [
        *(frames.frame(Kind.PEER, 0, peer.encode([message])) for message in said),
        *(frames.frame(Kind.REPLICATE, 0, each) for each in replicate),
    ]


class Pretender:
    """Dials a broker and says that it is another one."""

    def __init__(self, connection: Any, cluster_id: str, name: str, at: str = "b0", purpose: str = "control") -> None:
        self.connection = connection
        self.claim = Claim(cluster_id, purpose, name, at, new_nonce())

    def hello(self, **fields: Any) -> Pretender:
        claim = self.claim
        greeting = {
            "version_min": 1,
            "version_max": 1,
            "broker": claim.dialler,
            "cluster_id": claim.cluster_id,
            "purpose": claim.purpose,
            "nonce": claim.dialler_nonce,
        }
        self.connection.send(Kind.HELLO, 0, messages.encode(messages.Hello(**{**greeting, **fields})))
        return self

    def welcome(self) -> messages.Welcome:
        kind, _, body = self.connection.receive()
        assert kind == Kind.WELCOME, messages.decode(body, messages.Failure)
        welcome = messages.decode(body, messages.Welcome)
        self.claim = msgspec.structs.replace(self.claim, acceptor_nonce=welcome.nonce)
        return welcome

    def prove(self, proof: bytes) -> Pretender:
        self.connection.send(Kind.PROVE, 0, messages.encode(messages.Prove(proof=proof)))
        return self

    def proof(self, secret: bytes, **other: Any) -> bytes:
        return prove(secret, "dialler", msgspec.structs.replace(self.claim, **other))

    def say(self, *said: bytes) -> Pretender:
        with suppress(OSError):
            self.connection.send_bytes(b"".join(said))
        return self

    def tell(self, *messages_said: peer.PeerMessage) -> Pretender:
        return self.say(frames.frame(Kind.PEER, 0, peer.encode(list(messages_said))))

    def refusal(self) -> messages.Failure:
        reason = self.connection.refusal()
        assert reason is not None
        return reason


@pytest.fixture
def pretend(attacked: LocalCluster, raw: Callable[..., Any]) -> Callable[..., Pretender]:
    """Makes pretenders of a broker, at another one."""
    known = cluster_id(attacked)

    def make(name: str = "b1", at: str = "b0", **options: Any) -> Pretender:
        return Pretender(raw(url(attacked, at)), known, name, at, **options)

    return make


# --- without the secret -------------------------------------------------------------------------


@pytest.mark.parametrize("purpose", ["control", "data"])
@pytest.mark.parametrize("name", ["b1", "b0", "ghost"])
def test_a_client_that_says_it_is_a_broker_is_refused(attacked, pretend, name, purpose):
    pretender = pretend(name, purpose=purpose).hello(nonce=b"").say(*forged(attacked))
    reason = pretender.refusal()
    assert reason.code == "peer_refused"
    assert reason.hint


@pytest.mark.parametrize("name", ["b1", "ghost"])
def test_a_client_that_does_not_answer_the_challenge_is_refused(attacked, pretend, name):
    pretender = pretend(name).hello()
    assert pretender.welcome().nonce
    assert pretender.say(*forged(attacked)).refusal().code == "peer_refused"


@pytest.mark.parametrize("at", ["b0", "b1", "b2"])
def test_a_registered_name_with_a_wrong_secret_is_refused(attacked, pretend, at):
    pretender = pretend("b2" if at != "b2" else "b0", at).hello()
    pretender.welcome()
    pretender.prove(pretender.proof(new_secret())).say(*forged(attacked))
    assert pretender.refusal().code == "peer_refused"


def test_twenty_invented_brokers_stop_nobody(attacked, pretend):
    for number in range(20):
        name = f"invented-{number}"
        pretender = pretend(name).hello(nonce=b"").tell(Heartbeat(name, 1))
        assert pretender.refusal().code == "peer_refused"


def test_the_proofs_of_the_other_side_cannot_be_reflected(attacked, pretend):
    pretender = pretend().hello()
    welcome = pretender.welcome()
    pretender.prove(welcome.proofs[0]).say(*forged(attacked))
    assert pretender.refusal().code == "peer_refused"


def test_what_one_connection_was_told_proves_nothing_on_another(attacked, pretend):
    """Both at once, with each other's nonces: what an acceptor says is never a dialler's proof."""
    one = pretend().hello()
    told = one.welcome()
    two = pretend().hello(nonce=told.nonce)
    two.prove(two.welcome().proofs[0])
    assert two.refusal().code == "peer_refused"


def test_an_overheard_proof_cannot_be_replayed(attacked, pretend):
    secret = secret_of(attacked)
    first = pretend().hello()
    first.welcome()
    overheard = first.proof(secret)
    first.prove(overheard)
    again = pretend()
    again.claim = msgspec.structs.replace(first.claim, acceptor_nonce=b"")
    again.hello()
    assert again.welcome().nonce != first.claim.acceptor_nonce
    assert again.prove(overheard).refusal().code == "peer_refused"


@pytest.mark.parametrize(
    "other", [{"purpose": "data"}, {"dialler": "b2"}, {"acceptor": "b2"}, {"cluster_id": "other"}], ids=str
)
def test_a_proof_for_something_else_is_refused(attacked, pretend, other):
    pretender = pretend().hello()
    pretender.welcome()
    assert pretender.prove(pretender.proof(secret_of(attacked), **other)).refusal().code == "peer_refused"


def test_the_secret_is_in_no_log_no_statistics_and_for_nobody_else_to_read(attacked):
    secret = secret_of(attacked)
    with attacked.client() as client:
        shown = repr(client.statistics()) + repr(client.brokers())
    for broker in attacked.brokers.values():
        shown += broker.log_file.read_text(encoding="utf-8")
        assert (broker.directory / "secret").stat().st_mode & 0o777 == 0o600
    assert secret.hex() not in shown
    assert repr(secret)[2:-1] not in shown


# --- through a relay ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"broker": "b2", "purpose": "control"},
        {"cluster_id": "x"},
        {"purpose": "data"},
        {"listener": "internal"},
        {"relay": "b0"},
        {"nonce": b"n" * 32},
        {"proof": b"p" * 32},
    ],
    ids=str,
)
def test_a_relay_passes_on_no_greeting_of_a_broker(attacked, raw, fields):
    connection = raw(url(attacked))
    hello = messages.Hello(version_min=1, version_max=1, target="b1", **fields)
    connection.send(Kind.HELLO, 0, messages.encode(hello))
    assert connection.refusal().code == "peer_refused"


def test_a_relay_passes_on_no_frame_of_a_broker(attacked, raw):
    for frame in forged(attacked):
        connection = raw(url(attacked)).greet(target="b1")
        connection.send_bytes(frame)
        reason = connection.refusal()
        assert reason.code == "protocol_error"
        assert "may not send" in reason.message


def test_what_a_client_sends_right_behind_its_greeting_is_passed_on_in_order(attacked, raw):
    """It need not wait for WELCOME, through another broker neither."""
    hello = messages.encode(messages.Hello(version_min=1, version_max=1, target="b1"))
    asked = messages.encode(messages.DescribeTopic(name=TOPIC))
    connection = raw(url(attacked))
    connection.send_bytes(
        frames.frame(Kind.HELLO, 0, hello)
        + b"".join(frames.frame(Kind.PING, number) for number in range(1, 50))
        + frames.frame(Kind.REQUEST, 50, asked)
    )
    kind, _, body = connection.receive()
    assert kind == Kind.WELCOME
    assert messages.decode(body, messages.Welcome).broker.id == "b1"
    assert [connection.receive()[:2] for _ in range(1, 50)] == [(Kind.PONG, number) for number in range(1, 50)]
    described = messages.decode(connection.answer_to(50, Kind.RESPONSE), messages.Response)
    assert described.topic.name == TOPIC


# --- with the secret ----------------------------------------------------------------------------


def proven(pretender: Pretender, secret: bytes) -> Pretender:
    pretender.hello()
    pretender.welcome()
    return pretender.prove(pretender.proof(secret))


def test_a_proof_with_the_secret_is_taken(attacked, pretend):
    """Else the refusals above would prove nothing."""
    pretender = proven(pretend(), secret_of(attacked))
    pretender.connection.send(Kind.PING, 7)
    assert pretender.connection.receive()[:2] == (Kind.PONG, 7)


def test_a_broker_that_is_not_registered_is_to_try_again(attacked, pretend):
    reason = proven(pretend("ghost"), secret_of(attacked)).refusal()
    assert reason.code == "not_ready"
    assert reason.retriable


def test_a_broker_speaks_for_nobody_else(attacked, pretend):
    secret = secret_of(attacked)
    with attacked.client() as client:
        topic_id = client.describe_topic(TOPIC).id
    other = Member("b2", 1, 1)
    for message in (
        Heartbeat("b2", 2**60),
        peer.Reports("b2", 1, [], pass_on=True),
        peer.ForPartition(topic_id, 0, Link(1, 1, other, 0, 0, [])),
        peer.ForPartition(topic_id, 0, Down(1, 5), pass_on=True),
        peer.ForPartition(topic_id, 0, Down(1, 5), origin="b2"),
        peer.ForPartition(topic_id, 0, Complaint(1, other, "x"), pass_on=True, origin="b2"),
    ):
        reason = proven(pretend(), secret).tell(message).refusal()
        assert (reason.code, message) == ("protocol_error", message)


def test_a_life_of_a_broker_that_the_store_has_not_told_of_is_not_believed(attacked, pretend):
    """Else the broker itself would never be heard again."""
    pretender = proven(pretend(), secret_of(attacked)).tell(*[Heartbeat("b1", 2**60)] * 5)
    pretender.connection.send(Kind.PING, 1)
    assert pretender.connection.receive()[:2] == (Kind.PONG, 1)
    with Client(url(attacked)) as client:
        assert next(state for state in client.brokers() if state.info.id == "b1").incarnation < 2**60


def test_batches_come_over_a_connection_for_data_only(attacked, pretend):
    pretender = proven(pretend(), secret_of(attacked))
    pretender.say(forged(attacked)[-1])
    assert pretender.refusal().code == "protocol_error"


@pytest.mark.parametrize("what", ["offset", "partition", "epoch", "empty", "garbage"])
def test_wrong_batches_of_a_predecessor_end_its_connection_and_never_the_log(attacked, pretend, wait_until, what):
    secret = secret_of(attacked)
    head, middle = attacked.chain(TOPIC)[:2]
    with Client(url(attacked, middle)) as client:
        described = client.describe_topic(TOPIC)
    place = described.partitions[0]
    partition, offset, epoch = 0, place.end, place.epoch
    encoded = batch.encode_at(1_700_000_000_000_000, [None], [b"forged"])
    wrong = {
        "offset": (partition, offset + 5, epoch),
        "partition": (partition + 1, offset, epoch),
        "epoch": (partition, offset, epoch + 1),
    }.get(what, (partition, offset, epoch))
    sealed = bytearray(bytes(addressed(encoded, described.id, wrong[0])) + bytes(encoded.body))
    header.stamp(memoryview(sealed), 0, base_offset=wrong[1], epoch=wrong[2], appended_at_us=1)
    body = {"empty": b"", "garbage": b"x" * 200}.get(what, bytes(sealed))
    pretender = proven(pretend(head, middle, purpose="data"), secret)
    fixed = [peer.REPLICATE.pack(described.id, 0, epoch, attempt, 0, offset, 0, 0) for attempt in range(1, 200)]

    def refused() -> bool:
        """A broker that arrives is linked to anew: until then its batches are not looked at."""
        pretender.say(*(frames.frame(Kind.REPLICATE, 0, each + body) for each in fixed))  # the right attempt among them
        return bool(select.select([pretender.connection.socket], [], [], 0.05)[0])

    wait_until(refused, "the connection ends")
    reason = pretender.refusal()
    assert reason.code in ("protocol_error", "corrupt_data")
    with Client(url(attacked, middle)) as client, suppress(StentorError):
        assert client.describe_topic(TOPIC).partitions[0].failed == ""
