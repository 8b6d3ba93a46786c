"""A reader that a compaction overtakes comes to the present state, and hears that messages are missing (C23)."""

import asyncio
import itertools
import json
import logging
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

import stentor
from stentor.broker.partitions import compaction, compactions
from stentor.broker.partitions.compaction import PartitionCompaction
from stentor.client import table_reload
from stentor.errors import Closed, Compacted, DeadlineExceeded, SlowSubscriber
from stentor.testing import broker

KEYS, ROUNDS = 20, 10
WRITTEN = KEYS * ROUNDS
_numbers = itertools.count()
_compacted = set()  # partitions that may be compacted now


@pytest.fixture(scope="module")
def local():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(compactions, "COMPACTION_CHECK_S", 0.02)
        patched.setattr(compaction, "COMPACTION_QUIET_S", 0.1)
        patched.setattr(compaction, "COMPACTION_QUIET_BYTES_MIN", 1)
        is_worth_it = PartitionCompaction.is_worth_it

        def is_wanted(each, now_s):
            return each._partition.name in _compacted and is_worth_it(each, now_s)

        patched.setattr(PartitionCompaction, "is_worth_it", is_wanted)
        with broker() as running:
            yield running


@pytest.fixture
def client(local):
    with local.client() as connected:
        yield connected


@pytest.fixture
def elsewhere(local):
    with local.client() as connected:
        yield connected


def made(client, **settings):
    name = f"overtaken-{next(_numbers)}"
    client.create_topic(name, **settings)
    return name


@contextmanager
def silent(client, core, only=None):
    """The streams of a subscription bring nothing while this lasts; afterwards that of this partition, or all."""
    loop, streams = client._async._core.loop, core.streams
    opening = streams.open

    async def stop():
        streams.open = lambda _: None
        for reader in core.readers_now():
            streams.close(reader)

    async def go_on():
        streams.open = lambda reader: opening(reader) if only in (None, reader.partition) else None
        streams.reopen()

    asyncio.run_coroutine_threadsafe(stop(), loop).result(10)
    yield
    asyncio.run_coroutine_threadsafe(go_on(), loop).result(10)


def write(client, name, rounds=ROUNDS, prefix="k", more=b""):
    """Every key again and again: a compaction leaves the last round."""
    with client.producer(name) as producer:
        for number in range(rounds):
            for key in range(KEYS):
                producer.send(b"%d" % number + more, key=f"{prefix}/{key}")


def write_and_compact(client, name, wait_until, partitions=1, **how):
    write(client, name, **how)
    _compacted.update(f"{name}/{partition}" for partition in range(partitions))

    def is_compacted():
        rows = [row for row in client.statistics()["partitions"] if row["topic"] == name]
        return all(
            row["compaction"]["runs"]
            and row["log"]["end"] == row["compaction"]["horizon"] + 1 == row["compaction"]["compacted_to"] + 1
            for row in rows
        )

    wait_until(is_compacted, "it is compacted")
    _compacted.clear()


def taken(source, count):
    return [source.get(timeout=10) for _ in range(count)]


def nothing_more(source):
    with pytest.raises(DeadlineExceeded):
        source.get(timeout=0.05)


# --- tables -----------------------------------------------------------------------------------------


@pytest.fixture(params=["", "k/"], ids=["whole", "subtree"])
def table(client, request):
    with client.table(made(client, kind="table"), subtree=request.param) as opened:
        opened.put("k/first", "1")
        yield opened


def test_a_watcher_that_misses_changes_is_told_how_many(client, elsewhere, table, wait_until):
    news = []
    table.on_resync(news.append)
    before = table.sequence
    with table.watch() as watch:
        with silent(client, table._copy._subscription):
            write_and_compact(elsewhere, table.name, wait_until)
        found = taken(watch, KEYS)
        nothing_more(watch)
        assert {change.key: change.new.value for change in found} == {f"k/{key}": b"9" for key in range(KEYS)}
        assert [change.skipped for change in found] == [WRITTEN - KEYS] + [0] * (KEYS - 1)
        wait_until(lambda: news)
        assert (news[0].table, news[0].before, news[0].after) == (table.name, before, table.sequence)
        assert news[0].changes == KEYS
        assert f"up to {WRITTEN - KEYS} changes" in news[0].reason
        table.put("k/0", "later")
        assert watch.get(timeout=10).skipped == 0, "once is enough"
        assert len(news) == 1


