"""Transactions of groups on one broker: positions and outputs count together, or not at all."""

import asyncio
from array import array
from contextlib import suppress

import msgspec
import pyarrow as pa
import pytest

import stentor
from stentor import limits
from stentor.broker.groups import transactions
from stentor.broker.long_requests import LongRequests
from stentor.client import transaction_copies
from stentor.client.transaction_copies import TransactionCopies
from stentor.client.transaction_core import MemberTransactions
from stentor.core import group_limits
from stentor.core.dedupe import LASTING
from stentor.errors import (
    Closed,
    DeadlineExceeded,
    GroupInUse,
    InvalidArgument,
    LimitExceeded,
    NotReady,
    PublishError,
    StaleGeneration,
    TopicNotFound,
    TopicReserved,
    UnknownOutcome,
)
from stentor.wire import arrow_body, batch, group_messages
from stentor.wire.frames import Kind
from stentor.wire.header import HEADER_BYTES, check_header


@pytest.fixture
def orders(client):
    """A topic with two partitions, and ten messages in each; and one for what is made of them."""
    client.create_topic("orders", partitions=2)
    client.create_topic("invoices", partitions=2)
    with client.producer("orders") as producer:
        for number in range(20):
            producer.send(f"order {number}", key=f"k{number}", partition=number % 2)
    return client


def invoices(client, topic="invoices"):
    return sorted(message.value.decode() for message in client.read(topic))


def positions(client, group="billing"):
    return {each.partition: each.position for each in client.describe_group(group).partitions}


WANTED = sorted(f"invoice of order {number}" for number in range(20))


def bill(group, count):
    for _ in range(count):
        message = group.get(timeout=10)
        with group.transaction() as out:
            out.send("invoices", f"invoice of {message.value.decode()}", key=message.key)


def test_what_is_taken_and_what_is_sent_count_together(orders):
    with orders.group("billing", "orders") as group:
        bill(group, 20)
        assert invoices(orders) == WANTED
        assert positions(orders) == {0: 10, 1: 10}


def test_a_loop_of_transactions(orders):
    with orders.group("billing", "orders") as group:
        for number, message in enumerate(group, 1):
            with group.transaction() as out:
                out.send("invoices", f"invoice of {message.value.decode()}", key=message.key)
            if number == 20:
                break
    assert invoices(orders) == WANTED


def test_several_messages_in_one_transaction(orders):
    with orders.group("billing", "orders") as group:
        for _ in range(4):
            with group.transaction() as out:
                for _ in range(5):
                    message = group.get(timeout=10)
                    out.send("invoices", f"invoice of {message.value.decode()}", headers={"a": "b"})
                    out.send("audit", message.value)
    assert invoices(orders) == WANTED
    assert len(invoices(orders, "audit")) == 20


def test_nothing_counts_when_the_block_raises_and_messages_come_again(orders):
    with orders.group("billing", "orders") as group:
        bill(group, 3)
        with suppress(ValueError), group.transaction() as out:
            message = group.get(timeout=10)
            out.send("invoices", message.value)
            group.get(timeout=10)
            raise ValueError("broken")
        assert len(invoices(orders)) == 3
        bill(group, 17)
    assert invoices(orders) == WANTED


def test_the_message_in_work_comes_again_when_its_transaction_fails(orders):
    seen = []
    with orders.group("billing", "orders") as group:
        for message in group:
            seen.append(message.value)
            with suppress(ValueError), group.transaction() as out:
                out.send("invoices", b"invoice of " + message.value, key=message.key)
                if len(seen) == 4:
                    raise ValueError("broken")
            if len(seen) == 21:
                break
    assert seen.count(seen[3]) == 2
    assert len(set(seen)) == 20
    assert invoices(orders) == WANTED


def test_commits_wait_while_a_transaction_is_open(orders, monkeypatch, wait_until):
    monkeypatch.setattr(group_limits, "GROUP_COMMIT_S", 0.02)
    with orders.group("billing", "orders") as group, group.transaction() as out:
        for _ in range(20):
            out.send("invoices", b"invoice of " + group.get(timeout=10).value)
        beats = group._core.tie.life.number
        wait_until(lambda: group._core.tie.life.number > beats + 1)  # after a second: commits came between
        assert not any(positions(orders).values())
        assert invoices(orders) == []
    assert invoices(orders) == WANTED


