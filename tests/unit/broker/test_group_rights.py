"""Who may act for a member of a group: the client that joined, and nobody who only knows its id (C36)."""

import msgspec
import pytest

import stentor
from stentor.broker.groups.heads import groups_of
from stentor.broker.groups.transactions import transactions_of
from stentor.client.identity import ProducerIdentity
from stentor.client.transaction_copies import TransactionCopies
from stentor.core.cursors import RECOVERY, partition_of
from stentor.core.dedupe import lasting_id
from stentor.core.holders import holder_of
from stentor.core.names import CURSORS_TOPIC
from stentor.errors import (
    GroupInUse,
    InvalidArgument,
    ProducerNotProven,
    PublishError,
    StaleGeneration,
    TopicReserved,
)
from stentor.wire import group_messages as m
from stentor.wire.frames import Kind

LAST_NUMBER = 2**63 - 1


@pytest.fixture
def orders(client):
    """A topic with two partitions, and ten messages in each; and one for what is made of them."""
    client.create_topic("orders", partitions=2)
    client.create_topic("invoices", partitions=2)
    with client.producer("orders") as producer:
        for number in range(20):
            producer.send(f"order {number}", key=f"k{number}", partition=number % 2)
    return client


@pytest.fixture
def stranger(local):
    """A client that reads everything that is shown, and holds nothing."""
    with stentor.connect(local.url, name="stranger") as other:
        yield other


def ask(client, request, kind=None):
    core = client._core

    async def asked():
        link = await core.ready_link()
        return await (link.request(request) if kind is None else link.request(request, kind))

    return core.wait_for(asked())


def states(local, group="billing"):
    """What the log of the group's partition says: groups and transactions."""
    (found,) = [
        partition
        for partition in local.inner.partitions.values()
        if partition.topic == CURSORS_TOPIC and partition.index == partition_of(group, 8)
    ]
    return groups_of(found), transactions_of(found)


def owned(group):
    """A position in a partition that a member owns, as anybody could read it from the log."""
    (topic_id, partition), since = min(group._core.tie.life.holding.items())
    return m.GroupPosition(topic_id=topic_id, partition=partition, offset=9, since=since)


def test_nobody_else_commits_for_a_member(orders, stranger):
    with orders.group("billing", "orders", auto_commit=False) as group:
        group.get(timeout=10)
        commit = m.CommitGroup(group="billing", member=group.member, positions=[owned(group)])
        with pytest.raises(StaleGeneration, match="Another client is this member"):
            ask(stranger, commit)
        transaction = m.CommitTransaction(group="billing", member=group.member, number=1, positions=[owned(group)])
        with pytest.raises(StaleGeneration, match="Another client is this member"):
            ask(stranger, transaction, Kind.TRANSACTION)
        assert {each.position for each in orders.describe_group("billing").partitions} == {None}
        ask(orders, commit)  # it is the client's own right, over whichever connection
        assert 9 in {each.position for each in orders.describe_group("billing").partitions}


def test_nobody_else_leaves_for_a_member(orders, stranger):
    with orders.group("billing", "orders") as group:
        with pytest.raises(StaleGeneration, match="Another client is this member"):
            ask(stranger, m.LeaveGroup(group="billing", member=group.member))
        assert [each.id for each in orders.describe_group("billing").members] == [group.member]
        assert len([group.get(timeout=10) for _ in range(20)]) == 20


def test_nobody_else_says_a_members_heartbeat(orders, stranger, wait_until):
    """With the highest number there is, all heartbeats of the member itself would come too late."""
    with orders.group("billing", "orders", silence=3) as group:
        beat = m.GroupHeartbeat(group="billing", member=group.member, number=LAST_NUMBER, topics=["orders"])
        with pytest.raises(StaleGeneration, match="Another client is this member"):
            ask(stranger, beat)
        member, beats = group.member, group._core.tie.life.number
        wait_until(lambda: group._core.tie.life.number > beats + 2, "its own heartbeats are answered")
        assert group.member == member


def test_a_member_keeps_its_rights_when_it_connects_again(orders):
    with orders.group("billing", "orders", auto_commit=False) as group:
        group.get(timeout=10)
        member = group.member
        orders._core.loop.call_soon_threadsafe(orders._core.link.close)
        group.commit()
        assert group.member == member


def send_both(out):
    for partition in range(2):
        out.send("invoices", f"decided {partition}", partition=partition)


