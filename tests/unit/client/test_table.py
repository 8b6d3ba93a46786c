"""Copies of tables: they follow, they change the table for everyone, and they say what went wrong."""

import asyncio
import itertools
import threading

import pytest

import stentor
from stentor.client.table_copy import TableEntry
from stentor.errors import (
    Closed,
    ConditionFailed,
    DeadlineExceeded,
    InvalidArgument,
    LimitExceeded,
    StentorError,
    TopicNotFound,
)
from stentor.testing import broker

_numbers = itertools.count()


@pytest.fixture
def name(client):
    made = f"table-{next(_numbers)}"
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


# --- reading and changing -------------------------------------------------------------------------


def test_a_copy_is_read_like_a_dict(table):
    table.put("a/b", "1")
    table.put("a/c", b"\xff")
    assert dict(table) == {"a/b": b"1", "a/c": b"\xff"}
    assert (len(table), "a/b" in table, "a" in table, table.get("x")) == (2, True, False, None)
    with pytest.raises(KeyError):
        table["x"]
    table.delete("a/b")
    assert list(table) == ["a/c"]


def test_large_batches_are_copied_and_watched_like_small_ones(client, name, table, other):
    with other.watch() as watch, client.producer(name) as producer:
        first = {f"k/{number}".encode(): b"%d" % number for number in range(200)}
        producer.send_many(list(first.values()), list(first))
        producer.send_many([b"new", None, b"\xff", *[b"last"] * 40], [b"k/7", b"k/8", "k/ü".encode(), *[b"k/9"] * 40])
        producer.flush(10)
        changes = [watch.get(timeout=10) for _ in range(243)]
    table.wait(other.sequence, timeout=10)
    expected = {key.decode(): value for key, value in first.items()} | {"k/7": b"new", "k/ü": b"\xff", "k/9": b"last"}
    del expected["k/8"]
    assert dict(table) == dict(other) == expected
    assert other.entry("k/9") == TableEntry("k/9", b"last", 242)
    assert [
        (change.key, change.old and change.old.value, change.new and change.new.value) for change in changes[200:204]
    ] == [
        ("k/7", b"7", b"new"),
        ("k/8", b"8", None),
        ("k/ü", None, b"\xff"),
        ("k/9", b"9", b"last"),
    ]
    assert changes[-1].old == TableEntry("k/9", b"last", 241)


def test_a_change_is_in_the_copy_when_the_call_returns_and_in_others_when_they_waited(table, other):
    for number in range(20):
        made = table.put("n", str(number))
        assert table.entry("n") == made == TableEntry("n", str(number).encode(), made.version)
        other.wait(table.sequence, timeout=10)
        assert other.entry("n") == made
    other.put("n", "back")
    assert table.sync(timeout=10) >= other.sequence
    assert table["n"] == b"back"


def test_a_new_copy_has_all_that_was_committed(client, name, table):
    for number in range(50):
        table.put(f"k/{number}", str(number))
    table.delete("k/7")
    with client.table(name) as fresh:
        assert fresh.sequence == table.sequence
        assert fresh.entries() == table.entries()
        assert "k/7" not in fresh


def test_an_empty_value_is_a_value(table, other):
    table.put("a", b"")
    assert other.sync(timeout=10)
    assert other["a"] == b""


def test_conditions_are_decided_for_everyone(table, other):
    first = table.put("a", "1", if_absent=True)
    with pytest.raises(ConditionFailed, match="was not made"):
        other.put("a", "2", if_absent=True)
    second = other.put("a", "2", if_version=first.version)
    with pytest.raises(ConditionFailed) as caught:
        table.put("a", "3", if_version=first.version)
    assert "Read the key again" in caught.value.hint
    with pytest.raises(ConditionFailed):
        table.delete("a", if_version=first.version)
    assert table.sync(timeout=10)
    assert table["a"] == b"2"
    table.delete("a", if_version=second.version)
    with pytest.raises(ConditionFailed):
        other.put("a", "4", if_version=second.version)
    other.put("a", "5", if_absent=True)
    assert other["a"] == b"5"


def test_a_refused_change_moves_the_sequence_and_nothing_else(client, name, table):
    table.put("a", "1")
    before = table.sequence
    with pytest.raises(ConditionFailed):
        table.put("a", "2", if_absent=True)
    assert table.sync(timeout=10) > before
    assert dict(table) == {"a": b"1"}
    with client.table(name) as fresh:
        assert fresh.entries() == table.entries()


