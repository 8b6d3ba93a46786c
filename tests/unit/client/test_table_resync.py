"""A copy says whether it is behind; one whose log is gone is taken anew, and everyone hears of it."""

import asyncio
from datetime import timedelta

import pytest

import stentor
from stentor.errors import TopicNotFound
from stentor.testing import broker

SEGMENT = 64 * 1024


def partition_of(local, name="config", index=0):
    return next(each for each in local.inner.partitions.values() if each.name == f"{name}/{index}")


def let_go(local, offset, **which):
    """The log begins later: as after retention or compaction."""
    partition = partition_of(local, **which)
    assert partition.log.retire_below(offset, committed=partition.committed) > 0


def silence(table):
    """No stream feeds it; returns what feeds it again."""
    subscription = table._copy._subscription
    loop, open_stream = table._copy.core.loop, subscription.streams.open
    subscription.streams.open = lambda _: None

    async def stop():
        for reader in subscription.readers_now():
            subscription.streams.close(reader)
            reader.lost_at = loop.time()

    async def go_on():
        subscription.streams.open = open_stream
        subscription.streams.reopen()

    asyncio.run_coroutine_threadsafe(stop(), loop).result(10)
    return lambda: asyncio.run_coroutine_threadsafe(go_on(), loop).result(10)


@pytest.fixture
def local(tmp_path):
    with broker(tmp_path / "data") as running:
        yield running


@pytest.fixture
def client(local):
    with local.client() as connected:
        connected.create_topic("config", kind="table", segment_bytes=SEGMENT)
        yield connected


@pytest.fixture
def table(client):
    with client.table("config") as opened:
        yield opened


def fill(table):
    """Changes in several segments; the oldest ones may go afterwards."""
    for number in range(4):
        table.put("big", str(number) * 50_000)


# --- state ----------------------------------------------------------------------------------------


def test_a_copy_is_current_when_nothing_is_missing(table, wait_until):
    wait_until(lambda: table.state.condition == "current")
    table.put("a", "1")
    wait_until(lambda: table.state == stentor.CopyState("current", 0, 0.0))
    assert str(table.state) == "current"
    assert table.state.since is None


def test_an_empty_table_is_current_at_once(client):
    """Nobody waits for the brokers' next sweep to learn that nothing is missing."""
    client.create_topic("empty", kind="table")
    with client.table("empty") as table:
        table.sync()
        assert table.state.condition == "current"


def test_a_copy_without_a_broker_says_since_when(local, table, wait_until):
    table.put("a", "1")
    wait_until(lambda: table.state.condition == "current")
    local.stop()
    wait_until(lambda: table.state.condition == "cut off")
    first = table.state
    wait_until(lambda: table.state.age_s > first.age_s)
    assert str(first).startswith("cut off since 20")
    assert abs(table.state.since - first.since) < timedelta(seconds=1), "it is the same moment"
    assert table["a"] == b"1"
    local.start()
    wait_until(lambda: table.state.condition == "current")


def test_a_copy_that_is_behind_says_by_how_much(local, client, table, wait_until):
    fill(table)
    wait_until(lambda: table.state.condition == "current")
    feed = silence(table)
    with local.client() as second, second.table("config") as other:
        other.put_many({f"k/{number}": "1" for number in range(20)})
    assert table.state.condition == "cut off"
    assert len(table) == 1
    feed()
    wait_until(lambda: table.state.condition == "current")
    assert len(table) == 21


def test_the_state_of_a_closed_copy_is_its_end(client):
    table = client.table("config")
    table.close()
    with pytest.raises(stentor.Closed):
        _ = table.state


# --- taken anew -----------------------------------------------------------------------------------


