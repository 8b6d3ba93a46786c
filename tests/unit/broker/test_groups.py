"""Consumer groups on one broker: members share partitions, and go on where the group stopped."""

import asyncio
import itertools
import threading
import time
from contextlib import ExitStack, suppress

import pytest

import stentor
from stentor import limits
from stentor.broker.cluster import trust
from stentor.broker.groups import heads
from stentor.broker.groups.desk import GroupDesk
from stentor.broker.groups.heads import GroupHeads, groups_of
from stentor.broker.slices import Slices
from stentor.core import group_limits, refusals
from stentor.core.cursors import partition_of
from stentor.core.group_coordinator import ConnectionBroke, GroupCoordinator, GroupTick
from stentor.errors import (
    DeadlineExceeded,
    GroupInUse,
    GroupNotFound,
    InvalidArgument,
    LimitExceeded,
    NotReady,
    StaleGeneration,
)
from stentor.testing import broker
from stentor.wire import messages
from stentor.wire.group_messages import GroupPosition


@pytest.fixture
def filled(client):
    """A topic with four partitions, and ten messages in each."""
    client.create_topic("orders.eu", partitions=4)
    fill(client, "orders.eu")
    return client


def fill(client, topic, partitions=4, first=0, count=10):
    with client.producer(topic) as producer:
        for partition in range(partitions):
            for number in range(first, first + count):
                producer.send(f"{partition}-{number}", partition=partition)


@pytest.fixture
def another(local):
    """Makes further clients, each like a process of its own."""
    made = []

    def make(name="another"):
        made.append(stentor.connect(local.url, name=name))
        return made[-1]

    yield make
    for each in made:
        each.close()


def take(group, count):
    return [group.get(timeout=10) for _ in range(count)]


def values(messages):
    return sorted(message.value.decode() for message in messages)


EVERYTHING = sorted(f"{partition}-{number}" for partition in range(4) for number in range(10))


def test_one_member_gets_everything(filled):
    with filled.group("billing", "orders.*") as group:
        assert values(take(group, 40)) == EVERYTHING
        assert group.assignment == [("orders.eu", number) for number in range(4)]


def test_the_group_goes_on_where_it_stopped(filled):
    with filled.group("billing", "orders.*") as group:
        first = take(group, 25)
    with filled.group("billing", "orders.*") as group:
        assert values(first + take(group, 15)) == EVERYTHING
        assert filled.cursors("orders.eu")[0].name == "billing"


def test_what_is_in_work_when_a_handler_fails_is_handed_out_again(filled):
    seen = []

    def handle(message):
        seen.append(message)
        if len(seen) == 5:
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"), filled.group("billing", "orders.*") as group:
        group.run(handle)
    with filled.group("billing", "orders.*") as group:
        again = take(group, 36)
    assert values(seen[:4] + again) == EVERYTHING


def test_members_share_the_partitions(filled, another, wait_until):
    with filled.group("billing", "orders.*") as first:
        with another().group("billing", "orders.*") as second:
            wait_until(lambda: len(first.assignment) == len(second.assignment) == 2, "both have two")
            assert not set(first.assignment) & set(second.assignment)
        wait_until(lambda: len(first.assignment) == 4, "the first has everything again")


def test_a_partition_moves_without_repeats(filled, another, wait_until):
    with filled.group("billing", "orders.*") as first:
        taken = take(first, 20)
        with another().group("billing", "orders.*") as second:
            thread = threading.Thread(target=lambda: taken.extend(first))
            thread.start()
            wait_until(lambda: len(second.assignment) == 2, "it has its share")
            fill(filled, "orders.eu", first=10)
            mine = []
            deadline = time.monotonic() + 10
            while len(taken) + len(mine) < 80 and time.monotonic() < deadline:
                try:
                    mine.append(second.get(timeout=0.2))
                except TimeoutError:
                    continue
            assert values(taken + mine) == sorted(f"{p}-{n}" for p in range(4) for n in range(20))
            first.close()
            thread.join(10)