def test_arrow_batches_in_transactions(orders):
    with orders.group("billing", "orders") as group:
        taken = 0
        for batch in group.batches():
            with group.transaction() as out:
                for value in batch.column("value").to_pylist():
                    out.send("invoices", b"invoice of " + value)
            taken += batch.num_rows
            if taken == 20:
                break
    assert invoices(orders) == WANTED


def test_async(local, orders):
    async def work():
        async with stentor.connect_async(local.url) as client, client.group("billing", "orders") as group:
            for _ in range(20):
                message = await group.get(timeout=10)
                async with group.transaction() as out:
                    await out.send("invoices", b"invoice of " + message.value)

    asyncio.run(work())
    assert invoices(orders) == WANTED


def die_after(monkeypatch, count):
    """The member publishes some of its outputs, and is gone."""
    publish = TransactionCopies._publish

    async def dying(self, topic, output):
        dying.left -= 1
        if dying.left < 0:
            await asyncio.get_running_loop().create_future()
        await publish(self, topic, output)

    dying.left = count
    monkeypatch.setattr(TransactionCopies, "_publish", dying)


def send_three(group, value):
    with group.transaction(timeout=0.3) as out:
        out.send("invoices", b"first of " + value, partition=0)
        out.send("invoices", b"second of " + value, partition=1)
        out.send("audit", b"third of " + value)


@pytest.mark.parametrize(
    "copied", [pytest.param(0, marks=pytest.mark.long), 1, pytest.param(2, marks=pytest.mark.long)]
)
def test_whoever_comes_next_finishes_what_a_lost_member_left(orders, local, monkeypatch, copied):
    """Its handler is not called again, and nothing is written twice."""
    lost = stentor.connect(local.url, name="lost", timeout=1)
    group = lost.group("billing", "orders")
    message = group.get(timeout=10)
    with monkeypatch.context() as dying:
        die_after(dying, copied)
        with pytest.raises(DeadlineExceeded, match="is committed"):
            send_three(group, message.value)
    assert orders.describe_group("billing").unfinished == 1
    abandon(lost)
    with orders.group("billing", "orders") as heir:
        rest = [heir.get(timeout=10) for _ in range(19)]
        assert message.value not in [each.value for each in rest]
    assert invoices(orders) == sorted([f"{n} of {message.value.decode()}" for n in ("first", "second")])
    assert invoices(orders, "audit") == [f"third of {message.value.decode()}"]
    assert orders.describe_group("billing").unfinished == 0


def abandon(client):
    """Close its connections without a word and end its thread, as a killed process does."""
    core = client._core

    async def cut():
        core.closed = True  # it connects no more
        await core.home.end()
        for link in core.links.alive():
            link.connection.abort()

    asyncio.run_coroutine_threadsafe(cut(), core.loop).result()
    client._thread.stop()


def test_outputs_of_a_deleted_topic_are_dropped_and_the_group_goes_on(orders, local, monkeypatch):
    lost = stentor.connect(local.url, name="lost", timeout=1)
    group = lost.group("billing", "orders")
    message = group.get(timeout=10)
    with monkeypatch.context() as dying:
        die_after(dying, 0)
        with pytest.raises(DeadlineExceeded):
            send_three(group, message.value)
    abandon(lost)
    with pytest.raises(GroupInUse, match="transactions"):
        wait_for_nobody(orders)
    orders.delete_topic("audit")
    with orders.group("billing", "orders") as heir:
        assert len([heir.get(timeout=10) for _ in range(19)]) == 19
    assert len(invoices(orders)) == 2
    orders.delete_group("billing")


def wait_for_nobody(client):
    """Delete the group once it has no members."""
    while True:
        try:
            client.delete_group("billing")
        except GroupInUse as error:
            if "members" not in error.message:
                raise
        else:
            return


