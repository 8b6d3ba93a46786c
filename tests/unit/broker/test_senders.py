"""A broker speaks only for itself; what is passed on names who said it; a restart is looked up (S6, C28)."""

import asyncio
from types import SimpleNamespace

import pytest

from stentor import limits
from stentor.broker.cluster.senders import Senders, passed_on
from stentor.broker.cluster.store_follower import FollowedStore
from stentor.core.chain_messages import Complaint, JoinerReady, ReplicaReport
from stentor.core.controller import BrokerRecord
from stentor.core.membership import Heartbeat
from stentor.core.records import ChainRecord, HeldRecord, Member
from stentor.errors import CoordinationUnavailable, ProtocolError
from stentor.wire import peer

KEY = (7, 0)
CHAIN = ChainRecord(
    3, (Member("b0", 1, 1), Member("b1", 2, 1)), proposal=1, factor=2, min_replicas=1, joining=Member("b2", 3, 1)
)


class Cluster:
    """Reads the store, as it was told to."""

    def __init__(self):
        self.joined = True
        self.noticed = False
        self.reads = 0
        self.finds = None

    def spawn(self, work):
        asyncio.run(work)

    async def look_again(self):
        self.reads += 1
        if self.finds is None:
            raise CoordinationUnavailable("away")
        self.finds()


@pytest.fixture
def broker():
    names = ("b0", "b1", "b2", "b3")
    now = [100.0]
    return SimpleNamespace(
        catalogue=SimpleNamespace(
            brokers={name: BrokerRecord(name, 5) for name in names}, chains={KEY: HeldRecord(CHAIN, 9)}
        ),
        trust=SimpleNamespace(all_prove=True),
        cluster=Cluster(),
        clock=SimpleNamespace(monotonic=lambda: now[0]),
        now=now,
    )


@pytest.fixture
def senders(broker):
    cluster = broker.cluster
    return Senders(
        broker.clock,
        followed=FollowedStore(store=None, catalogue=broker.catalogue, rollback=cluster, follower=cluster),
        trust=broker.trust,
        background=cluster,
        control=cluster,
    )


def complaint(**fields):
    return peer.ForPartition(*KEY, Complaint(3, CHAIN.chain[1], "silent"), **fields)


def test_a_heartbeat_of_a_life_that_the_store_knows_counts(senders, broker):
    assert senders.may_say("b1", Heartbeat("b1", 5))
    assert senders.may_say("b1", Heartbeat("b1", 4))  # the machine knows what to do with an echo
    assert not broker.cluster.reads


def test_a_restart_is_looked_up_and_believed_once_the_store_says_so(senders, broker):
    def register():
        broker.catalogue.brokers["b1"] = BrokerRecord("b1", 6)

    broker.cluster.finds = register
    assert not senders.may_say("b1", Heartbeat("b1", 6))
    assert broker.cluster.reads == 1
    assert senders.may_say("b1", Heartbeat("b1", 6))


def test_a_life_that_the_store_does_not_know_is_never_believed_and_seldom_looked_up(senders, broker):
    broker.cluster.finds = lambda: None
    for _ in range(50):
        assert not senders.may_say("b1", Heartbeat("b1", 2**60))
    assert broker.cluster.reads == 1
    broker.now[0] += limits.PEER_LOOK_S
    assert not senders.may_say("b1", Heartbeat("b1", 2**60))
    assert broker.cluster.reads == 2


def test_without_the_store_the_word_of_a_proven_broker_will_do(senders, broker):
    assert not senders.may_say("b1", Heartbeat("b1", 6))
    assert senders.may_say("b1", Heartbeat("b1", 6))
    assert not senders.may_say("b1", Heartbeat("b1", 7))


def test_without_the_store_the_word_of_an_unproven_broker_is_worth_nothing(senders, broker):
    broker.trust.all_prove = False
    assert not senders.may_say("b1", Heartbeat("b1", 6))
    broker.now[0] += limits.PEER_LOOK_S
    assert not senders.may_say("b1", Heartbeat("b1", 6))


def test_an_unregistered_name_is_not_heard(senders):
    assert not senders.may_say("b9", Heartbeat("b9", 1))
    assert not senders.may_say("b1", peer.Reports("b9", 1, []))


def test_a_report_is_about_the_copies_of_its_sender(senders):
    own = ReplicaReport(Member("b1", 2, 5), 3, 10, 10)
    assert senders.may_say("b1", peer.Reports("b1", 5, [(*KEY, own)]))
    with pytest.raises(ProtocolError):
        senders.may_say("b1", peer.Reports("b1", 5, [(*KEY, ReplicaReport(Member("b0", 1, 5), 3, 10, 10))]))


def test_a_report_may_be_passed_on_once_and_says_whose_it_is(senders):
    said = peer.Reports("b1", 5, [], pass_on=True)
    assert senders.may_say("b1", said)
    with pytest.raises(ProtocolError):
        senders.may_say("b3", said)  # not b3's to ask for
    assert senders.may_say("b3", passed_on(said, "b1"))


@pytest.mark.parametrize("member", ["b0", "b1", "b2"])
def test_members_and_the_joiner_may_complain_and_be_passed_on(senders, member):
    assert senders.may_say(member, complaint())
    assert senders.may_say(member, complaint(pass_on=True))
    passed = passed_on(complaint(pass_on=True), member)
    assert (passed.origin, passed.pass_on) == (member, False)
    assert senders.may_say("b3", passed)


def test_who_is_no_member_of_a_chain_cannot_complain(senders):
    assert not senders.may_say("b3", complaint())
    assert not senders.may_say("b0", complaint(origin="b3"))
    assert not senders.may_say("b0", peer.ForPartition(8, 0, JoinerReady(3, Member("b2", 3, 1))))


def test_an_older_version_passes_on_without_an_origin(senders, broker):
    broker.trust.all_prove = False
    assert senders.may_say("b3", complaint())
