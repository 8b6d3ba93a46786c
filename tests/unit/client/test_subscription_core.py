"""Streams that a member refuses: another one is asked, and nobody is asked too often."""

import asyncio
import queue
from types import SimpleNamespace

import msgspec
import pytest

import stentor
from stentor import limits
from stentor.client.reader import Reader
from stentor.client.subscription import Subscription
from stentor.client.subscription_core import SubscriptionCore
from stentor.errors import NotReady, OffsetOutOfRange, PartitionNotFound
from stentor.wire import messages
from stentor.wire.messages import BrokerInfo

REFUSED = messages.StreamEnded(next_offset=0, failure=messages.failure(NotReady("Not yet."), "subscribe"))


class Timers:
    """A loop that a test moves."""

    def __init__(self):
        self.pending = []

    def time(self):
        return 0.0

    def call_later(self, seconds, callback):
        assert seconds == limits.LINK_WATCH_S
        self.pending.append(callback)
        return SimpleNamespace(cancel=lambda: self.pending.remove(callback))

    def fire(self):
        due, self.pending = self.pending, []
        for callback in due:
            callback()


class Member:
    """A link to a broker, of which a test says what it answers."""

    def __init__(self, name):
        self.broker = BrokerInfo(id=name, cluster_id="c", version="1", address=f"{name}:1")
        self.alive, self.lost_at = True, 0.0
        self.asked = []  # readers

    def open_stream(self, wish, reader):
        self.asked.append(reader)
        return len(self.asked)

    def close_stream(self, stream_id):
        pass

    def refuse(self):
        asked, self.asked = self.asked, []
        for reader in asked:
            reader.ended(REFUSED)
        return len(asked)


class Core:
    """As much of a client as streams need."""

    def __init__(self, *members, partitions=1):
        self.members = {member.broker.id: member for member in members}
        self.loop = Timers()
        self.links = SimpleNamespace(brokers=self.members)
        chain = [messages.PartitionRoute(epoch=1, chain=list(self.members)) for _ in range(partitions)]
        self.routes = {"t": SimpleNamespace(id=1, partitions=chain)}
        self.link_listeners = self.route_listeners = self.closers = set()
        self.seen = SimpleNamespace(saw=lambda *_: None)
        self.routing = self

    def member_link(self, topic, topic_id, partition, avoid=frozenset()):
        return next((member for name, member in self.members.items() if name not in avoid), None)


def opened(core, partitions=1):
    """A subscription whose streams were just opened."""
    subscription = SubscriptionCore(core, "t", put=lambda _: None)
    for partition in range(partitions):
        subscription.readers[1, partition] = Reader(subscription, "t", 1, partition)
    subscription.opened = True
    subscription.streams.reopen()
    return subscription


def test_however_many_readers_are_refused_they_ask_again_together_and_once():
    only = Member("only")
    core = Core(only, partitions=100)
    opened(core, 100)
    for _ in range(5):
        assert only.refuse() == 100
        assert len(core.loop.pending) == 1
        core.loop.fire()
    assert len(only.asked) == 100


def test_a_member_that_refused_is_asked_again_after_all_others():
    first, second = Member("first"), Member("second")
    core = Core(first, second)
    opened(core)
    for member in (first, second, first, second):
        assert member.refuse() == 1
        core.loop.fire()


def test_a_refusal_is_forgotten_once_a_reader_is_served():
    first, second = Member("first"), Member("second")
    core = Core(first, second)
    subscription = opened(core)
    (reader,) = subscription.readers.values()
    first.refuse()
    core.loop.fire()
    assert second.asked == [reader]
    reader.state(1, 1)
    second.alive = False
    subscription.streams.reopen()
    assert first.asked == [reader]


@pytest.mark.parametrize("brokers", [1, 2])
def test_a_partition_that_a_member_does_not_know_yet_may_be_at_another(brokers):
    members = [Member(f"b{number}") for number in range(brokers)]
    core = Core(*members)
    subscription = opened(core)
    (reader,) = subscription.readers.values()
    unknown = messages.failure(PartitionNotFound("It is not here."), "subscribe")
    reader.ended(messages.StreamEnded(next_offset=0, failure=unknown))
    core.loop.fire()
    assert reader.finished == (brokers == 1)
    assert members[-1].asked == [reader]