def test_batches_count_when_the_next_is_asked_for(filled):
    with filled.group("billing", "orders.*") as group:
        rows = 0
        for batch in group.batches():
            rows += batch.num_rows
            if rows == 40:
                break
    with filled.group("billing", "orders.*") as group, pytest.raises(TimeoutError):
        group.get(timeout=0.3)


def test_commits_by_hand(filled):
    with filled.group("billing", "orders.*", auto_commit=False) as group:
        first = take(group, 5)
        group.commit()
        take(group, 5)
    with filled.group("billing", "orders.*") as group:
        assert values(first + take(group, 35)) == EVERYTHING


def test_a_new_group_may_begin_at_the_end(filled):
    with filled.group("billing", "orders.*", start="latest") as group:
        fill(filled, "orders.eu", first=10, count=1)
        assert values(take(group, 4)) == ["0-10", "1-10", "2-10", "3-10"]


def test_topics_that_come_later_are_read_from_their_beginning(filled, wait_until):
    with filled.group("billing", "orders.*", start="latest") as group:
        filled.create_topic("orders.us", partitions=1)
        filled.publish("orders.us", "first")
        message = group.get(timeout=10)
        assert (message.topic, message.value) == ("orders.us", b"first")


def test_a_deleted_topic_is_let_go_of(filled, wait_until):
    with filled.group("billing", "orders.*") as group:
        take(group, 40)
        filled.delete_topic("orders.eu")
        wait_until(lambda: group.assignment == [], "it has nothing")
        filled.create_topic("orders.eu", partitions=1)
        filled.publish("orders.eu", "new")
        assert group.get(timeout=10).value == b"new"


def test_a_late_commit_is_refused(filled, another, wait_until):
    with filled.group("billing", "orders.*", auto_commit=False) as first:
        take(first, 40)
        first.commit()
        tie = first._core.tie
        held = dict(tie.life.holding)
        with another().group("billing", "orders.*") as second:
            wait_until(lambda: len(second.assignment) == 2, "it has its share")
            key = next(key for key in held if ("orders.eu", key[1]) in second.assignment)
            position = GroupPosition(topic_id=key[0], partition=key[1], offset=7, since=held[key])
            with pytest.raises(StaleGeneration, match="does not belong to this member"):
                filled._call(tie._send([position]))


def test_a_static_member_gets_its_partitions_back(filled, another, wait_until):
    first = another("first").group("billing", "orders.*", instance="one")
    with another("second").group("billing", "orders.*", instance="two") as second:
        wait_until(lambda: len(first.assignment) == len(second.assignment) == 2, "both have two")
        had, others = first.assignment, second.assignment
        first.close()
        with another("again").group("billing", "orders.*", instance="one") as again:
            wait_until(lambda: again.assignment == had, "it has its partitions back")
            assert second.assignment == others


def test_a_second_process_of_the_same_instance_takes_over(filled, another, wait_until):
    first = another("first").group("billing", "orders.*", instance="one")
    with another("again").group("billing", "orders.*", instance="one") as again:
        wait_until(lambda: len(again.assignment) == 4, "it has everything")
        with pytest.raises(stentor.MemberReplaced):
            first.get(timeout=10)


def test_one_loop_at_a_time(filled):
    with filled.group("billing", "orders.*") as group:
        for _ in group:
            with pytest.raises(InvalidArgument, match="One loop at a time"):
                group.get(timeout=1)
            break


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"name": "recorder"}, "cannot be called recorder"),
        ({"name": "a b"}, "not the name of a cursor"),
        ({"topics": []}, "at least one topic"),
        ({"topics": "a..b"}, "not a topic"),
        ({"start": "yesterday"}, "start"),
        ({"silence": 0.1}, "cannot be silent for 0.1 s"),
    ],
)
def test_mistakes_are_told(filled, options, sentence):
    call = {"name": "billing", "topics": "orders.*"} | options
    with pytest.raises(InvalidArgument, match=sentence):
        filled.group(call.pop("name"), call.pop("topics"), **call)