def test_a_copy_whose_log_is_gone_is_taken_anew_and_tells_the_difference(local, table, wait_until):
    with local.client() as second, second.table("config") as other:
        table.put_many({"keep": "1", "change": "1", "delete": "1"})
        news, watch = [], table.watch()
        table.on_resync(news.append)
        state = {entry.key: entry for entry in table.entries()}
        before = table.sequence
        feed = silence(table)
        fill(other)
        other.put_many({"keep": "1", "change": "2", "new": "1", "delete": None, "short": "1"})
        other.put_many({"short": None})
        let_go(local, other.sequence[0] - 3)
        feed()
        wait_until(lambda: news)
        assert table.sequence >= other.sequence
        with second.table("config") as anew:
            assert table.entries() == anew.entries()
        changes = [watch.get(timeout=10) for _ in range(news[0].changes)]
        for change in changes:
            assert state.get(change.key) == change.old
            state.pop(change.key, None)
            if change.new is not None:
                state[change.key] = change.new
        assert state == {entry.key: entry for entry in table.entries()}
        assert len({change.key for change in changes}) == len(changes), "none is told twice"
        assert (news[0].table, news[0].before, news[0].after) == ("config", before, table.sequence)
        last = other.put("keep", "2")
        assert watch.get(timeout=10).new == last, "it goes on"
        assert table.put("keep", "3", if_version=last.version).value == b"3"
        assert len(news) == 1


def test_who_waits_for_a_sequence_gets_it_from_the_new_copy(local, table):
    with local.client() as second, second.table("config") as other:
        table.put("a", "1")
        feed = silence(table)
        fill(other)
        let_go(local, other.sequence[0] - 1)
        feed()
        table.wait(other.sequence, timeout=20)
        with second.table("config") as anew:
            assert table.entries() == anew.entries()


def test_a_table_that_is_deleted_while_its_copy_is_taken_anew_ends_it(local, client, table, wait_until):
    with local.client() as second, second.table("config") as other:
        table.put("a", "1")
        feed = silence(table)
        fill(other)
        let_go(local, other.sequence[0] - 1)
        second.delete_topic("config")
        feed()

        def ended():
            try:
                return table.state is None
            except TopicNotFound:
                return True

        wait_until(ended)


def test_callbacks_end_when_they_are_told_to(table):
    stop = table.on_resync(print)
    assert len(table._copy.resync_listeners) == 1
    stop()
    stop()
    assert table._copy.resync_listeners == []
    with pytest.raises(stentor.InvalidArgument, match="A callback is a function"):
        table.on_resync("print")


def test_several_partitions_are_taken_anew_together(local, client, wait_until):
    client.create_topic("parts", kind="table", partitions=2, segment_bytes=SEGMENT)
    with client.table("parts") as table, local.client() as second, second.table("parts") as other:
        for number in range(20):
            table.put(f"k/{number}", "1")
        news = []
        table.on_resync(news.append)
        feed = silence(table)
        for number in range(20):
            other.put(f"k/{number}", "2" * 30_000)
        other.delete("k/7")
        let_go(local, other.sequence[0] - 1, name="parts", index=0)
        feed()
        wait_until(lambda: news)
        table.wait(other.sequence, timeout=20)
        with second.table("parts") as anew:
            assert {entry.key: entry for entry in table.entries()} == {entry.key: entry for entry in anew.entries()}


def test_the_same_for_async_code(local, client):
    async def use():
        async with stentor.connect_async(local.url) as mine, mine.table("config") as table:
            told, news = asyncio.Event(), []

            async def callback(found):
                news.append(found)
                told.set()
                raise RuntimeError("it is logged")

            table.on_resync(callback)
            async with table.watch() as watch:
                subscription = table._copy._subscription
                streams, open_stream = subscription.streams, subscription.streams.open
                streams.open = lambda _: None
                for reader in subscription.readers_now():
                    streams.close(reader)
                await asyncio.to_thread(elsewhere)
                streams.open = open_stream
                streams.reopen()
                async with asyncio.timeout(20):
                    await told.wait()
                changes = [await watch.get(timeout=10) for _ in range(news[0].changes)]
                assert [change.key for change in changes] == ["big"]
                assert table.state.condition in ("current", "catching up")

    def elsewhere():
        with local.client() as second, second.table("config") as other:
            fill(other)
            let_go(local, other.sequence[0] - 1)

    asyncio.run(use())


def test_a_copy_that_would_miss_deletions_is_taken_anew(local, table, wait_until):
    table.put("a", "1")
    news = []
    table.on_resync(news.append)
    table._copy.core.loop.call_soon_threadsafe(table._copy._take, stentor.Compacted("Deletions are gone."))
    wait_until(lambda: news)
    assert (news[0].changes, news[0].reason) == (0, "Deletions are gone.")
    assert dict(table) == {"a": b"1"}
    table.put("a", "2")
    assert table.sync() == table.sequence