class Restless(Reader):
    """A reader that another thread looks at while the loop finds one more partition."""

    def __init__(self, owner, *place):
        self._readers = owner.readers
        super().__init__(owner, *place)

    @property
    def topic(self):
        partition = len(self._readers)
        self._readers[1, partition] = Reader(self.owner, "t", 1, partition)
        return "t"

    @topic.setter
    def topic(self, name):
        pass


@pytest.mark.parametrize(
    "look",
    [
        lambda core: Subscription(core, queue.SimpleQueue()).topics,
        lambda core: core.statistics(),
        lambda core: core.positions(None),
        lambda core: core.ends(),
    ],
    ids=["topics", "statistics", "positions", "ends"],
)
def test_a_subscription_may_be_looked_at_while_partitions_are_found(look):
    core = Core(Member("only"))
    core.timeout = 10.0
    subscription = opened(core)
    subscription.readers[1, 0] = Restless(subscription, "t", 1, 0)
    assert look(subscription)
    assert len(subscription.readers) > 1


def test_a_closed_subscription_asks_nobody_again():
    only = Member("only")
    core = Core(only)
    subscription = opened(core)
    only.refuse()
    asyncio.run(subscription.close())
    assert core.loop.pending == []


class Refusing(Member):
    """In a real client: a broker that is there, and can serve nobody."""

    relayed = False

    answer = REFUSED

    def open_stream(self, wish, reader):
        asyncio.get_running_loop().call_soon(reader.ended, self.answer)
        return super().open_stream(wish, reader)

    async def request(self, _):
        raise NotReady("Not yet.")

    def excuse(self, seconds):
        pass

    def look(self, *, impatient):
        pass

    def close(self):
        pass


class Behind(Refusing):
    """A broker that has not heard of the last messages, and takes what it has for all there is."""

    answer = messages.StreamEnded(
        next_offset=0, failure=messages.failure(OffsetOutOfRange("It ends at 0.", start=0, end=0), "subscribe")
    )


def join_chain(core, topic, member):
    """Make a member the tail of a real topic, where readers go first."""
    core.links.learned([member.broker])
    core.links._links[member.broker.id] = member
    route = core.routes[topic]
    (partition,) = route.partitions
    longer = messages.PartitionRoute(epoch=partition.epoch, chain=[*partition.chain, member.broker.id])
    core.routes[topic] = msgspec.structs.replace(route, partitions=[longer])


def test_a_reader_that_is_refused_moves_to_a_member_that_serves(shared):
    async def work():
        async with stentor.connect_async(shared.url) as client:
            await client.publish("moves", "x")
            refusing = Refusing("refusing")
            join_chain(client._core, "moves", refusing)
            subscription = await client.subscribe("moves", start="earliest")
            assert (await subscription.get(timeout=5)).value == b"x"
            assert len(refusing.asked) == 1

    asyncio.run(work())


def test_an_offset_that_one_member_has_not_heard_of_is_read_from_another(shared, client):
    """Published by somebody else: this client has seen nothing of it, and cannot tell the member so."""
    offset = [client.publish("behind", f"{number}").offset for number in range(3)][-1]

    async def work():
        async with stentor.connect_async(shared.url) as reading:
            await reading.find_topic("behind")
            behind = Behind("behind")
            join_chain(reading._core, "behind", behind)
            subscription = await reading.subscribe("behind", start=offset)
            assert (await subscription.get(timeout=5)).value == b"2"
            assert len(behind.asked) == 1

    asyncio.run(work())


def test_an_offset_beyond_the_end_is_refused_with_the_end_that_the_head_knows(shared, client):
    client.publish("beyond", "x")

    async def work():
        async with stentor.connect_async(shared.url) as reading:
            await reading.find_topic("beyond")
            join_chain(reading._core, "beyond", Behind("behind"))
            subscription = await reading.subscribe("beyond", start=2)
            with pytest.raises(OffsetOutOfRange, match="0 to 1; 2 was asked") as refused:
                await subscription.get(timeout=5)
            assert refused.value.end == 1

    asyncio.run(work())


def test_a_reader_says_what_its_client_has_seen(client):
    """A member that lacks one's own message then knows that it is behind, and waits instead of refusing."""
    receipt = client.publish("own", "x")
    with client.subscribe("own", start=receipt.offset) as subscription:
        (reader,) = subscription._core.readers.values()
        assert reader.committed >= receipt.offset + 1
        assert subscription.get(timeout=5).value == b"x"