def test_groups_can_be_awaited(local):
    async def work():
        async with stentor.connect_async(local.url) as client:
            await client.create_topic("t", partitions=2)
            await client.publish("t", "x")
            async with client.group("g", "t") as group:
                async for message in group:
                    assert message.value == b"x"
                    break
                assert sum(group.lag().values()) == 1
            async with client.group("g", "t") as group:
                with pytest.raises(TimeoutError):
                    await group.get(timeout=0.2)
                assert sum(group.lag().values()) == 0

    asyncio.run(work())


def test_a_killed_member_is_replaced_soon(filled, another, wait_until):
    dying = another("dying")
    with filled.group("billing", "orders.*") as first:
        second = dying.group("billing", "orders.*")
        wait_until(lambda: len(second.assignment) == 2, "it has its share")
        core = dying._core
        core.loop.call_soon_threadsafe(lambda: [task.cancel() for task in second._core.tie._tasks])
        core.loop.call_soon_threadsafe(lambda: [link.connection.abort() for link in core.links.alive()])
        began = time.monotonic()
        wait_until(lambda: len(first.assignment) == 4, "the other one has everything")
        assert time.monotonic() - began < 10


def test_a_handler_longer_than_the_lease_expels_nobody(filled, another, wait_until):
    with filled.group("billing", "orders.*", silence=3.0) as first:
        message = first.get(timeout=10)
        threading.Event().wait(4)  # this is the handler: nothing can be waited for
        with another().group("billing", "orders.*"):
            assert first.member in {member.id for member in filled.describe_group("billing").members}
            first.commit()
            assert filled.describe_group("billing").lag == 39
        assert message.offset == 0


def test_operators_see_groups(filled):
    assert filled.groups() == []
    with pytest.raises(GroupNotFound):
        filled.describe_group("billing")
    with filled.group("billing", "orders.*") as group:
        take(group, 10)
        group.commit()
        found = filled.describe_group("billing")
        assert found.lag == 30
        assert [member.id for member in found.members] == [group.member]
        assert len(found.members[0].partitions) == 4
        with pytest.raises(GroupInUse):
            filled.delete_group("billing")
        with pytest.raises(GroupInUse):
            filled.reset_group("billing", "earliest")
    assert [each.name for each in filled.groups()] == ["billing"]
    assert filled.reset_group("billing", "latest").lag == 0
    filled.delete_group("billing")
    assert filled.groups() == []
    assert filled.cursors("orders.eu") == []


def test_groups_survive_a_restart(filled, local, wait_until):
    with filled.group("billing", "orders.*") as group:
        first = take(group, 20)
        group.commit()
        local.stop()
        local.start()
        assert values(first + take(group, 20)) == EVERYTHING


@pytest.fixture
def before(monkeypatch):
    """Every broker is of the version before: it knows one feature level less."""
    monkeypatch.setattr(trust, "LEVEL_KNOWN", trust.GROUPS - 1)
    return monkeypatch


def test_groups_are_there_once_every_broker_knows_them(etcd, before, tmp_path, wait_until):
    """C27: an older broker would not know who owns what when it becomes the head."""
    settings = {"coordination": f"{etcd.url}/groups", "broker_id": "b0"}
    with broker(tmp_path / "data", **settings) as local, local.client() as client:
        client.create_topic("t")
        client.move_cursor("t", "other", {0: 0})  # the internal topic is there before groups are known
        with pytest.raises(DeadlineExceeded, match="The cluster is being upgraded"):
            client.group("g", "t", timeout=1)
        before.undo()
        local.stop()
        local.start()
        known = local.inner.parts.cluster.trust
        wait_until(lambda: known.level >= trust.GROUPS, "the level rises")
        client.publish("t", "x")
        with client.group("g", "t") as group:
            assert group.get(timeout=10).value == b"x"
        assert {cursor.name for cursor in client.cursors("t")} == {"g", "other"}