@pytest.fixture
def decided(orders, monkeypatch):
    """A member whose transaction is decided, and whose output is in no topic yet."""
    with monkeypatch.context() as broken:

        async def refuse(self, *_):
            raise PublishError("not now")

        broken.setattr(TransactionCopies, "publish", refuse)
        with orders.group("billing", "orders") as group:
            message = group.get(timeout=10)
            with pytest.raises(PublishError), group.transaction() as out:
                out.send("invoices", "decided", key=message.key)
            yield group


def test_nobody_else_ends_a_transaction(decided, orders, stranger, local):
    (transaction,) = states(local)[1].unfinished("billing")
    end = m.EndTransaction(group="billing", author=decided.member, number=transaction.number)
    with pytest.raises(StaleGeneration, match="another client's"):
        ask(stranger, end)
    assert states(local)[1].unfinished("billing") == [transaction]
    with stranger.group("billing-2", "orders") as other:
        other.get(timeout=10)
        with pytest.raises(StaleGeneration, match="another client's"):
            ask(stranger, end)  # a member of another group is a stranger, too
    ask(orders, end)
    assert states(local)[1].unfinished("billing") == []


def test_nobody_else_is_shown_what_a_transaction_sends(decided, orders, stranger, local):
    (transaction,) = states(local)[1].unfinished("billing")
    ((topic_id, positions),) = transaction.positions.items()
    find = m.FindTransaction(group="billing", topic_id=topic_id, partition=next(iter(positions)))
    with pytest.raises(StaleGeneration, match="another client's"):
        ask(stranger, find)
    assert ask(orders, find).author == decided.member


def test_nobody_else_keeps_a_member_from_sending_what_it_decided(orders, stranger, local):
    """The producer id of what it sends stands in the headers of batches, which every reader gets."""
    with orders.group("billing", "orders", start="earliest") as group:
        for number in range(2):
            with group.transaction() as out:
                message = group.get(timeout=10)
                out.send("invoices", f"decided {number}", key=b"k")
            author = group._core.transactions._author
            assert author.producer_id == lasting_id(author.token)
            partition = next(index for index, end in orders.offsets("invoices").items() if end)
            forged = stranger.producer("invoices", generation=2**32 - 1, timeout=5)
            forged._core.send_as(ProducerIdentity(author.producer_id, 2**32 - 1))
            forged.send("forged", partition=partition)
            with pytest.raises(PublishError) as refused:
                forged.close()
            assert isinstance(refused.value.failed[0].error, ProducerNotProven)
    find = m.FindTransaction(group="billing", topic_id=0, partition=0, member=group.member)
    with pytest.raises(StaleGeneration, match="another client's"):
        ask(stranger, find)
    assert [m.value for m in orders.read("invoices")] == [b"decided 0", b"decided 1"]
    assert message is not None


def test_whoever_owns_the_partition_next_finishes_a_transaction(orders, stranger, local, monkeypatch):
    with monkeypatch.context() as broken:

        async def refuse(self, *_):
            raise PublishError("not now")

        broken.setattr(TransactionCopies, "publish", refuse)
        with orders.group("billing", "orders") as group:
            message = group.get(timeout=10)
            with pytest.raises(PublishError), group.transaction() as out:
                out.send("invoices", "decided", key=message.key)
    assert states(local)[1].unfinished("billing")
    with stranger.group("billing", "orders") as group:
        assert len([group.get(timeout=10) for _ in range(19)]) == 19
    assert [each.value for each in orders.read("invoices")] == [b"decided"]
    assert states(local)[1].unfinished("billing") == []


def test_whoever_had_to_finish_a_transaction_keeps_nobody_from_it(orders, stranger, local, monkeypatch):
    """It learns the token of the outputs, and sends something else with it. In one partition nothing stands in the way:
    what is written there is not written again.
    """
    with monkeypatch.context() as broken:

        async def refuse(self, *_):
            raise PublishError("not now")

        broken.setattr(TransactionCopies, "publish", refuse)
        with orders.group("billing", "orders") as group:
            group.get(timeout=10)
            out = group.transaction()
            with pytest.raises(PublishError), out:
                send_both(out)
            (transaction,) = states(local)[1].unfinished("billing")
            (topic_id, positions), *_ = transaction.positions.items()
            find = m.FindTransaction(group="billing", topic_id=topic_id, partition=next(iter(positions)))
            tokens = [ask(orders, msgspec.structs.replace(find, again=again)).token for again in range(2)]
            assert len(set(tokens)) == 2
    for token, generation in zip(tokens, (2**32 - 1, transaction.number), strict=True):
        with stranger.producer("invoices") as forged:
            forged._core.send_as(ProducerIdentity(lasting_id(token), generation, token=token))
            forged.send("forged", partition=1)
    with stranger.group("billing", "orders") as group:
        assert len([group.get(timeout=10) for _ in range(19)]) == 19
    found = [(each.partition, each.value) for each in orders.read("invoices")]
    assert sorted(found) == [(0, b"decided 0"), (1, b"decided 1"), (1, b"forged"), (1, b"forged")]
    assert states(local)[1].unfinished("billing") == []