def test_a_watcher_who_wants_every_change_gets_an_error(client, elsewhere, table, wait_until):
    with table.watch(on_slow="raise") as watch, table.watch() as other:
        table.put("k/seen", "1")
        with silent(client, table._copy._subscription):
            write_and_compact(elsewhere, table.name, wait_until)
        assert watch.get(timeout=10).key == "k/seen", "what came before is told"
        for _ in range(2):
            with pytest.raises(SlowSubscriber, match=f"removed up to {WRITTEN - KEYS} changes") as caught:
                watch.get(timeout=10)
            assert caught.value.object == table.name
        assert len(taken(other, KEYS + 1)) == KEYS + 1


def test_a_watcher_of_a_copy_that_is_taken_anew_is_told_as_well(client, elsewhere, wait_until):
    """Deletions went, too: the copy began again, and what lies between is told as differences."""
    name = made(client, kind="table", deletions_kept_s=0)
    with client.table(name) as table:
        table.put_many({"k/gone": "1", "k/0": "1"})
        with table.watch() as watch, table.watch(on_slow="raise") as strict:
            with silent(client, table._copy._subscription):
                with elsewhere.table(name) as other:
                    other.delete("k/gone")
                write_and_compact(elsewhere, name, wait_until)
            found = taken(watch, KEYS + 1)
            assert {change.key for change in found} == {f"k/{key}" for key in range(KEYS)} | {"k/gone"}
            assert sum(change.skipped for change in found) >= WRITTEN - KEYS
            with pytest.raises(SlowSubscriber):
                strict.get(timeout=10)


def test_what_other_partitions_miss_while_a_copy_is_taken_anew_is_told_as_well(
    client, elsewhere, wait_until, monkeypatch
):
    """One partition must be taken anew, and another one is overtaken by a compaction before that is done."""
    name = made(client, kind="table", partitions=2)
    goes_on, reload = threading.Event(), table_reload.reload

    async def reload_later(copy, why):
        await asyncio.to_thread(goes_on.wait, 10)
        await reload(copy, why)

    monkeypatch.setattr(table_reload, "reload", reload_later)
    with client.table(name) as table, table.watch() as watch:
        news, copy = [], table._copy
        table.on_resync(news.append)
        write(elsewhere, name, rounds=1)
        taken(watch, KEYS)
        before = table.sequence
        with silent(client, copy._subscription, only=1):
            write_and_compact(elsewhere, name, wait_until, partitions=2)
            copy.core.loop.call_soon_threadsafe(copy._take, Compacted("Deletions of partition 0 are gone."))
        wait_until(lambda: table.sequence[1] > before[1], "the other partition goes on")
        assert not news
        goes_on.set()
        wait_until(lambda: news)
        found = taken(watch, KEYS)
        nothing_more(watch)
        assert {change.key: change.new.value for change in found} == {f"k/{key}": b"9" for key in range(KEYS)}
        records = len(found) + sum(change.skipped for change in found) - WRITTEN
        assert 0 <= records <= 2, "at most: the log's own records have offsets as well"
        assert (news[0].before, news[0].after, news[0].changes) == (before, table.sequence, KEYS)
        assert len(news) == 1


def test_who_begins_afterwards_misses_nothing(client, elsewhere, wait_until):
    name = made(client, kind="table")
    write_and_compact(elsewhere, name, wait_until)
    with client.table(name) as table, table.watch(on_slow="raise") as watch:
        news = []
        table.on_resync(news.append)
        table.put("k/0", "1")
        assert watch.get(timeout=10).skipped == 0
        assert not news


# --- watches from a past sequence -------------------------------------------------------------------


def applied(state, changes):
    """What somebody holds who applies changes."""
    for change in changes:
        state.pop(change.key, None)
        if change.new is not None:
            state[change.key] = change.new
    return state


def everything(watch):
    found = []
    while True:
        try:
            found.append(watch.get(timeout=0.2))
        except DeadlineExceeded:
            return found


@pytest.fixture
def past(client, elsewhere, wait_until):
    """A table that was compacted since somebody took its sequence and its entries."""

    def make(**settings):
        name = made(client, kind="table", **settings)
        table = client.table(name)
        tables.append(table)
        table.put_many({"k/0": "old", "k/gone": "old", "other/0": "old"})
        sequence, state = table.sequence, {entry.key: entry for entry in table.entries()}
        table.delete("k/gone")
        write_and_compact(elsewhere, name, wait_until)
        table.sync()
        return table, sequence, state

    tables = []
    yield make
    for table in tables:
        table.close()