def test_a_head_that_is_replaced_while_a_member_lets_go_is_asked_again(filled, another, monkeypatch):
    """Whether the last commit was written down is unknown: it is said again, and no error for the application."""
    asked, commit = [], GroupDesk.commit

    async def replaced(desk, client, request):
        asked.append(request)
        is_first = len(asked) == 1
        await commit(desk, client, request)
        if is_first:
            raise refusals.deposed()

    monkeypatch.setattr(group_limits, "GROUP_COMMIT_S", 60.0)
    monkeypatch.setattr(GroupDesk, "commit", replaced)
    with filled.group("billing", "orders.*") as first:
        taken = take(first, 20)
        with another().group("billing", "orders.*") as second:
            until = time.monotonic() + 10
            while len(second.assignment) < 2 and time.monotonic() < until:
                with suppress(DeadlineExceeded):
                    taken.append(first.get(timeout=0.05))
            assert len(second.assignment) == 2
            while len(taken) < 40:
                for each in (first, second):
                    with suppress(DeadlineExceeded):
                        taken.append(each.get(timeout=0.05))
    assert values(taken) == EVERYTHING
    assert len(asked) > 1


def test_a_topic_lists_the_groups_and_cursors_that_read_it(filled):
    filled.create_topic("other")
    assert filled.describe_topic("orders.eu").groups == []
    with filled.group("billing", "orders.*") as group, filled.group("shipping", "other"):
        take(group, 1)
        filled.move_cursor("orders.eu", "spark", {0: 3})
        assert filled.describe_topic("orders.eu").groups == ["billing", "spark"]
        assert filled.describe_topic("other").groups == ["shipping"]
    assert filled.describe_topic("orders.eu").groups == ["billing", "spark"], "they have positions there"
    assert all(topic.groups == [] for topic in filled.topics()), "only where one topic is described"
    filled.delete_group("billing")
    filled.delete_cursor("orders.eu", "spark")
    assert filled.describe_topic("orders.eu").groups == []


def test_the_groups_of_a_topic_are_bounded(filled, monkeypatch):
    monkeypatch.setattr(group_limits, "TOPIC_GROUPS_MAX", 2)
    for name in ("c", "a", "b"):
        filled.move_cursor("orders.eu", name, {0: 1})
    assert filled.describe_topic("orders.eu").groups == ["a", "b"]


def test_a_client_may_have_more_members_than_requests_may_be_under_way(filled):
    """Each heartbeat waits at the broker for news."""
    with ExitStack() as members:
        joined = [
            members.enter_context(filled.group(f"g{number}", "orders.*"))
            for number in range(limits.REQUESTS_UNDER_WAY_MAX + 6)
        ]
        assert values(take(joined[0], 40)) == EVERYTHING
        assert values(take(joined[-1], 40)) == EVERYTHING


def test_a_client_that_stood_still_for_too_long_goes_on_with_its_groups_and_queues(local, filled, another):
    """Its broker has let go of it. It hears why when it wakes up, and that is no fault of what it was asking."""
    filled.create_topic("q", kind="queue")
    sleeper = another("sleeper")
    with sleeper.group("billing", "orders.*") as group, sleeper.queue("q") as queue:
        taken = take(group, 40)
        with pytest.raises(DeadlineExceeded):
            queue.get(timeout=0.1)
        (session,) = (each for each in local.inner.parts.admission.sessions if each.caller.name == "sleeper")

        def let_go():
            now = session._clock.monotonic()
            session.sweep(now)
            session.sweep(now + limits.SILENCE_S + 1)

        session.loop.call_soon_threadsafe(let_go)
        fill(filled, "orders.eu", first=10, count=1)
        filled.queue("q").put("x")
        assert queue.get(timeout=10).value == b"x"
        taken += take(group, 4)
    assert {f"{partition}-10" for partition in range(4)} <= set(values(taken))


# --- what one group or member may do to others ----------------------------------------------------


def beat_as(client, **said):
    return ask_as(client, messages.GroupHeartbeat(**{"group": "g", "number": 1, "topics": ["orders.eu"]} | said))


def leave_as(client, **said):
    return ask_as(client, messages.LeaveGroup(**said))


def ask_as(client, request):
    core = client._core

    async def asked():
        return await (await core.ready_link()).request(request)

    return core.wait_for(asked())


@pytest.mark.parametrize("member", ["", "x" * 65, "\U0010ffff" * 20, "naïve", "a\nb"])
def test_an_id_of_a_member_that_would_not_fit_beside_every_partition_is_refused(filled, member):
    with pytest.raises(InvalidArgument, match="id of a member"):
        beat_as(filled, member=member)