def test_a_partition_that_is_given_away_waits_for_the_end_of_its_transaction(orders, local, wait_until):
    other = stentor.connect(local.url, name="other")
    with orders.group("billing", "orders") as group:
        with group.transaction() as out:
            for _ in range(20):
                out.send("invoices", b"invoice of " + group.get(timeout=10).value)
            second = other.group("billing", "orders")
            wait_until(lambda: len(group.assignment) == 1, "it should let go of one")
            assert second.assignment == []
        wait_until(lambda: len(second.assignment) == 1, "the other one has it")
        with pytest.raises(DeadlineExceeded):
            second.get(timeout=0.2)
    other.close()
    assert invoices(orders) == WANTED


def test_what_a_lost_lease_took_away_fails_the_transaction(orders):
    with orders.group("billing", "orders") as group:
        out = group.transaction()
        with pytest.raises(StaleGeneration), out:
            take_and_lose(orders, group, out)
        assert invoices(orders) == []


def take_and_lose(client, group, out):
    out.send("invoices", group.get(timeout=10).value)
    client._core.wait_for(as_coroutine(group._core.tie._drop_all))


async def as_coroutine(work):
    work()


def test_one_at_a_time_and_nothing_else_inside(orders):
    with orders.group("billing", "orders") as group, group.transaction() as out:
        for work in (
            group.transaction().__enter__,
            group.commit,
            group.pause,
            group.resume,
            lambda: group.seek("orders", 0, "earliest"),
            lambda: group.run(print),
            out.__enter__,
        ):
            with pytest.raises(InvalidArgument):
                work()


def test_it_is_used_inside_its_block(orders):
    with orders.group("billing", "orders") as group:
        out = group.transaction()
        with pytest.raises(InvalidArgument, match="not open"):
            out.send("invoices", b"x")
        with out:
            pass
        with pytest.raises(InvalidArgument, match="not open"):
            out.send("invoices", b"x")


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        ({"topic": "invoices", "value": b"x" * group_limits.TRANSACTION_BYTES_MAX}, LimitExceeded),
        ({"topic": "invoices", "value": 5}, InvalidArgument),
        ({"topic": "invoices", "value": b"x", "partition": 2}, InvalidArgument),
        ({"topic": "no such name!", "value": b"x"}, InvalidArgument),
        ({"topic": "_stentor.cursors", "value": b"x"}, TopicReserved),
        ({"topic": "a.table", "value": b"x", "key": b"k"}, InvalidArgument),
    ],
)
def test_mistakes_are_told_and_nothing_counts(orders, sent, error):
    orders.create_topic("a.table", kind="table")
    with orders.group("billing", "orders") as group:
        message = group.get(timeout=10)
        with pytest.raises(error), group.transaction() as out:
            out.send(**sent)
        assert message.value in [group.get(timeout=10).value for _ in range(20)]


def ask(client, request, kind=None):
    core = client._core

    async def asked():
        link = await core.ready_link()
        return await (link.request(request) if kind is None else link.request(request, kind))

    return core.wait_for(asked())


def test_numbers_of_a_member_only_grow(orders):
    with orders.group("billing", "orders") as group:
        bill(group, 3)
        tie = group._core.tie
        (key, since), *_ = tie.life.holding.items()
        position = group_messages.GroupPosition(topic_id=key[0], partition=key[1], offset=1, since=since)

        def commit(number, member=group.member, done=3):
            request = group_messages.CommitTransaction(
                group="billing", member=member, number=number, positions=[position], done=done
            )
            ask(orders, request, Kind.TRANSACTION)

        with pytest.raises(StaleGeneration, match="too late"):
            commit(2)
        with pytest.raises(StaleGeneration, match="does not belong"):
            commit(9, "somebody")
        commit(7)
        commit(7)  # said twice
        with pytest.raises(InvalidArgument, match="not finished"):
            commit(8)
        ask(orders, group_messages.EndTransaction(group="billing", author=group.member, number=7))
        commit(8)