def test_a_member_goes_on_whose_token_somebody_misused(orders, stranger):
    """Its partitions were owned by somebody else for a while, say."""
    with orders.group("billing", "orders", start="earliest") as group:
        for number in range(3):
            with group.transaction() as out:
                group.get(timeout=10)
                out.send("invoices", f"decided {number}", partition=0)
            token = group._core.transactions._author.token
            if number == 0:
                with stranger.producer("invoices") as forged:
                    forged._core.send_as(ProducerIdentity(lasting_id(token), 2**32 - 1, token=token))
                    forged.send("forged", partition=0)
    values = [each.value for each in orders.read("invoices")]
    assert values == [b"decided 0", b"forged", b"decided 1", b"decided 2"]


def test_nobody_moves_the_positions_of_a_group_that_has_members(orders, stranger, local):
    with orders.group("billing", "orders", auto_commit=False) as group:
        group.get(timeout=10)
        for move in (
            lambda: stranger.move_cursor("orders", "billing", {0: 5}),
            lambda: stranger.delete_cursor("orders", "billing"),
        ):
            with pytest.raises(GroupInUse, match="which has 1 members"):
                move()
    stranger.move_cursor("orders", "billing", {0: 5})
    with (
        stentor.connect(local.url, name=RECOVERY) as liar,
        orders.group("billing", "orders"),
        pytest.raises(GroupInUse),
    ):
        liar.move_cursor("orders", "billing", {0: 6})


def test_what_was_made_without_a_secret_is_bound_once_one_is_shown(orders, stranger, local, wait_until, monkeypatch):
    """While brokers are older (C27): nothing is written down, and the rule is the one that they know."""
    desk = local.inner.parts.shared.groups
    with monkeypatch.context() as older:
        older.setattr(type(desk), "_binds", False)
        with orders.group("billing", "orders", auto_commit=False, silence=3) as group:
            member = group.member
            assert states(local)[0].get("billing").members[member].holder == b""
            ask(stranger, m.CommitGroup(group="billing", member=member, positions=[owned(group)]))
            older.undo()
            mine = holder_of(orders._core.links.holder_secret)
            wait_until(lambda: states(local)[0].get("billing").members[member].holder == mine, "it is bound")
            with pytest.raises(StaleGeneration):
                ask(stranger, m.LeaveGroup(group="billing", member=member))
            older.setattr(type(desk), "_binds", False)  # what is bound stays bound
            beats = group._core.tie.life.number
            wait_until(lambda: group._core.tie.life.number > beats + 1, "it was heard")
            assert states(local)[0].get("billing").members[member].holder == mine


@pytest.mark.parametrize(
    "read",
    [
        lambda client: client.subscribe(CURSORS_TOPIC, start="earliest").get(timeout=5),
        lambda client: client.subscribe("_stentor.*", start="earliest").get(timeout=5),
        lambda client: list(client.read(["orders", CURSORS_TOPIC])),
        lambda client: list(client.read(CURSORS_TOPIC)),
        lambda client: list(client.read(CURSORS_TOPIC, partition=0, start=0, end=1)),
        lambda client: client.read(CURSORS_TOPIC).to_arrow(),
        lambda client: client.table(CURSORS_TOPIC).__enter__(),
        lambda client: client.queue(CURSORS_TOPIC).__enter__(),
        lambda client: client.group("readers", CURSORS_TOPIC, start="earliest").__enter__().get(timeout=5),
    ],
    ids=["subscribe", "pattern", "among others", "read", "bounded", "arrow", "table", "queue", "group"],
)
def test_no_way_of_reading_shows_what_the_log_of_groups_says(decided, stranger, read):
    with pytest.raises((TopicReserved, InvalidArgument)):
        read(stranger)


def test_patterns_for_everything_leave_the_log_of_groups_out(decided, stranger):
    for pattern in ("*", ">", "*.cursors"):
        assert all(message.topic != CURSORS_TOPIC for message in stranger.read(pattern))