def test_many_keys_change_at_once_and_nobody_sees_half_of_it(table, other):
    table.put_many({"a": "0", "b": "0"})
    other.wait(table.sequence, timeout=10)
    stop, torn = threading.Event(), []

    def look():
        while not stop.is_set():
            values = {entry.value for entry in other.entries()}
            if len(values) != 1:
                torn.append(values)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for number in range(200):
            table.put_many({"a": str(number), "b": str(number)})
        other.wait(table.sequence, timeout=10)
    finally:
        stop.set()
        thread.join()
    assert not torn
    table.put_many({"a": None, "c": "1"})
    assert dict(table) == {"b": b"199", "c": b"1"}


def test_more_keys_than_packed_rows_hold_change_at_once(table, other):
    keys = {f"k/{number}": str(number) for number in range(2_000)}
    table.put_many(keys)
    other.wait(table.sequence, timeout=10)
    assert {key: value.decode() for key, value in other.items()} == keys


def test_additions_from_threads_and_clients_are_all_counted(shared, name, table, other):
    returned = []

    def count(copy):
        returned.extend(copy.add("n", timeout=60) for _ in range(15))

    threads = [threading.Thread(target=count, args=(copy,)) for copy in (table, table, other, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(returned) == list(range(1, 61))
    table.sync(timeout=10)
    assert table["n"] == b"60"
    assert table.add("n", -10) == 50
    assert table.add("m", 7) == 7


def test_what_is_no_counter_is_not_added_to(table):
    table.put("a", "text")
    with pytest.raises(InvalidArgument, match="no counter"):
        table.add("a")
    with pytest.raises(InvalidArgument, match="whole numbers"):
        table.add("n", 1.5)
    with pytest.raises(InvalidArgument, match="whole numbers"):
        table.add("n", True)  # noqa: FBT003 - that is the point


def test_a_subtree_is_a_part_of_the_entries(table):
    for key in ("app/a", "app/b/c", "apple", "z"):
        table.put(key, "1")
    assert [entry.key for entry in table.entries("app/")] == ["app/a", "app/b/c"]
    assert len(table.entries()) == 4
    assert table.to_arrow("app/").column("key").to_pylist() == ["app/a", "app/b/c"]


# --- watching -------------------------------------------------------------------------------------


def test_a_watch_shows_what_was_and_what_is(table, other):
    table.put("a", "1")
    other.sync(timeout=10)
    with other.watch() as watch:
        first = other.entry("a")
        second = table.put("a", "2")
        table.delete("a")
        table.delete("a")  # nothing happens
        third = table.put("b", "3")
        changes = [watch.get(timeout=10) for _ in range(3)]
    assert [(change.key, change.old, change.new) for change in changes] == [
        ("a", first, second),
        ("a", second, None),
        ("b", None, third),
    ]


def test_a_watch_is_for_a_subtree_and_from_now_on(table):
    table.put("app/a", "0")
    with table.watch("app/") as watch:
        table.put("apple", "1")
        table.put("app/a", "2")
        assert watch.get(timeout=10).new.value == b"2"
        with pytest.raises(DeadlineExceeded):
            watch.get(timeout=0.01)


def test_a_refused_change_is_not_watched(table):
    with table.watch() as watch:
        table.put("a", "1")
        with pytest.raises(ConditionFailed):
            table.put("a", "2", if_absent=True)
        table.put("a", "3")
        assert [watch.get(timeout=10).new.value for _ in range(2)] == [b"1", b"3"]


def test_who_begins_to_watch_and_then_reads_misses_nothing(table, other):
    stop = threading.Event()

    def change():
        for number in itertools.count():
            if stop.is_set():
                return
            table.put("a", str(number))

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(100):
            with other.watch() as watch:
                read = other.entry("a")
                while True:
                    change = watch.get(timeout=10)
                    if read is None or change.new.version > read.version:
                        break
                assert change.old == read
    finally:
        stop.set()
        thread.join()


def test_a_watch_that_ends_takes_nothing_from_the_others(table):
    """A watcher is told of every change, whoever stops to watch at the same moment."""
    copy, seen = table._copy, []
    leaving = [table.watch() for _ in range(3)]

    def leave(_):
        while leaving:
            leaving.pop().close()

    copy.watchers += [leave, seen.append]
    table.put("a", "1")
    assert [change.key for changes in seen for change in changes] == ["a"]


# --- what is wrong --------------------------------------------------------------------------------


def test_a_topic_that_is_no_table_is_not_opened(client):
    client.create_topic("stream", exist_ok=True)
    with pytest.raises(InvalidArgument, match="is no table") as caught:
        client.table("stream")
    assert "kind='table'" in caught.value.hint


def test_a_table_that_is_not_there_is_not_made(client):
    with pytest.raises(TopicNotFound):
        client.table("nowhere")
    assert "nowhere" not in [topic.name for topic in client.topics()]


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b"])
def test_keys_are_paths(table, key):
    for call in (
        lambda: table.put(key, "1"),
        lambda: table.delete(key),
        lambda: table.add(key),
        lambda: table.put_many({"ok": "1", key: "2"}),
    ):
        with pytest.raises(InvalidArgument, match="no key of a table"):
            call()
    assert len(table) == 0


def test_keys_are_text_of_some_length(table):
    with pytest.raises(InvalidArgument, match="is text, not bytes"):
        table.put(b"a", "1")
    with pytest.raises(LimitExceeded):
        table.put("k" * (stentor.limits.MESSAGE_KEY_BYTES_MAX + 1), "1")
    for key, value in (("\ud800", "1"), ("a", "\ud800")):
        with pytest.raises(InvalidArgument):
            table.put(key, value)


@pytest.mark.parametrize("subtree", ["app", "/app/", "a//b/"])
def test_subtrees_end_with_a_slash(table, subtree):
    for call in (table.entries, table.watch):
        with pytest.raises(InvalidArgument, match="no subtree"):
            call(subtree)


@pytest.mark.parametrize("version", [-1, True, "1", 1.0])
def test_versions_are_those_of_entries(table, version):
    with pytest.raises(InvalidArgument, match="no version"):
        table.put("a", "1", if_version=version)


def test_one_condition_at_a_time(table):
    with pytest.raises(InvalidArgument, match="not on both"):
        table.put("a", "1", if_version=1, if_absent=True)


def test_values_are_values(table):
    for value in (None, 5):
        with pytest.raises(InvalidArgument):
            table.put("a", value)
    with pytest.raises(InvalidArgument, match="at least one key"):
        table.put_many({})


def test_a_sequence_of_another_table_is_told(table):
    with pytest.raises(InvalidArgument, match="has 1 partitions; the sequence has 2"):
        table.wait((0, 0))


def test_a_wait_has_a_deadline(table):
    with pytest.raises(DeadlineExceeded):
        table.wait((1_000,), timeout=0.05)


# --- the end --------------------------------------------------------------------------------------


def test_a_closed_copy_says_so(client, name):
    table = client.table(name)
    table.put("a", "1")
    watch = table.watch()
    table.close()
    table.close()
    for call in (
        lambda: table["a"],
        lambda: len(table),
        table.entries,
        table.watch,
        lambda: table.put("a", "2"),
        lambda: table.wait((9,)),
        table.sync,
        lambda: watch.get(timeout=10),
    ):
        with pytest.raises(Closed, match=f"copy of table {name} is closed"):
            call()


def test_a_client_that_closes_takes_its_copies_along(shared, name):
    client = shared.client()
    table = client.table(name)
    watch = table.watch()
    client.close()
    with pytest.raises(Closed):
        table.entries()
    with pytest.raises(Closed):
        watch.get(timeout=10)
    table.close()


def test_a_change_that_meets_a_close_is_made_or_refused(shared, name):
    for _ in range(20):
        with shared.client() as client:
            table = client.table(name)
            wrong = []

            def change(table=table, wrong=wrong):
                try:
                    while True:
                        table.put("a", "1")
                except StentorError:
                    pass
                except BaseException as error:  # noqa: BLE001 - whatever it is, it is wrong
                    wrong.append(error)

            thread = threading.Thread(target=change)
            thread.start()
            table.close()
            thread.join(10)
            assert not thread.is_alive()
            assert not wrong


def test_a_table_that_is_deleted_ends_its_copies(client, name, wait_until):
    table = client.table(name)
    table.put("a", "1")
    waiting: list[BaseException] = []

    def wait():
        try:
            table.wait((1_000,), timeout=30)
        except StentorError as error:
            waiting.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    watch = table.watch()
    client.delete_topic(name)
    with pytest.raises(TopicNotFound):
        watch.get(timeout=10)
    thread.join(10)
    assert isinstance(waiting[0], TopicNotFound)
    for call in (lambda: table["a"], table.entries, table.watch, lambda: table.put("a", "2"), table.sync):
        with pytest.raises(TopicNotFound):
            call()
    assert name not in [topic.name for topic in client.topics()], "nobody made it anew"
    table.close()


def test_a_table_that_is_made_anew_is_another_one(client, name):
    table = client.table(name)
    table.put("a", "1")
    watch = table.watch()
    client.delete_topic(name)
    client.create_topic(name, kind="table")
    with pytest.raises(StentorError):
        watch.get(timeout=10)
    with pytest.raises(StentorError):
        table.put("a", "2")
    with client.table(name) as anew:
        assert dict(anew) == {}


# --- partitions, messages -------------------------------------------------------------------------


def test_a_table_of_several_partitions(shared, client):
    name = f"table-{next(_numbers)}"
    client.create_topic(name, kind="table", partitions=3)
    with client.table(name) as table, shared.client() as second, second.table(name) as other:
        for number in range(60):
            table.put(f"k/{number}", str(number))
        assert len(table.sequence) == 3
        assert min(table.sequence) > 0
        assert sum(table.sequence) == 60
        other.wait(table.sequence, timeout=10)
        assert {entry.key: entry for entry in other.entries()} == {entry.key: entry for entry in table.entries()}
        entry = other.entry("k/5")
        other.put("k/5", "new", if_version=entry.version)
        with pytest.raises(ConditionFailed):
            table.put("k/5", "old", if_version=entry.version)
        with pytest.raises(InvalidArgument, match="partitions of table"):
            table.put_many({f"k/{number}": "1" for number in range(20)})
        table.delete("k/5")
        table.sync(timeout=10)
        assert len(table) == 59
        assert sum(table.add("k/n") for _ in range(5)) == 15


def test_readers_of_the_log_see_what_took_effect(client, name, table):
    table.put("a", "1")
    for _ in range(3):
        with pytest.raises(ConditionFailed):
            table.put("a", "2", if_absent=True)
    table.put("a", "3")
    with pytest.raises(ConditionFailed):
        table.put("a", "4", if_absent=True)
    assert [message.value for message in client.read(name)] == [b"1", b"3"]
    with client.subscribe(name, start="earliest", end="now") as subscription:
        assert [message.value for message in subscription] == [b"1", b"3"]
    with client.subscribe(name, start="earliest", end="now") as subscription:
        batches = list(subscription.batches())
    assert [value for batch in batches for value in batch.column("value").to_pylist()] == [b"1", b"3"]
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == [0, 4]


def test_what_producers_publish_is_in_the_copy(client, name, table):
    with client.producer(name) as producer:
        for number in range(1_000):
            producer.send(str(number), key=f"k/{number % 100}")
    table.sync(timeout=10)
    assert {key: int(value) for key, value in table.items()} == {f"k/{number}": 900 + number for number in range(100)}


# --- restarts -------------------------------------------------------------------------------------


def test_a_copy_outlives_its_broker(tmp_path):
    with broker(tmp_path / "data") as local, local.client() as client:
        client.create_topic("config", kind="table")
        with client.table("config") as table, table.watch() as watch:
            first = table.put("a", "1")
            with pytest.raises(ConditionFailed):
                table.put("a", "x", if_absent=True)
            local.stop()
            assert dict(table) == {"a": b"1"}, "reads are local"
            local.start()
            second = table.put("a", "2", if_version=first.version, timeout=30)
            with pytest.raises(ConditionFailed):
                table.put("a", "x", if_version=first.version)
            assert [watch.get(timeout=10).new for _ in range(2)] == [first, second]
            with pytest.raises(DeadlineExceeded):
                watch.get(timeout=0.01)


def test_a_watch_says_the_version_of_each_change_and_the_headers_of_its_message(table, other, client):
    with other.watch() as watch:
        table.put("a", "1")
        table.delete("a")
        client.publish(table.name, "2", key="b", headers={"from": b"me"})
        changes = [watch.get(timeout=10) for _ in range(3)]
    assert [change.version for change in changes] == [0, 1, 2]
    assert [list(change.headers) for change in changes] == [[], [], [("from", b"me")]]


# --- async ----------------------------------------------------------------------------------------


def test_the_same_for_async_code(shared, name):
    async def use():
        async with stentor.connect_async(shared.url) as client, client.table(name) as table, table.watch() as watch:
            made = await table.put("a", "1", if_absent=True)
            with pytest.raises(ConditionFailed):
                await table.put("a", "2", if_absent=True)
            assert (await watch.get(timeout=10)).new == made
            results = await asyncio.gather(*(table.add("n") for _ in range(10)))
            assert sorted(results) == list(range(1, 11))
            await table.put_many({"a": None, "b": "3"})
            await table.wait(table.sequence)
            assert await table.sync() == table.sequence
            assert dict(table) == {"n": b"10", "b": b"3"}
            await table.delete("b")
            with pytest.raises(DeadlineExceeded):
                await table.wait((10_000,), timeout=0.05)
            seen = [(await watch.get(timeout=10)).key for _ in range(12)]
            assert seen.count("n") == 10
            assert (await watch.get(timeout=10)).new is None
        with pytest.raises(Closed):
            table.entries()

    asyncio.run(use())