def test_transactions_survive_a_restart(orders, local, monkeypatch):
    lost = stentor.connect(local.url, name="lost", timeout=1)
    group = lost.group("billing", "orders")
    value = group.get(timeout=10).value
    with monkeypatch.context() as dying:
        die_after(dying, 1)
        with pytest.raises(DeadlineExceeded):
            send_three(group, value)
    abandon(lost)
    local.stop()
    local.start()
    with orders.group("billing", "orders") as heir:
        assert value not in [heir.get(timeout=20).value for _ in range(19)]
    assert len(invoices(orders)) == 2
    assert len(invoices(orders, "audit")) == 1


def test_transactions_are_there_once_every_broker_knows_them(orders, monkeypatch):
    desk = "stentor.broker.groups.transactions.TransactionDesk._check"

    def refuse(self, group):
        raise NotReady("The cluster is being upgraded.")

    with orders.group("billing", "orders") as group:
        message = group.get(timeout=10)
        with monkeypatch.context() as old:
            old.setattr(desk, refuse)
            with pytest.raises(DeadlineExceeded, match="being upgraded"), group.transaction(timeout=0.3) as out:
                out.send("invoices", message.value)
        bill(group, 20)
    assert invoices(orders) == WANTED


def test_a_transaction_that_is_committed_too_late_may_count(orders, monkeypatch):
    """Its member does not go on as if it had been refused."""
    publish = transactions.publish_record

    def unheard(partition, encoded):
        publish(partition, encoded)
        return partition.loop.create_future()

    with orders.group("billing", "orders") as group:
        message = group.get(timeout=10)
        with monkeypatch.context() as slow:
            slow.setattr(limits, "CURSOR_MOVE_S", 0.05)
            slow.setattr(transactions, "publish_record", unheard)
            with pytest.raises(UnknownOutcome), group.transaction(timeout=0.4) as out:
                out.send("invoices", b"invoice of " + message.value)
        bill(group, 19)
    assert invoices(orders) == WANTED


def test_who_leaves_in_the_middle_of_a_transaction_leaves_nobody_behind(orders, local, monkeypatch):
    """It is another member by then; the one that it was has its partitions."""

    async def cancelled():
        asked = asyncio.Event()

        async def ask(self, request, about):
            about.doubtful = True
            asked.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(MemberTransactions, "_ask", ask)
        async with stentor.connect_async(local.url) as client:

            async def work():
                async with client.group("billing", "orders") as group, group.transaction() as out:
                    await out.send("invoices", (await group.get(timeout=10)).value)

            task = asyncio.create_task(work())
            await asked.wait()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    asyncio.run(cancelled())
    assert orders.describe_group("billing").members == []


def test_what_a_failed_transaction_took_of_a_partition_that_goes_away_is_not_done(orders, local, wait_until):
    """It took whole deliveries; whoever gets the partition next begins before them."""
    other = stentor.connect(local.url, name="other")
    group = orders.group("billing", "orders")
    with suppress(ValueError), group.transaction():
        for _ in range(20):
            group.get(timeout=10)
        with suppress(DeadlineExceeded):
            group.get(timeout=0.05)  # what is behind all deliveries
        second = other.group("billing", "orders")
        wait_until(lambda: len(group.assignment) == 1, "it should let go of one")
        raise ValueError("broken")
    wait_until(lambda: len(second.assignment) == 1, "the other one has it")
    bill(second, 10)
    bill(group, 10)
    assert invoices(orders) == WANTED
    group.close()
    other.close()


def test_a_partition_that_was_paused_goes_on_behind_its_transactions(orders):
    with orders.group("billing", "orders") as group:
        message = group.get(timeout=10)
        bill_this(group, message)
        group.pause("orders", message.partition)
        bill(group, 10)
        group.resume()
        bill(group, 9)
    assert invoices(orders) == WANTED


def bill_this(group, message):
    with group.transaction() as out:
        out.send("invoices", f"invoice of {message.value.decode()}", key=message.key)