@pytest.mark.parametrize("what", ["name", "instance", "zone"])
def test_a_name_that_grows_when_it_is_made_printable_is_refused(filled, what):
    with pytest.raises(InvalidArgument, match="to print"):
        beat_as(filled, member="m", **{what: "\U0010ffff" * 100})


def test_a_group_that_fails_does_not_end_the_timer_of_others(local, filled, another, monkeypatch, wait_until):
    """Whatever goes wrong in one group: leases of the others still end, and their partitions are handed on."""
    step = GroupCoordinator.step

    def broken(coordinator, event, now):
        if coordinator.name == "broken" and isinstance(event, GroupTick):
            raise ValueError("its step fails")
        return step(coordinator, event, now)

    monkeypatch.setattr(GroupCoordinator, "step", broken)
    with filled.group("broken", "orders.eu"), filled.group("billing", "orders.eu", auto_commit=False) as group:
        beat_as(another(), group="billing", member="silent", silence_ms=3_000)
        wait_until(lambda: len(filled.describe_group("billing").members) == 2, "it has joined")
        wait_until(lambda: len(filled.describe_group("billing").members) == 1, "its lease has ended", 20)
        wait_until(lambda: len(group.assignment) == 4, "the other one has them all", 20)
    assert local.inner.statistics().broker.failures


def test_a_step_that_cannot_be_written_down_does_not_end_the_timer_of_others(local, filled, monkeypatch, wait_until):
    publish = GroupHeads.publish

    def too_large(heads, partition, step):
        if step.name == "large":
            raise LimitExceeded("A batch of 1 messages takes 17000000 bytes; the limit is 16773120.")
        return publish(heads, partition, step)

    monkeypatch.setattr(GroupHeads, "publish", too_large)
    with suppress(NotReady):
        beat_as(filled, group="large", member="m")
    with filled.group("billing", "orders.eu") as group:
        wait_until(lambda: len(group.assignment) == 4, "others go on")
    assert local.inner.statistics().broker.failures


# --- room (S7) ------------------------------------------------------------------------------------


def beside(group, count):
    """Names of groups that live in the same partition of the internal topic as another one."""
    names = (f"{group}-{number}" for number in itertools.count())
    wanted = partition_of(group, limits.CURSOR_PARTITIONS)
    return list(
        itertools.islice((name for name in names if partition_of(name, limits.CURSOR_PARTITIONS) == wanted), count)
    )


def test_a_client_with_large_groups_leaves_room_for_an_unrelated_group(filled, another, monkeypatch):
    monkeypatch.setattr(group_limits, "GROUP_SIZE_MAX", 100)
    filled.create_topic("wide", partitions=27)
    stranger = another("stranger")
    first, second = beside("billing", 2)
    with stranger.group(first, "wide"):
        began = time.monotonic()
        with pytest.raises(LimitExceeded, match="share of what is left"):
            stranger.group(second, "wide", timeout=30)
        assert time.monotonic() - began < 10, "it is said at once"
        with filled.group("billing", "orders.*") as group:
            assert values(take(group, 40)) == EVERYTHING


def test_one_client_leaves_places_of_a_group_for_others(filled, another, monkeypatch):
    monkeypatch.setattr(group_limits, "GROUP_MEMBERS_MAX", 4)
    stranger = another("stranger")
    with ExitStack() as stack:
        stack.enter_context(stranger.group("billing", "orders.*"))
        with pytest.raises(LimitExceeded, match="its share of them"):
            stack.enter_context(stranger.group("billing", "orders.*"))
        stack.enter_context(filled.group("billing", "orders.*"))