def test_a_watch_from_below_the_horizon_comes_to_the_present_state(past):
    table, sequence, state = past()
    with table.watch(start=sequence) as watch:
        table.put("k/later", "1")
        found = everything(watch)
        assert applied(state, found) == {entry.key: entry for entry in table.entries()}
        assert [change.skipped for change in found] == [WRITTEN - KEYS] + [0] * (len(found) - 1)
        assert watch.sequence == table.sequence
    with table.watch("k/", start=sequence) as watch:
        assert sum(change.skipped for change in everything(watch)) == WRITTEN - KEYS
    with table.watch("nothing/", start=sequence) as watch:
        table.put("nothing/yet", "1")
        assert [change.skipped for change in everything(watch)] == [WRITTEN - KEYS]


def test_a_watch_from_above_the_horizon_misses_nothing(past):
    table, _, _ = past()
    sequence = table.sequence
    table.put("k/0", "1")
    table.put("k/0", "2")
    with table.watch(start=sequence, on_slow="raise") as watch:
        assert [(change.skipped, change.new.value) for change in everything(watch)] == [(0, b"1"), (0, b"2")]


def test_a_watch_that_wants_every_change_of_the_past_gets_an_error(past):
    table, sequence, _ = past()
    with table.watch(start=sequence, on_slow="raise") as watch:
        table.put("k/later", "1")
        for _ in range(2):
            with pytest.raises(SlowSubscriber, match=f"removed up to {WRITTEN - KEYS} changes"):
                watch.get(timeout=10)
        assert watch.sequence == sequence


def test_a_watch_that_would_miss_deletions_says_so_and_begins_again(past, wait_until, elsewhere):
    table, sequence, state = past(deletions_kept_s=0)
    with table.watch(start=sequence) as watch:
        with pytest.raises(Compacted, match="are no longer known") as caught:
            watch.get(timeout=10)
        assert caught.value.object == table.name
        state.clear()
        assert watch.sequence == sequence, "nothing is taken yet"
        table.put("k/later", "1")
        found = everything(watch)
        assert all(change.old is None for change in found)
        assert applied(state, found) == {entry.key: entry for entry in table.entries()}
        assert watch.sequence == table.sequence


def test_async_watches_of_the_past_do_the_same(local, past):
    async def use(table, sequence):
        async with (
            stentor.connect_async(local.url) as mine,
            mine.table(table.name) as own,
            own.watch(start=sequence) as watch,
        ):
            with pytest.raises(Compacted):
                await watch.get(timeout=10)
            found = [await watch.get(timeout=10) for _ in range(len(own))]
            assert {change.key: change.new for change in found} == {entry.key: entry for entry in own.entries()}

    table, sequence, _ = past(deletions_kept_s=0)
    asyncio.run(use(table, sequence))


# --- topics -----------------------------------------------------------------------------------------


@pytest.fixture
def topic(client):
    return made(client, cleanup="compact")


def test_a_subscription_that_is_overtaken_has_an_event(client, elsewhere, topic, wait_until, caplog):
    with client.subscribe(topic) as subscription:
        elsewhere.publish(topic, "1", key="k/first")
        assert subscription.get(timeout=10).offset == 0
        with silent(client, subscription._core), caplog.at_level(logging.WARNING):
            write_and_compact(elsewhere, topic, wait_until)
        found = taken(subscription, KEYS)
        assert {message.value for message in found} == {b"9"}
        (event,) = subscription.events()
        assert (event.kind, event.topic, event.partition) == ("compacted", topic, 0)
        assert event.messages == WRITTEN - KEYS
        assert event.first_offset == 1
        assert event.next_offset > found[-1].offset
        assert subscription.statistics()["compacted"] == WRITTEN - KEYS
        assert subscription.events() == []
        assert caplog.text.count("a compaction removed messages before this reader came to them") == 1


def test_a_subscription_that_wants_an_error_gets_one(client, elsewhere, topic, wait_until):
    with client.subscribe(topic, on_slow="raise", max_lag=1_000_000) as subscription:
        with silent(client, subscription._core):
            write_and_compact(elsewhere, topic, wait_until)
        with pytest.raises(SlowSubscriber, match=f"removed up to {WRITTEN - KEYS} messages"):
            subscription.get(timeout=10)


def test_who_begins_at_the_beginning_gets_what_is_left(client, elsewhere, topic, wait_until, caplog):
    write_and_compact(elsewhere, topic, wait_until)
    with client.subscribe(topic, start="earliest", on_slow="raise", max_lag=1_000_000) as subscription:
        assert len(taken(subscription, KEYS)) == KEYS
        assert [event.messages for event in subscription.events()] == [WRITTEN - KEYS]
    assert "a compaction removed" not in caplog.text