def test_a_lease_that_ends_while_a_transaction_is_decided(orders, monkeypatch):
    """What is read again begins behind it, although the member is the owner as before."""
    decide = MemberTransactions._decide

    async def losing(self, *arguments):
        tie = self._owner.tie
        tie.life.lease_ends = 0.0
        tie._look_at_lease()
        tie._news.set()
        while not self._owner.readers:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)  # it reads again, from where the transaction began
        await decide(self, *arguments)

    with orders.group("billing", "orders") as group:
        with monkeypatch.context() as late:
            late.setattr(MemberTransactions, "_decide", losing)
            bill(group, 1)
        bill(group, 19)
        with pytest.raises(DeadlineExceeded):
            group.get(timeout=0.3)


def test_a_lease_that_ends_while_a_transaction_is_committed_doubles_nothing(orders, monkeypatch, wait_until):
    """The member gets its partitions back before the transaction is decided, and begins where the group was."""
    with orders.group("billing", "orders") as group:
        core, message = group._core, group.get(timeout=10)
        ask = type(core.transactions)._ask

        async def slow(self, request, asked):
            core.tie.life.lease_ends = 0.0
            core.tie._look_at_lease()
            core.tie._news.set()
            while len(core.readers) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await ask(self, request, asked)

        with monkeypatch.context() as late:
            late.setattr(type(core.transactions), "_ask", slow)
            bill_this(group, message)
        bill(group, 19)
    assert invoices(orders) == WANTED


@pytest.mark.parametrize("fails", [True, False])
def test_a_partition_goes_away_between_its_message_and_the_transaction(orders, fails):
    """The message is a part of it all the same: its position is committed with its output, or it comes again."""
    with orders.group("billing", "orders") as group:
        message = group.get(timeout=10)
        tie = group._core.tie
        (key,) = [key for key in tie.life.holding if key[1] == message.partition]
        orders._core.wait_for(as_coroutine(lambda: tie._move(key, tie._let_go(key))))
        with suppress(ValueError), group.transaction() as out:
            out.send("invoices", b"invoice of " + message.value)
            assert (message.topic, message.partition) not in group.assignment
            if fails:
                raise ValueError("broken")
        assert (positions(orders).get(message.partition) or 0) == (0 if fails else 1)
        bill(group, 20 if fails else 19)
    assert invoices(orders) == WANTED


def test_a_message_that_is_not_the_members_any_more_begins_no_transaction(orders, wait_until):
    with orders.group("billing", "orders") as group:
        message = group.get(timeout=10)
        orders._core.wait_for(as_coroutine(group._core.tie.begin_anew))
        wait_until(lambda: len(group.assignment) == 2, "it should be back")
        with pytest.raises(StaleGeneration, match="not belong"):
            bill_this(group, message)
        bill(group, 20)
    assert invoices(orders) == WANTED


def hold_copies(monkeypatch):
    """What members send out waits until the list is emptied."""
    publish, held = TransactionCopies._publish, [True]

    async def waiting(self, topic, output):
        while held:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await publish(self, topic, output)

    monkeypatch.setattr(TransactionCopies, "_publish", waiting)
    return held


def test_a_message_comes_again_when_its_transaction_cannot_begin(orders, monkeypatch):
    with orders.group("billing", "orders") as group:
        message = group.get(timeout=10)
        held = hold_copies(monkeypatch)
        with pytest.raises(DeadlineExceeded, match="is committed"), group.transaction(timeout=0.1) as out:
            out.send("invoices", b"invoice of " + message.value)
        message = group.get(timeout=10)
        with pytest.raises(DeadlineExceeded, match="is committed"), group.transaction(timeout=0.1):
            pass
        held.clear()
        bill(group, 19)
    assert invoices(orders) == WANTED


def test_outputs_that_a_topic_refuses_are_tried_again_before_the_next_transaction(orders, monkeypatch):
    """The member is not stuck once it takes them."""
    with orders.group("billing", "orders") as group:
        message = group.get(timeout=10)
        with monkeypatch.context() as refusing:

            async def refuse(self, topic, output):
                raise InvalidArgument("not now")

            refusing.setattr(TransactionCopies, "_publish", refuse)
            with pytest.raises(PublishError, match="is committed"):
                bill_this(group, message)
            message = group.get(timeout=10)
            with pytest.raises(PublishError, match="is committed"):
                bill_this(group, message)
        bill(group, 19)
    assert invoices(orders) == WANTED


