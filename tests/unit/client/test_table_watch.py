"""Watches: bounded, from a past sequence, by callback; nothing is missed and nothing is told twice."""

import asyncio
import itertools
import logging
import threading

import pytest

import stentor
from stentor.client.table_backlog import Backlog
from stentor.client.table_copy import TableChange, TableEntry
from stentor.errors import Closed, Compacted, DeadlineExceeded, InvalidArgument, SlowSubscriber
from stentor.testing import broker

_numbers = itertools.count()


@pytest.fixture
def name(client):
    made = f"watched-{next(_numbers)}"
    client.create_topic(made, kind="table")
    return made


@pytest.fixture
def table(client, name):
    with client.table(name) as opened:
        yield opened


def taken(watch):
    """Everything that waits."""
    found = []
    while True:
        try:
            found.append(watch.get(timeout=0.0))
        except DeadlineExceeded:
            return found


def applied(state, changes):
    """A table after changes, each of which must begin where the one before it ended."""
    for change in changes:
        assert state.get(change.key) == change.old
        if change.new is None:
            del state[change.key]
        else:
            state[change.key] = change.new
    return state


# --- bounded --------------------------------------------------------------------------------------


def test_a_watcher_that_is_behind_gets_one_change_for_each_key(table):
    table.put_many({"a": "0", "b": "0", "gone": "0"})
    before = {entry.key: entry for entry in table.entries()}
    with table.watch(limit=4) as watch:
        for number in range(1, 11):
            table.put("a", str(number))
        table.put("short", "1")
        table.delete("short")
        table.delete("gone")
        last = table.put("b", "1")
        found = taken(watch)
        assert [(change.key, change.skipped) for change in found] == [("a", 9), ("gone", 0), ("b", 0)]
        assert applied(before, found) == {entry.key: entry for entry in table.entries()}
        assert found[-1].version == last.version
        for number in range(3):
            table.put("a", str(number))
        assert [change.skipped for change in taken(watch)] == [0, 0, 0], "it has caught up"


def test_a_watcher_may_want_an_error_when_it_is_behind(table):
    with table.watch(limit=3, on_slow="raise") as watch, table.watch() as other:
        for number in range(4):
            table.put("a", str(number))
        for _ in range(2):
            with pytest.raises(SlowSubscriber, match="More than 3 changes") as caught:
                watch.get(timeout=10)
            assert caught.value.object == table.name
        assert len(taken(other)) == 4
        assert table["a"] == b"3", "the copy is well"


def test_changes_of_other_subtrees_do_not_count(table):
    with table.watch("app/", limit=2, on_slow="raise") as watch:
        for number in range(10):
            table.put(f"other/{number}", "1")
        table.put("app/a", "1")
        assert [change.key for change in taken(watch)] == ["app/a"]


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "7"], ids=str)
def test_a_limit_is_a_number_above_zero(table, limit):
    with pytest.raises(InvalidArgument, match="no number of changes"):
        table.watch(limit=limit)
    assert table._copy.watchers == []


def test_an_unknown_choice_is_refused(table):
    with pytest.raises(InvalidArgument, match="Use 'merge' or 'raise'"):
        table.watch(on_slow="skip")
    with pytest.raises(InvalidArgument, match="has 1 partitions; the sequence has 2"):
        table.watch(start=(0, 0))
    assert table._copy.watchers == []


def test_what_waits_is_never_more_than_the_keys_that_changed():
    backlog = Backlog((0,), 5, "merge")
    state: dict[str, TableEntry] = {}
    shown: dict[str, TableEntry] = {}
    for version in range(2_000):
        key = f"k{version % 7}"
        new = None if version % 3 == 0 else TableEntry(key, b"%d" % version, version)
        old = state.pop(key, None)
        if new is not None:
            state[key] = new
        if old is not None or new is not None:
            backlog.add([TableChange(key, old, new, version)])
        assert len(backlog._each) + len(backlog._merged) <= 7
        if version % 11 == 0 and (change := backlog.take()) is not None:
            applied(shown, [change])
    while (change := backlog.take()) is not None:
        applied(shown, [change])
    assert shown == state
    assert backlog.sequence(waiting=True) == (2_000 - 1 + (1 if 1_999 % 3 else 0),)


# --- from a past sequence -------------------------------------------------------------------------


