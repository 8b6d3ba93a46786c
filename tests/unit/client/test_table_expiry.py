"""Keys that expire, and keys that belong to a session, as applications use them."""

import asyncio
import itertools
import threading
import time
from contextlib import suppress

import pytest

import stentor
from stentor.client import table_leases
from stentor.client.table_copy import TableChange, TableCopy
from stentor.core.table import TTL_S_MAX
from stentor.errors import ConditionFailed, InvalidArgument, KeyNotFound
from stentor.wire import messages, table_rows

_numbers = itertools.count()
WAIT_S = 20


@pytest.fixture
def name(client):
    made = f"expiring-{next(_numbers)}"
    client.create_topic(made, kind="table")
    return made


@pytest.fixture
def table(client, name):
    with client.table(name) as opened:
        yield opened


@pytest.fixture
def other(shared, name):
    """Another client's copy of the same table."""
    with shared.client() as connected, connected.table(name) as opened:
        yield opened


# --- ttl ------------------------------------------------------------------------------------------


def test_a_key_with_a_ttl_goes_by_itself_and_watchers_are_told_why(table, other):
    with other.watch() as watch:
        put = table.put("a", "1", ttl=0.3)
        began = time.monotonic()
        table.put("b", "1")
        table.delete("b")
        changes = [watch.get(timeout=WAIT_S) for _ in range(4)]
        assert time.monotonic() - began >= 0.2, "it went early"
    assert [(change.key, change.new is None, change.expired) for change in changes] == [
        ("a", False, False),
        ("b", False, False),
        ("b", True, False),
        ("a", True, True),
    ]
    assert changes[-1].old == put
    assert (put.ttl, put.session) == (0.3, b"")
    assert "a" not in other


def test_an_entry_says_how_long_it_stays(table, other):
    put = table.put("a", "1", ttl=600)
    other.sync()
    assert table.entry("a") == other.entry("a") == put
    assert put.ttl == 600
    assert table.put("b", "1").ttl is None
    assert table.put("c", "1", ttl=0.1234564).ttl == 0.123456


def test_a_key_that_is_put_again_without_ttl_stays(table):
    table.put("a", "1", ttl=0.3)
    table.put("a", "2")
    table.put("b", "1", ttl=0.3)
    with table.watch("b/") as _, table.watch() as watch:
        while (change := watch.get(timeout=WAIT_S)).key != "b" or change.new is not None:
            pass
    assert dict(table) == {"a": b"2"}
    assert table.entry("a").ttl is None


def test_a_touched_key_stays(table):
    table.put("a", "1", ttl=3)
    table.put("b", "1", ttl=3)
    with table.watch() as watch:
        deadline = time.monotonic() + WAIT_S
        while "b" in table:
            table.touch("a")
            assert time.monotonic() < deadline
        assert "a" in table
        assert watch.get(timeout=1).key == "b"


def test_what_is_not_there_cannot_be_touched(table):
    with pytest.raises(KeyNotFound, match="has no key a"):
        table.touch("a")


def test_what_does_not_expire_cannot_be_touched(table):
    table.put("a", "1")
    with pytest.raises(InvalidArgument, match=r"a of table .* has no ttl"):
        table.touch("a")
    with pytest.raises(InvalidArgument, match="no key of a table"):
        table.touch("/")


def test_an_ephemeral_key_is_kept_by_its_owner_alone(table, other):
    table.put("me", "1", ephemeral=True)
    for copy in (table, other):
        with pytest.raises(InvalidArgument, match="is ephemeral: only its owner keeps it"):
            copy.touch("me")


def test_several_keys_are_put_with_one_ttl_and_some_are_removed(table):
    table.put_many({"a": "1", "b": "2", "c": "3"})
    table.put_many({"a": "1", "b": None, "d": "4"}, ttl=500)
    assert {entry.key: entry.ttl for entry in table.entries()} == {"a": 500, "c": None, "d": 500}
    table.put_many({"a": None, "d": None}, ttl=500)
    assert list(table) == ["c"]


def test_counters_may_expire(table):
    assert [table.add("n", ttl=500), table.add("n", ttl=500)] == [1, 2]
    assert table.entry("n").ttl == 500
    table.add("n")
    assert table.entry("n").ttl is None