def test_who_waits_for_outputs_is_told_that_the_group_was_closed(local, orders, monkeypatch):
    monkeypatch.setattr(group_limits, "GROUP_GRACE_S", 0.05)
    held = hold_copies(monkeypatch)

    async def bill_one(group):
        message = await group.get(timeout=10)
        async with group.transaction() as out:
            await out.send("invoices", b"invoice of " + message.value)

    async def work():
        async with stentor.connect_async(local.url) as client:
            group = await client.group("billing", "orders")
            billing = asyncio.create_task(bill_one(group))
            while group._core.transactions._copying is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await group.close()
            with pytest.raises(Closed, match="is committed"):
                await billing

    asyncio.run(work())
    held.clear()
    with orders.group("billing", "orders") as heir:
        bill(heir, 19)
    assert invoices(orders) == WANTED


def test_when_one_output_fails_nobody_goes_on_with_the_others(monkeypatch):
    """Whoever tries again sends all of them; a copy that was left behind would make producers after the end."""
    left = []

    async def publish(self, topic, output):
        if topic == "gone":
            raise TopicNotFound("gone")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            left.append(topic)

    async def fail():
        with pytest.raises(TopicNotFound):
            await TransactionCopies(None).publish([("waits", b""), ("gone", b"")])
        return list(left)

    monkeypatch.setattr(TransactionCopies, "_publish", publish)
    assert asyncio.run(fail()) == ["waits"]


def test_an_old_output_that_is_not_in_the_log_any_more_was_finished_by_somebody(orders, monkeypatch):
    """Its author has gone on, and retention has deleted it: who still copies it must not try for ever."""
    with orders.group("billing", "orders") as group:
        bill(group, 1)
        key, mine = next(iter(group._core.tie.life.holding)), group._core.transactions

        async def refuse(producer, header, output):
            raise UnknownOutcome("It was not found in the log.", reason="old_generation")

        monkeypatch.setattr(transaction_copies, "_acknowledged", refuse)
        route = orders._core.routes["invoices"]
        header = batch.address(
            batch.encode_at(5, [b"k"], [b"v"]), topic_id=route.id, partition=0, producer_id=7, generation=1, sequence=0
        )

        async def publish():
            async with asyncio.timeout(5):
                await mine._publish(mine._copies, "somebody", 1, [("invoices", bytes(header))], key)

        orders._core.wait_for(publish())


def test_a_transaction_that_became_too_large_is_refused_without_being_sent(orders):
    """Its headers take more room than it looked: a broker would close the connection, which others use, too."""
    with orders.group("billing", "orders") as group:
        link = orders._core.link
        message = group.get(timeout=10)
        with pytest.raises(LimitExceeded, match="sends"), group.transaction(timeout=2) as out:
            send_many_headers(out)
        assert link.alive
        assert message.value in [group.get(timeout=10).value for _ in range(20)]


def send_many_headers(out):
    for _ in range(200):
        out.send("invoices", b"", headers=[("a", b"")] * limits.MESSAGE_HEADERS_MAX, partition=0)


def test_one_that_is_over_takes_nothing_more(orders):
    """It would be sent by nobody."""
    with orders.group("billing", "orders") as group:
        with group.transaction() as first:
            pass
        with group.transaction(), pytest.raises(InvalidArgument, match="not open"):
            first.send("invoices", b"x")


def test_async_runs_wait_for_the_end_of_a_transaction(local, orders):
    async def work():
        async with (
            stentor.connect_async(local.url) as client,
            client.group("billing", "orders") as group,
            group.transaction(),
        ):
            with pytest.raises(InvalidArgument, match="inside a transaction"):
                await group.run(print)

    asyncio.run(asyncio.wait_for(work(), 10))


def test_many_members_share_a_connection(local, orders, monkeypatch):
    """More of them commit at one time than a broker takes from one connection."""
    monkeypatch.setattr(group_limits, "TRANSACTIONS_UNDER_WAY_MAX", 2)

    async def work():
        async with stentor.connect_async(local.url) as client:
            groups = [await client.group(f"g{number}", "orders") for number in range(6)]

            async def one(group):
                message = await group.get(timeout=10)
                async with group.transaction() as out:
                    await out.send("invoices", message.value)

            await asyncio.gather(*map(one, groups))

    asyncio.run(work())
    assert len(invoices(orders)) == 6


