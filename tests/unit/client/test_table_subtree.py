"""Copies of a subtree: brokers send its rows alone; positions, waits and watches work as those of whole copies do."""

import asyncio
import itertools
import threading

import pytest

import stentor
from stentor.broker.sessions import subtree_stream
from stentor.broker.sessions.client_session import ClientSession
from stentor.client.subscription_core import SubscriptionCore
from stentor.errors import ConditionFailed, InvalidArgument
from stentor.testing import broker

_numbers = itertools.count()


@pytest.fixture
def name(client):
    made = f"part-{next(_numbers)}"
    client.create_topic(made, kind="table")
    return made


@pytest.fixture
def table(client, name):
    with client.table(name) as opened:
        yield opened


def fill(client, name, keys=10_000, share=100):
    """One key of so many is below app/."""
    with client.producer(name) as producer:
        for number in range(keys):
            where = "app" if number % share == 0 else f"other{number % 7}"
            producer.send(b"%0100d" % number, key=f"{where}/{number}")


def received(client):
    """Bytes that a client got from its broker."""
    return sum(link.connection.bytes_in for link in client._core.links.alive())


def test_a_copy_of_a_subtree_is_that_part_of_the_table(shared, client, name, table):
    fill(client, name)
    table.sync()
    with shared.client() as second, second.table(name, subtree="app/") as part:
        assert part.entries() == table.entries("app/")
        assert len(part) == 100
        assert part.sequence == table.sequence
        assert part.sync(timeout=10) == table.sequence


def test_a_hundredth_of_a_table_takes_about_a_hundredth_of_the_bytes(shared, client, name):
    fill(client, name, keys=20_000)
    taken = {}
    for subtree in ("", "app/"):
        with shared.client() as second:
            before = received(second)
            with second.table(name, subtree=subtree) as part:
                taken[subtree] = received(second) - before
                assert len(part) == (200 if subtree else 20_000)
    assert taken[""] > 20_000 * 100
    assert taken["app/"] < taken[""] * 0.02, taken


def test_changes_elsewhere_cost_next_to_nothing_and_move_the_sequence(shared, table, name):
    with shared.client() as second, second.table(name, subtree="app/") as part, part.watch() as watch:
        before = received(second)
        for number in range(300):
            table.put("other/a", f"{number:0500}")
        made = table.put("app/a", "1")
        for number in range(300):
            table.put("other/a", f"{number:0500}")
        part.wait(table.sequence, timeout=10)
        assert part.entries() == [made]
        assert watch.get(timeout=10).new == made
        assert received(second) - before < 600 * 500 * 0.2
        assert part.state.behind == 0


def test_whoever_waits_for_changes_elsewhere_hears_that_they_are_over(shared, table, name):
    with shared.client() as second, second.table(name, subtree="app/") as part:
        table.put("other/a", "1")
        part.wait(table.sequence, timeout=10)
        assert part.sync(timeout=10) == table.sequence
        assert dict(part) == {}


def test_a_copy_of_a_subtree_changes_the_table(table, client, name):
    with client.table(name, subtree="app/") as part:
        first = part.put("app/a", "1", if_absent=True)
        with pytest.raises(ConditionFailed):
            part.put("app/a", "2", if_absent=True)
        part.put_many({"app/b": "2", "app/c": "3"})
        part.delete("app/b")
        assert [part.add("app/n") for _ in range(3)] == [1, 2, 3]
        table.sync()
        assert part.entries() == table.entries()
        assert part.history("app/a")[0].version == first.version
        assert part.get_many(["app/a", "app/x"]).values == {"app/a": b"1"}


def test_keys_outside_are_not_absent_but_unknown(client, name, table):
    table.put("other/a", "1")
    with client.table(name, subtree="app/") as part:
        for call in (
            lambda: part["other/a"],
            lambda: part.get("other/a"),
            lambda: part.get("other/a", b"none"),
            lambda: "other/a" in part,
            lambda: part.entry("other/a"),
            lambda: part.entries("other/"),
            lambda: part.keys("other/"),
            lambda: part.get_many(["app/a", "other/a"]),
            lambda: part.history("other/a"),
            lambda: part.watch("other/"),
            lambda: part.on_change("other/", print),
            lambda: part.put("other/a", "2"),
            lambda: part.put_many({"app/a": "1", "other/a": "2"}),
            lambda: part.add("other/n"),
            lambda: part.delete("other/a"),
        ):
            with pytest.raises(InvalidArgument, match="is outside of app/, the subtree of table"):
                call()
        with pytest.raises(KeyError):
            part["app/a"]
        assert "app/a" not in part
        assert part.entries("app/limits/") == []
    assert table.history("other/a", limit=None)[0].value == b"1"