def test_a_condition_and_a_ttl_go_together(table):
    first = table.put("a", "1", ttl=500, if_absent=True)
    with pytest.raises(ConditionFailed):
        table.put("a", "2", ttl=600, if_absent=True)
    assert table.entry("a") == first
    assert table.put("a", "2", ttl=600, if_version=first.version) == table.entry("a")


def test_many_keys_expire_in_a_few_batches(table):
    table.put_many({f"k/{number}": "v" for number in range(2_000)}, ttl=0.2)
    with table.watch() as watch:
        gone = {watch.get(timeout=WAIT_S).key for _ in range(2_000)}
    assert len(gone) == 2_000
    assert len(table) == 0


NO_TTL = {
    "zero": 0,
    "below": -1,
    "true": True,
    "text": "1",
    "nan": float("nan"),
    "infinite": float("inf"),
    "above": TTL_S_MAX + 1,
    "list": [1],
}


@pytest.mark.parametrize("ttl", NO_TTL.values(), ids=NO_TTL)
def test_a_ttl_is_a_number_of_seconds(table, ttl):
    for call in (
        lambda: table.put("a", "1", ttl=ttl),
        lambda: table.put_many({"a": "1"}, ttl=ttl),
        lambda: table.add("a", ttl=ttl),
        lambda: table.put("a", "1", ephemeral=True, grace=ttl),
    ):
        with pytest.raises(InvalidArgument, match=r"(ttl|grace)="):
            call()
    assert len(table) == 0


def test_an_ephemeral_key_has_no_ttl_and_others_no_grace(table):
    with pytest.raises(InvalidArgument, match="has a grace and no ttl"):
        table.put("a", "1", ephemeral=True, ttl=5)
    with pytest.raises(InvalidArgument, match="Only ephemeral keys"):
        table.put("a", "1", grace=5)
    with pytest.raises(InvalidArgument, match="at least 1"):
        table.put("a", "1", ephemeral=True, grace=0.5)


def test_a_ttl_is_no_header_that_anybody_may_send(client, name):
    with pytest.raises(InvalidArgument, match="does not say so"):
        client.publish(name, b"v", key="a", headers=table_rows.lease(5))


# --- sessions -------------------------------------------------------------------------------------


def test_an_ephemeral_key_stays_longer_than_its_grace_and_goes_with_its_table(table, other):
    table.put("a", "1", ttl=5)
    put = table.put("me", "1", ephemeral=True, grace=2)
    assert (put.ttl, put.session) == (2, table.session)
    other.sync()
    assert other.entry("me") == put
    assert other.session != table.session
    with other.watch() as watch:
        assert watch.get(timeout=WAIT_S).key == "a", "it expired, and the ephemeral key did not"
        assert table.holds("me") > 0
        table.close()
        gone = watch.get(timeout=WAIT_S)
    assert (gone.key, gone.new, gone.expired) == ("me", None, False)


def test_an_owner_that_is_not_heard_any_more_loses_its_keys(table, other, monkeypatch, caplog):
    async def deaf(*_):
        raise stentor.NotReady("Nobody hears.")

    with other.watch() as watch:
        table.put("me", "1", ephemeral=True, grace=1)
        assert 0 < table.holds("me") <= 0.9
        monkeypatch.setattr(table_leases.Leases, "touch", deaf)
        watch.get(timeout=WAIT_S)
        gone = watch.get(timeout=WAIT_S)
        assert (gone.key, gone.expired) == ("me", True)
    table.sync()
    assert table.holds("me") == 0.0
    assert "key me of table" in caplog.text


def test_a_key_is_held_for_less_than_a_grace_after_the_last_word_of_the_head(table):
    table.put("me", "1", ephemeral=True, grace=30)
    assert 20 < table.holds("me") <= 27
    assert table.holds("nobody") == 0.0
    table.put("other", "1", ttl=30)
    assert table.holds("other") == 0.0