def test_what_was_left_for_a_deleted_topic_is_finished_by_any_member(orders, local, monkeypatch):
    orders.create_topic("others")
    lost = stentor.connect(local.url, name="lost", timeout=1)
    group = lost.group("billing", ["orders", "others"])
    message = group.get(timeout=10)
    with monkeypatch.context() as dying:
        die_after(dying, 0)
        with pytest.raises(DeadlineExceeded):
            send_three(group, message.value)
    abandon(lost)
    orders.delete_topic("orders")
    with orders.group("billing", "others") as heir:
        orders.publish("others", b"x")
        heir.get(timeout=10)
        assert len(invoices(orders)) == 2
    wait_for_nobody(orders)


def test_outputs_are_sent_under_ids_that_anybody_may_use(orders):
    """Nobody could publish them otherwise, and the group would stand still."""
    with orders.group("billing", "orders") as group:
        (key, since), *_ = group._core.tie.life.holding.items()
        position = group_messages.GroupPosition(topic_id=key[0], partition=key[1], offset=1, since=since)
        orders.publish("invoices", b"x")
        encoded = batch.encode_at(5, [b"k"], [b"v"])
        header = batch.address(
            encoded,
            topic_id=orders._core.routes["invoices"].id,
            partition=0,
            producer_id=LASTING | 5,
            generation=1,
            sequence=0,
        )
        request = group_messages.CommitTransaction(
            group="billing",
            member=group.member,
            number=1,
            positions=[position],
            outputs=[("invoices", bytes(header) + bytes(encoded.body))],
        )
        with pytest.raises(InvalidArgument, match="numbered"):
            ask(orders, request, Kind.TRANSACTION)


def outputs_of(client, count, *, partitions=None, rows=None):
    """Batches of one producer to the partitions of `wide`."""
    encoded = batch.encode_at(5, [b"k"], [b"v"]) if rows is None else batch.encode_arrow(rows, compression="zstd")
    topic = client._core.routes["wide"].id
    found = []
    for number in range(count):
        header = batch.address(
            encoded,
            topic_id=topic,
            partition=number if partitions is None else partitions[number],
            producer_id=7,
            generation=1,
            sequence=0,
        )
        found.append(("wide", bytes(header) + bytes(encoded.body)))
    return found


def commit_outputs(client, group, outputs):
    (key, since), *_ = group._core.tie.life.holding.items()
    position = group_messages.GroupPosition(topic_id=key[0], partition=key[1], offset=1, since=since)
    request = group_messages.CommitTransaction(
        group="billing", member=group.member, number=1, positions=[position], outputs=outputs
    )
    ask(client, request, Kind.TRANSACTION)


def empty_rows(count):
    nothing = pa.nulls(count, pa.binary())
    columns = [
        arrow_body.timestamps_array(array("q", [5]) * count),
        nothing,
        nothing,
        arrow_body.headers_array(None, count),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_body.SCHEMA)


@pytest.fixture
def wide(orders):
    orders.create_topic("wide", partitions=20)
    orders.publish("wide", b"x")
    return orders


def test_two_outputs_for_one_partition_are_refused_before_any_is_read(wide, monkeypatch):
    """Each may expand to a million rows (C35)."""
    read = []
    monkeypatch.setattr(batch, "validate", lambda *output: read.append(output))
    with wide.group("billing", "orders") as group:
        group.get(timeout=10)
        with pytest.raises(InvalidArgument, match="one batch to each partition"):
            commit_outputs(wide, group, outputs_of(wide, 3, partitions=[0, 1, 0]))
    assert not read