@pytest.mark.parametrize("subtree", ["app", "/app/", "a//b/", 7, None], ids=str)
def test_a_subtree_ends_with_a_slash(client, name, subtree):
    with pytest.raises(InvalidArgument, match="subtree"):
        client.table(name, subtree=subtree)


def test_a_watch_of_a_subtree_copy_begins_in_the_past(client, name, table):
    with client.table(name, subtree="app/") as part:
        start = part.sequence
        table.put_many({"app/a": "1", "other/a": "1", "app/b": "2"})
        part.wait(table.sequence, timeout=10)
        with part.watch(start=start) as watch:
            assert [watch.get(timeout=10).key for _ in range(2)] == ["app/a", "app/b"]
            table.put("app/c", "3")
            assert watch.get(timeout=10).key == "app/c"


def test_a_broker_that_does_not_know_subtrees_sends_everything(shared, client, name, table, monkeypatch):
    """The field is ignored there; the copy is the same."""
    made = ClientSession._stream
    monkeypatch.setattr(ClientSession, "_stream", lambda self, *wish: made(self, *wish[:-1], ""))
    fill(client, name, keys=1_000)
    with client.table(name, subtree="app/") as part:
        table.sync()
        assert part.entries() == table.entries("app/")
        assert part.sequence == table.sequence
        made_now = table.put("app/new", "1")
        table.put("other/new", "1")
        part.wait(table.sequence, timeout=10)
        assert part.entry("app/new") == made_now
        assert len(part) == 11


def test_only_tables_have_subtrees(client, shared):
    client.create_topic("part.stream", exist_ok=True)

    async def subscribe():
        found = asyncio.Queue()
        subscription = SubscriptionCore(client._core, "part.stream", put=found.put_nowait, subtree="a/")
        await subscription.open(client._core.deadline(10))
        async with asyncio.timeout(10):
            return await found.get()

    refusal = client._call(subscribe())
    assert isinstance(refusal, InvalidArgument)
    assert "is no table" in refusal.message


def test_a_copy_of_a_subtree_outlives_its_broker(tmp_path):
    with broker(tmp_path / "data") as local, local.client() as client:
        client.create_topic("config", kind="table")
        with client.table("config") as table, client.table("config", subtree="app/") as part:
            first = table.put("app/a", "1")
            table.put("other/a", "1")
            local.stop()
            assert dict(part) == {"app/a": b"1"}
            local.start()
            second = table.put("app/a", "2", if_version=first.version, timeout=30)
            table.put("other/b", "1")
            part.wait(table.sequence, timeout=30)
            assert part.entry("app/a") == second


@pytest.fixture
def filtered(monkeypatch):
    """Names of threads, and bytes of the batches that they begin to filter."""
    found = []

    class Noted(subtree_stream.Filtering):
        def __init__(self, chunks, subtree, floor):
            super().__init__(chunks, subtree, floor)
            self.size = sum(map(len, chunks))

        def go_on(self):
            found.append((threading.current_thread().name, self.size))
            self.size = 0  # it may go on
            return super().go_on()

    monkeypatch.setattr(subtree_stream, "Filtering", Noted)
    return found


def test_large_pushes_are_filtered_outside_of_the_loop(shared, client, name, filtered):
    """Whatever is larger than a few messages is filtered in a thread: the broker's loop goes on meanwhile."""
    fill(client, name, keys=20_000)
    with shared.client() as second, second.table(name, subtree="app/") as part:
        assert len(part) == 200
    in_loop = [size for thread, size in filtered if thread == "stentor-broker"]
    assert max(in_loop, default=0) <= subtree_stream._AT_ONCE_BYTES
    assert sum(size for thread, size in filtered if thread != "stentor-broker") > 1_000_000


def test_batches_that_expand_are_filtered_outside_of_the_loop_and_arrive(shared, client, name, filtered):
    """Few bytes may be many megabytes of headers; six such batches were one, which no client could read."""
    keys = [*(f"app/{number}" for number in range(30)), "zzz"]
    with client.producer(name, compression="zstd") as producer:
        for round_ in range(6):
            for key in keys:
                producer.send(b"%d" % round_, key=key, headers={"h": bytes(1_000_000)})
            producer.flush()
    with shared.client() as second, second.table(name, subtree="app/") as part:
        assert dict(part) == dict.fromkeys(keys[:-1], b"5")
    assert sum(size for _, size in filtered) < 100_000
    assert not [size for thread, size in filtered if thread == "stentor-broker"]


def test_the_same_for_async_code(shared, name):
    async def use():
        async with stentor.connect_async(shared.url) as client, client.table(name) as table:
            await table.put_many({"app/a": "1", "b": "2"})
            async with client.table(name, subtree="app/") as part:
                assert dict(part) == {"app/a": b"1"}
                await table.put("b", "3")
                assert await part.sync(timeout=10) == table.sequence
                with pytest.raises(InvalidArgument):
                    await part.put("b", "4")

    asyncio.run(use())