def test_a_position_below_the_horizon_is_told_what_it_misses(client, elsewhere, topic, wait_until):
    write(elsewhere, topic)
    with client.subscribe(topic, start="earliest") as subscription:
        taken(subscription, 5)
        stored = subscription.positions()
    write_and_compact(elsewhere, topic, wait_until)
    with client.subscribe(topic, start=stored) as subscription:
        taken(subscription, KEYS)
        (event,) = subscription.events()
        assert (event.kind, event.first_offset, event.messages) == ("compacted", 5, 2 * WRITTEN - 5 - KEYS)


def test_a_bounded_read_counts_what_it_misses(client, elsewhere, topic, wait_until):
    write_and_compact(elsewhere, topic, wait_until)
    end = WRITTEN - KEYS // 2
    history = client.read(topic, start=50, end=end)
    assert len(list(history)) == KEYS // 2
    assert history.compacted == end - 50 - KEYS // 2, "from its start, up to its end"
    history = client.read(topic, start=WRITTEN - 1)
    assert len(list(history)) == 1
    assert history.compacted <= 1, "a horizon behind the last message may count"


def test_a_member_of_a_group_is_told(client, elsewhere, topic, wait_until):
    write(elsewhere, topic)
    with client.group("readers", topic) as group:
        taken(group, 30)
    write_and_compact(elsewhere, topic, wait_until)
    with client.group("readers", topic) as group:
        found = taken(group, KEYS)
        assert {message.value for message in found} == {b"9"}
        (event,) = [event for event in group.events() if event.kind == "compacted"]
        assert (event.topic, event.first_offset) == (topic, 30)
        assert event.messages == 2 * WRITTEN - 30 - KEYS


def test_the_same_for_async_code(local, elsewhere, topic, wait_until):
    async def use():
        async with stentor.connect_async(local.url) as mine, mine.subscribe(topic, start=3) as subscription:
            for _ in range(KEYS):
                await subscription.get(timeout=10)
            assert [event.kind for event in subscription.events()] == ["compacted"]
        async with stentor.connect_async(local.url) as mine:
            async with mine.subscribe(topic, start=3, on_slow="raise", max_lag=1_000_000) as subscription:
                with pytest.raises(SlowSubscriber):
                    await subscription.get(timeout=10)
            history = await mine.read(topic, start=3)
            assert len([message async for message in history]) == KEYS
            assert history.compacted >= WRITTEN - 3 - KEYS

    write_and_compact(elsewhere, topic, wait_until)
    asyncio.run(use())


def test_a_log_that_was_not_compacted_has_no_such_events(client):
    name = made(client)
    write(client, name)
    with client.subscribe(name, start=7, on_slow="raise", max_lag=1_000_000) as subscription:
        taken(subscription, 20)
        assert subscription.events() == []
    subscription.close()
    with pytest.raises(Closed):
        taken(subscription, WRITTEN)


# --- commands -------------------------------------------------------------------------------------


def command(local, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "stentor", *arguments, "--url", local.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_the_command_subscribe_reports_what_a_compaction_removed(local, client, wait_until):
    name = made(client, cleanup="compact")
    write_and_compact(client, name, wait_until)
    process = command(local, "subscribe", name, "--start", "earliest", "--idle", "1")
    shown, said = process.communicate(timeout=30)
    missing = WRITTEN - len(shown.splitlines())
    assert missing > 0
    assert f"Compactions removed {missing} messages of {name}/0 before they could be shown.".encode() in said


def test_the_command_table_watch_reports_changes_that_it_never_got(local, client, wait_until):
    name = made(client, kind="table")
    write(client, name, rounds=1)
    process = command(local, "table", "watch", name, "--json")
    table = client.table(name)
    shown = []
    reading = threading.Thread(target=lambda: shown.extend(process.stdout), daemon=True)
    reading.start()
    wait_until(lambda: table.put("here", "1") and shown, seconds=30)
    process.send_signal(signal.SIGSTOP)
    write_and_compact(client, name, wait_until, more=b"x" * 150_000)  # more than is on its way to the process
    process.send_signal(signal.SIGCONT)
    table.put("last", "1")
    wait_until(lambda: shown and b'"last"' in shown[-1], seconds=30)
    process.send_signal(signal.SIGINT)
    said = process.stderr.read().decode()
    process.wait(30)
    reading.join(10)
    process.stdout.close()
    process.stderr.close()
    missing = sum(json.loads(line).get("skipped", 0) for line in shown)
    assert missing > WRITTEN / 2
    assert f"{missing} changes were not shown" in said