def test_outputs_with_too_many_messages_are_refused_before_any_is_read(wide, monkeypatch):
    outputs = outputs_of(wide, 2, rows=empty_rows(limits.BATCH_MESSAGES_MAX // 2 + 1))
    read = []
    monkeypatch.setattr(batch, "validate", lambda *output: read.append(output))
    with wide.group("billing", "orders") as group:
        group.get(timeout=10)
        with pytest.raises(LimitExceeded, match="sends 1000002 messages"):
            commit_outputs(wide, group, outputs)
    assert not read


def test_outputs_that_expand_to_too_much_are_refused_before_that_is_done(wide, monkeypatch):
    outputs = outputs_of(wide, 3, rows=empty_rows(1_000))
    expanded = batch.expanded_bytes(check_header(outputs[0][1]), memoryview(outputs[0][1])[HEADER_BYTES:])
    assert expanded > 12_000 > len(outputs[0][1])
    read, validate = [], batch.validate

    def reading(output, header):
        if header.topic_id == wide._core.routes["wide"].id:
            read.append(header)
        validate(output, header)

    monkeypatch.setattr(batch, "validate", reading)
    with wide.group("billing", "orders") as group:
        group.get(timeout=10)
        with monkeypatch.context() as small:
            small.setattr(limits, "BATCH_EXPANDED_BYTES_MAX", expanded * 5 // 2)
            with pytest.raises(LimitExceeded, match="expands to"):
                commit_outputs(wide, group, outputs)
    assert len(read) == 2


def test_other_work_goes_on_while_outputs_are_read(wide, monkeypatch):
    """One output is a piece of a long request, and not the whole transaction."""
    pieces, walk = [], LongRequests.walk

    async def counted(self, whose, walking):
        def counting():
            found = walking
            while True:
                try:
                    next(found)
                except StopIteration as end:
                    return end.value
                pieces.append(1)
                yield

        return await walk(self, whose, counting())

    monkeypatch.setattr(LongRequests, "walk", counted)
    with wide.group("billing", "orders") as group:
        group.get(timeout=10)
        commit_outputs(wide, group, outputs_of(wide, 20))
    assert len(pieces) == 20


def test_a_topic_that_changes_while_outputs_are_read_is_judged_again(wide, monkeypatch):
    read = transactions.TransactionDesk._read_outputs

    def change(self, *about):
        topics = yield from read(self, *about)
        held = topics[0]
        self._catalogue.by_id[held.record.id] = self._catalogue.topics["wide"] = msgspec.structs.replace(held)
        return topics

    with wide.group("billing", "orders") as group:
        group.get(timeout=10)
        outputs = outputs_of(wide, 1)
        with monkeypatch.context() as changing:
            changing.setattr(transactions.TransactionDesk, "_read_outputs", change)
            with pytest.raises(NotReady, match="changed just now"):
                commit_outputs(wide, group, outputs)
        commit_outputs(wide, group, outputs)


def test_a_message_whose_partition_was_lost_before_the_transaction_began(orders):
    """It is handed out again; so its outputs must not count."""

    async def lapse():
        group._core.tie.life.lease_ends = 0.0
        group._core.tie._look_at_lease()
        group._core.tie._news.set()

    with orders.group("billing", "orders") as group:
        message = group.get(timeout=10)
        group._core.core.wait_for(lapse())  # its partition is read again, from this message on
        out = group.transaction()
        with pytest.raises(StaleGeneration), out:
            out.send("invoices", message.value)
        bill(group, 20)
    assert invoices(orders) == WANTED


def test_a_message_whose_partition_was_paused_counts_with_its_outputs(orders):
    with orders.group("billing", "orders") as group:
        message = group.get(timeout=10)
        group.pause()
        group.resume()
        bill_this(group, message)
        bill(group, 19)
    assert invoices(orders) == WANTED


def test_a_broker_that_fails_may_have_taken_a_transaction(orders, monkeypatch):
    publish = transactions.publish_record

    def break_down(partition, encoded):
        publish(partition, encoded)
        raise RuntimeError("broken")

    with orders.group("billing", "orders") as group:
        message = group.get(timeout=10)
        with monkeypatch.context() as broken:
            broken.setattr(transactions, "publish_record", break_down)
            with pytest.raises(UnknownOutcome):
                bill_this(group, message)
        bill(group, 19)
    assert invoices(orders) == WANTED