def test_a_watch_begins_at_a_past_sequence(table):
    table.put_many({"app/a": "0", "b": "0"})
    start, state = table.sequence, {entry.key: entry for entry in table.entries()}
    table.put("app/a", "1")
    table.delete("b")
    table.put("app/c", "2")
    with table.watch(start=start) as watch:
        table.put("d", "3")
        found = [watch.get(timeout=10) for _ in range(4)]
        assert [(change.key, change.new and change.new.value) for change in found] == [
            ("app/a", b"1"),
            ("b", None),
            ("app/c", b"2"),
            ("d", b"3"),
        ]
        assert applied(state, found) == {entry.key: entry for entry in table.entries()}
        assert taken(watch) == []
    with table.watch("app/", start=start) as watch:
        assert [watch.get(timeout=10).key for _ in range(2)] == ["app/a", "app/c"]
        assert taken(watch) == []


def test_a_watch_goes_on_where_another_one_was_left(table):
    everything = []
    sequence = table.sequence
    for number in range(30):
        table.put("a" if number % 2 else f"k/{number}", str(number))
        if number % 7 == 0:
            with table.watch(start=sequence) as watch:
                everything += [watch.get(timeout=10) for _ in range(2 if number else 1)]
                sequence = watch.sequence
    with table.watch(start=sequence) as watch:
        everything += [watch.get(timeout=10) for _ in range(30 - len(everything))]
        assert taken(watch) == []
        assert watch.sequence == table.sequence
    assert [int(change.new.value) for change in everything] == list(range(30))


def test_a_watch_that_begins_later_waits_for_it(shared, table):
    with shared.client() as second, second.table(table.name) as other:
        later = (table.sequence[0] + 2,)
        with other.watch(start=later) as watch:
            for number in range(4):
                table.put("a", str(number))
            assert [watch.get(timeout=10).new.value for _ in range(2)] == [b"2", b"3"]


def test_a_watch_of_several_partitions_begins_in_each_of_them(client):
    name = f"watched-{next(_numbers)}"
    client.create_topic(name, kind="table", partitions=3)
    with client.table(name) as table:
        for number in range(30):
            table.put(f"k/{number}", "0")
        start, state = table.sequence, {entry.key: entry for entry in table.entries()}
        for number in range(30):
            table.put(f"k/{number}", "1")
        with table.watch(start=start) as watch:
            found = [watch.get(timeout=10) for _ in range(15)]
            rest = watch.sequence
        with table.watch(start=rest) as watch:
            for number in range(30, 40):
                table.put(f"k/{number}", "2")
            found += [watch.get(timeout=10) for _ in range(25)]
            assert watch.sequence == table.sequence
        assert applied(state, found) == {entry.key: entry for entry in table.entries()}


def test_the_changes_of_a_log_that_is_gone_are_not_told(tmp_path):
    with broker(tmp_path / "data") as local, local.client() as client:
        client.create_topic("config", kind="table", segment_bytes=64 * 1024)
        with client.table("config") as table:
            for number in range(4):
                table.put("a", str(number) * 50_000)
            (partition,) = [each for each in local.inner.partitions.values() if each.topic == "config"]
            assert partition.log.retire_below(3, committed=4) > 0
            with table.watch(start=(0,)) as watch:
                with pytest.raises(Compacted, match=r"after \(0,\) are no longer known: config/0 holds offsets"):
                    watch.get(timeout=10)
                assert watch.get(timeout=10) == TableChange("a", None, table.entry("a"), 3, 0)
                assert taken(watch) == []
            with table.watch(start=(4,)) as watch:
                table.put("b", "1")
                assert watch.get(timeout=10).key == "b"


def test_a_watch_of_the_past_says_what_a_live_one_says(client, table):
    """Times, sessions, headers, and that a key has expired."""
    with table.watch() as live:
        client.publish(table.name, "0", key="plain", headers={"by": "me"})
        table.put("lasts", "0", ttl=300)
        table.put("mine", "0", ephemeral=True, grace=60)
        table.put("goes", "0", ttl=0.2)
        changes = [live.get(timeout=10) for _ in range(5)]
    with table.watch(start=(0,)) as watch:
        assert [watch.get(timeout=10) for _ in range(5)] == changes
    plain, lasts, mine, _, gone = changes
    assert list(plain.headers) == [("by", b"me")]
    assert lasts.new.ttl == 300
    assert mine.new.session == table.session
    assert (gone.key, gone.old.ttl, gone.new, gone.expired) == ("goes", 0.2, None, True)