def test_groups_that_nobody_is_in_make_room(filled, another, local, monkeypatch, wait_until):
    """Those that committed nothing are forgotten; others keep their positions, and for a while their room."""
    monkeypatch.setattr(group_limits, "GROUP_SIZE_MAX", 100)
    monkeypatch.setattr(group_limits, "GROUP_ROOM_LOOK_S", 0.0)
    kept, *idle = beside("billing", 3)
    with another().group(kept, "orders.*") as group:
        take(group, 40)
    for name in idle:
        beat_as(stranger := another(), group=name, member="m")
        leave_as(stranger, group=name, member="m")
    assert {each.name for each in filled.groups()} == {kept, *idle}
    filled.create_topic("wide", partitions=27)
    with filled.group("billing", "wide"):
        assert {each.name for each in filled.groups()} == {kept, "billing"}
        name = f"_stentor.cursors/{partition_of('billing', limits.CURSOR_PARTITIONS)}"
        groups = groups_of(next(each for each in local.inner.partitions.values() if each.name == name))
        with pytest.raises(LimitExceeded, match="has no room"):
            another().group(idle[0], "wide")
        assert groups.get(kept).room == 4
        monkeypatch.setattr(group_limits, "GROUP_ROOM_KEPT_S", 0.0)
        with pytest.raises(LimitExceeded, match="has no room"):
            another().group(idle[0], "wide")
        wait_until(lambda: groups.get(kept).room == 0, "it is written down")
        with another().group(kept, "orders.*") as group, pytest.raises(TimeoutError):
            group.get(timeout=0.3)


def test_partitions_that_find_no_room_are_reported_once(filled, monkeypatch, caplog, wait_until):
    monkeypatch.setattr(group_limits, "GROUP_SIZE_MAX", 40)
    with filled.group("billing", "orders.*") as group:
        wait_until(lambda: len(group.assignment) == 4, "it has them all")
        filled.create_topic("orders.all", partitions=27)
        wait_until(lambda: "nobody owns 27 partitions of group billing" in caplog.text, "it is said")
        assert values(take(group, 40)) == EVERYTHING
    assert caplog.text.count("nobody owns") == 1


def join_many(client, names):
    async def beat():
        link = await client._core.ready_link()
        for name in names:
            await link.request(messages.GroupHeartbeat(group=name, member="m", number=1, topics=["orders.eu"]))

    client._core.wait_for(beat())


def test_only_the_groups_of_a_connection_hear_that_it_was_closed(filled, another, monkeypatch, wait_until):
    """There may be very many, so they hear of it in slices (C35)."""
    told, sliced = [], []
    step, begin = GroupCoordinator.step, Slices.begin

    def noting(self, event, now):
        if isinstance(event, ConnectionBroke):
            told.append(self.name)
        return step(self, event, now)

    def noting_work(self, what, *work):
        sliced.append(what)
        begin(self, what, *work)

    leaving, staying = another(), another()
    join_many(leaving, ["a", "b", "c"])
    join_many(staying, ["d", "e"])
    monkeypatch.setattr(GroupCoordinator, "step", noting)
    monkeypatch.setattr(Slices, "begin", noting_work)
    core = leaving._core
    core.loop.call_soon_threadsafe(lambda: [link.connection.abort() for link in core.links.alive()])
    wait_until(lambda: len(told) == 3)
    assert sorted(told) == ["a", "b", "c"]
    assert "telling groups of a connection that was closed" in sliced


def test_a_connection_does_not_remember_groups_that_nobody_cares_for(filled, another, monkeypatch, wait_until):
    monkeypatch.setattr(heads, "_GROUPS_LOOKED_AT", 5)
    connections = []
    spoke = GroupHeads._spoke

    def noting(self, connection, group):
        connections.append(connection)
        spoke(self, connection, group)

    monkeypatch.setattr(GroupHeads, "_spoke", noting)
    client = another()
    join_many(client, ["a", "b", "c", "d"])

    async def leave():
        link = await client._core.ready_link()
        for name in "abcd":
            await link.request(messages.LeaveGroup(group=name, member="m"))

    idle = threading.Event()
    ticked = GroupHeads._ticked

    def noting_tick(self, loop):
        if not any(lead.coordinators for lead in self._leads.values()):
            idle.set()
        ticked(self, loop)

    monkeypatch.setattr(GroupHeads, "_ticked", noting_tick)
    client._core.wait_for(leave())
    assert idle.wait(10)
    join_many(client, ["e"])
    wait_until(lambda: connections[-1].groups == {"e"})