def test_a_client_that_stood_still_does_not_trust_its_loop(table, monkeypatch):
    """Some loops look at their clock once in a turn: a thread that wakes up first sees the time of before."""
    table.put("me", "1", ephemeral=True, grace=30)
    leases = table._copy.leases
    before, clock = table._copy.core.loop.time(), leases.clock
    monkeypatch.setattr(leases, "clock", lambda: clock() + 29)
    monkeypatch.setattr(table_leases.Leases, "_keep", None)
    assert table._copy.core.loop.time() - before < 29
    assert table.holds("me") == 0.0


def test_who_is_not_certain_asks_the_brokers(table, other, monkeypatch):
    table.put("me", "1", ephemeral=True, grace=30)
    leases = table._copy.leases
    clock, asked = leases.clock, []
    touch = leases.touch

    async def noted(*arguments):
        asked.append(arguments)
        await touch(*arguments)

    monkeypatch.setattr(leases, "touch", noted)
    assert 20 < table.confirm("me") <= 26
    assert not asked, "it is certain"
    monkeypatch.setattr(leases, "clock", lambda: clock() + 29)
    assert table.holds("me") == 0.0
    assert 20 < table.confirm("me") <= 26
    assert len(asked) == 1
    other.put("me", "2", ephemeral=True, grace=30)
    monkeypatch.setattr(leases, "clock", lambda: clock() + 60)
    assert table.confirm("me") == 0.0
    assert table.confirm("nobody") == 0.0


def test_the_fence_grows_at_each_hand_over(table, other):
    fences = []
    for owner in (table, other, table):
        leader = owner.put("me", "1", if_absent=True, ephemeral=True)
        fences.append(leader.fence)
        assert leader.fence == leader.version
        owner.delete("me")
        table.wait(owner.sequence)
        other.wait(owner.sequence)
    assert fences == sorted(set(fences))


def test_a_key_that_another_one_puts_is_the_other_ones(table, other):
    table.put("me", "1", ephemeral=True, grace=30)
    other.put("me", "2", ephemeral=True, grace=30)
    table.sync()
    assert (table.holds("me"), other.holds("me") > 0) == (0.0, True)
    table.close()
    other.sync()
    assert other["me"] == b"2"


# --- whose a session is ---------------------------------------------------------------------------


def touch_as(table, session):
    """Say that a session is alive, as whoever has read its id may."""
    copy = table._copy
    request = messages.Touch(topic_id=copy.topic_id, partition=0, keys=[], session=session)
    return table._call(copy.core.call_partition(request, copy.name, copy.core.deadline(WAIT_S), head_first=True))


async def _deaf(*_):
    raise stentor.NotReady("Nobody hears.")


def test_a_stranger_who_has_read_a_session_keeps_nothing_of_it_alive(table, other, monkeypatch):
    monkeypatch.setattr(table._copy.leases, "touch", _deaf)
    with other.watch() as watch:
        table.put("me", "1", ephemeral=True, grace=1)
        assert watch.get(timeout=WAIT_S).new.session == table.session
        gone = None
        while gone is None:
            touch_as(other, table.session)
            with suppress(stentor.DeadlineExceeded):
                gone = watch.get(timeout=0.1)
        assert (gone.key, gone.expired) == ("me", True)


def test_what_was_made_without_a_secret_is_kept_by_whoever_knows_the_session(table, other, monkeypatch):
    """As older clients make it."""
    monkeypatch.setattr(table._copy.leases, "touch", _deaf)
    table._copy.leases.holder = b""
    with other.watch() as watch:
        table.put("me", "1", ephemeral=True, grace=1)
        assert watch.get(timeout=WAIT_S).key == "me"
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            touch_as(other, table.session)
            with suppress(stentor.DeadlineExceeded):
                pytest.fail(f"it went: {watch.get(timeout=0.1)}")


def test_nobody_makes_a_key_another_ones(table, other):
    """Neither with the hash, which everybody may read, nor with the session alone."""
    table.put("mine", "1", ephemeral=True, grace=30)
    lease = table_leases.NewLease(30.0, table.session, table._copy.leases.holder)
    with pytest.raises(stentor.InvalidArgument, match="belongs to another client"):
        other._call(other._copy.change({"theirs": b"1"}, {}, other._copy.core.deadline(WAIT_S), lease))
    lease = table_leases.NewLease(30.0, table.session, other._copy.leases.holder)
    other._call(other._copy.change({"theirs": b"1"}, {}, other._copy.core.deadline(WAIT_S), lease))
    table.wait(other.sequence)
    assert (table.holds("theirs"), table.holds("mine") > 0) == (0.0, True)
    table.close()
    other.sync()
    assert dict(other) == {"theirs": b"1"}, "closing deletes what is its own"