def test_a_watch_of_the_past_has_a_deadline_and_an_end(table):
    table.put("a", "1")
    with table.watch(start=(0,)) as watch:
        assert watch.get(timeout=10).version == 0
        with pytest.raises(DeadlineExceeded, match=f"No change of table {table.name}"):
            watch.get(timeout=0.01)
    with pytest.raises(Closed, match="This watch of table"):
        watch.get(timeout=10)
    assert list(watch) == []


def test_a_watch_that_is_closed_releases_who_waits(table, wait_until):
    watch = table.watch()
    seen, ended = [], threading.Event()

    def follow():
        seen.extend(watch)
        ended.set()

    thread = threading.Thread(target=follow)
    thread.start()
    table.put("a", "1")
    wait_until(lambda: len(seen) == 1)
    watch.close()
    thread.join(10)
    assert ended.is_set()
    assert table._copy.watchers == []


def test_threads_share_the_changes_of_a_watch(table):
    for number in range(50):
        table.put("a", str(number))
    watch, seen = table.watch(start=(0,)), []
    threads = [threading.Thread(target=lambda: seen.extend(watch)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(50, 100):
        table.put("a", str(number))
    while len(seen) < 100:
        assert any(thread.is_alive() for thread in threads)
    watch.close()
    for thread in threads:
        thread.join(10)
    assert sorted(change.version for change in seen) == list(range(100))


# --- callbacks ------------------------------------------------------------------------------------


def test_a_callback_is_called_in_a_thread_of_its_own(table, wait_until, caplog):
    seen, threads = [], set()

    def called(change):
        threads.add(threading.current_thread())
        seen.append(change.key)
        if change.key == "app/bad":
            raise RuntimeError("oh")

    stop = table.on_change("app/", called)
    with caplog.at_level(logging.WARNING):
        for key in ("app/bad", "apple", "app/good"):
            table.put(key, "1")
        wait_until(lambda: seen == ["app/bad", "app/good"])
    assert "It is called again for the next change" in caplog.text
    assert threading.current_thread() not in threads
    (thread,) = threads
    assert thread.daemon
    stop()
    thread.join(10)
    table.put("app/late", "1")
    assert seen == ["app/bad", "app/good"]
    with pytest.raises(InvalidArgument, match="A callback is a function"):
        table.on_change("", None)
    with pytest.raises(InvalidArgument, match="no subtree"):
        table.on_change("app", called)


def test_callbacks_end_with_their_table(client, name, wait_until, caplog):
    table = client.table(name)
    table.on_change("", print)
    table.close()
    wait_until(lambda: not any(thread.name == f"stentor-table-{name}" for thread in threading.enumerate()))
    assert caplog.text == "", "a table that was closed is no news"
    table = client.table(name)
    table.on_change("", print)
    client.delete_topic(name)
    wait_until(lambda: "have ended" in caplog.text)
    table.close()


# --- async ----------------------------------------------------------------------------------------


def test_the_same_for_async_code(shared, name, caplog):
    async def use():
        async with stentor.connect_async(shared.url) as client, client.table(name) as table:
            for number in range(5):
                await table.put("app/a", str(number))
            async with table.watch(start=(2,)) as watch, table.watch(limit=2) as slow:
                for number in range(5, 10):
                    await table.put("app/a", str(number))
                found = [await watch.get(timeout=10) for _ in range(8)]
                assert [change.version for change in found] == list(range(2, 10))
                assert watch.sequence == table.sequence
                change = await slow.get(timeout=10)
                assert (change.old.version, change.new.version, change.skipped) == (4, 9, 4)
                with pytest.raises(DeadlineExceeded):
                    await watch.get(timeout=0.01)
            with pytest.raises(Closed):
                await watch.get()
            assert [change async for change in watch] == []
            called, awaited = [], asyncio.Event()

            async def callback(change):
                called.append(change.key)
                if change.key == "bad":
                    raise RuntimeError("oh")
                awaited.set()

            stop = table.on_change("", callback)
            plain = table.on_change("", lambda change: called.append(change.new.value))
            await table.put("bad", "1")
            await table.put("good", "2")
            async with asyncio.timeout(10):
                await awaited.wait()
            stop()
            plain()
            await table.put("late", "3")
            await asyncio.sleep(0)
            assert sorted(map(str, called)) == ["b'1'", "b'2'", "bad", "good"]

    asyncio.run(use())
    assert "It is called again for the next change" in caplog.text