def test_closing_deletes_what_is_left_of_the_own_keys(table, other):
    for key in ("a", "b", "c"):
        table.put(key, "mine", ephemeral=True)
    other.put("b", "theirs")
    table.close()
    other.sync()
    assert dict(other) == {"b": b"theirs"}


def test_many_keys_go_with_their_table_but_for_those_that_are_not_its_own_any_more(table, other, monkeypatch):
    monkeypatch.setattr(table_leases, "_CLOSED_AT_ONCE", 10)
    for number in range(35):
        table.put(f"k/{number}", "1", ephemeral=True)
    other.put("k/17", "theirs")
    table.close()
    other.sync()
    assert dict(other) == {"k/17": b"theirs"}


def test_the_first_keys_of_several_threads_belong_to_one_session(table):
    threads = [
        threading.Thread(target=table.put, args=(f"k/{number}", "1"), kwargs={"ephemeral": True}) for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert {entry.session for entry in table.entries()} == {table.session}
    assert all(table.holds(f"k/{number}") > 0 for number in range(8))


def test_a_copy_that_is_filled_anew_knows_which_keys_are_its_own(client, table, caplog):
    put, gone = (table.put(key, "1", ephemeral=True) for key in ("me", "gone"))
    copy = table._copy
    del copy.leases.own["me"]  # its put seemed to fail, and the copy was filled anew

    async def fill_anew():
        fresh = TableCopy(copy.core, copy.name)
        await fresh.follow(copy.topic_id, 1, copy.core.deadline(WAIT_S))
        changes = [TableChange("me", None, put, put.version, 0), TableChange("gone", gone, None, 9, 0)]
        copy.adopt(fresh, changes)

    client._call(fill_anew())
    assert list(copy.leases.own) == ["me"]
    assert "key gone of table" in caplog.text


def test_a_client_that_is_closed_takes_its_keys_along(shared, name, other):
    with shared.client() as client:
        client.table(name).put("me", "1", ephemeral=True)
        other.sync()
        assert "me" in other
    other.sync()
    assert "me" not in other


@pytest.mark.long
def test_keys_in_several_partitions_are_kept(client, shared):
    made = f"expiring-{next(_numbers)}"
    client.create_topic(made, kind="table", partitions=4)
    with client.table(made) as table, shared.client() as second, second.table(made) as other:
        table.put("until", "1", ttl=5)
        for number in range(12):
            table.put(f"k/{number}", "1", ephemeral=True, grace=2)
        with other.watch() as watch:
            while (change := watch.get(timeout=WAIT_S)).new is not None:
                pass
            assert (change.key, change.expired) == ("until", True)
        assert len(other) == 12


@pytest.mark.long
def test_keys_that_come_all_the_time_do_not_keep_the_client_from_saying_that_it_lives(table, other):
    table.put("until", "1", ttl=5)
    table.put("me", "1", ephemeral=True, grace=2)
    for number in itertools.count():
        table.put(f"k/{number}", "1", ephemeral=True, grace=2)
        if "until" not in table:
            break
    assert "me" in table
    assert "k/0" in table


def test_the_same_with_await(shared, name):
    async def run():
        async with stentor.connect_async(shared.url) as client, client.table(name) as table:
            async with table.watch() as watch:
                put = await table.put("a", "1", ttl=0.2)
                assert put == table.entry("a")
                assert (await watch.get(timeout=WAIT_S)).new == put
                assert (await watch.get(timeout=WAIT_S)).expired
            await table.put_many({"b": "1"}, ttl=500)
            await table.add("c", ttl=500)
            await table.touch("b")
            with pytest.raises(KeyNotFound):
                await table.touch("a")
            mine = await table.put("me", "1", ephemeral=True, grace=5)
            assert mine.session == table.session
            assert 0 < table.holds("me") <= 4.5

    asyncio.run(run())
