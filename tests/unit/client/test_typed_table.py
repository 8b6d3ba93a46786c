"""Tables whose values are of one type: checked when they are put, decoded when they are read."""

import asyncio
import itertools
from dataclasses import dataclass

import msgspec
import pytest

import stentor
from stentor.errors import ConditionFailed, DecodeFailed, InvalidArgument

_numbers = itertools.count()


class Limit(msgspec.Struct):
    rate: int
    burst: int = 10


@dataclass
class Place:
    city: str


@pytest.fixture
def name(client):
    made = f"typed-{next(_numbers)}"
    client.create_topic(made, kind="table")
    return made


@pytest.fixture
def table(client, name):
    with client.table(name, type=Limit) as opened:
        yield opened


def test_values_come_back_as_they_were_put(client, name, table):
    made = table.put("a/x", Limit(1))
    table.put_many({"a/y": Limit(2, 3), "b": Limit(4)})
    assert made == stentor.TypedEntry("a/x", Limit(1), made.version) == table.entry("a/x")
    assert table["a/x"] == Limit(1)
    assert dict(table) == {"a/x": Limit(1), "a/y": Limit(2, 3), "b": Limit(4)}
    assert dict(table.items("a/")) == {"a/x": Limit(1), "a/y": Limit(2, 3)}
    assert list(table.values("b/")) == []
    assert (table.get("z"), table.get("z", 7), table.get("b"), len(table), "b" in table) == (None, 7, Limit(4), 3, True)
    assert [entry.value.rate for entry in table.entries("a/")] == [1, 2]
    assert table.get_many(["b", "z"]) == ({"b": Limit(4)}, table.sequence)
    with pytest.raises(KeyError):
        table["z"]
    table["b"].rate = 99
    assert table["b"] == Limit(4), "what is read is the reader's own"
    with client.table(name) as plain:
        assert plain["a/y"] == b'{"rate":2,"burst":3}'
    table.put_many({"b": None})
    table.delete("a/y", if_version=table.entry("a/y").version)
    assert list(table.keys()) == ["a/x"]
    assert [each.value for each in table.history("a/y")] == [None, Limit(2, 3)]
    assert table.to_arrow().num_rows == 1
    assert table.sync() == table.sequence
    table.wait(table.sequence)


def test_conditions_work_as_they_do_without_a_type(table):
    first = table.put("a", Limit(1), if_absent=True)
    table.put("a", Limit(2), if_version=first.version)
    with pytest.raises(ConditionFailed):
        table.put("a", Limit(3), if_version=first.version)
    assert table["a"] == Limit(2)


@pytest.mark.parametrize(
    ("value", "field", "said"),
    [
        (Limit("many"), "rate", "its field rate is wrong: Expected `int`, got `str`"),
        (Limit(1, None), "burst", "its field burst is wrong: Expected `int`, got `null`"),
        ({"rate": 1}, "", "it is of type dict"),
        (b'{"rate": 1}', "", "it is of type bytes"),
    ],
    ids=["field", "second field", "map", "bytes"],
)
def test_what_does_not_fit_is_refused_with_its_key_and_field(table, value, field, said):
    for call in (lambda: table.put("a/b", value), lambda: table.put_many({"ok": Limit(1), "a/b": value})):
        with pytest.raises(InvalidArgument) as caught:
            call()
        assert caught.value.message == f"The value of key a/b of table {table.name} does not fit Limit: {said}."
        assert caught.value.detail["field"] == field
    assert len(table) == 0, "nothing was changed"


def test_none_is_for_delete(client, name):
    with client.table(name, type=Limit | None) as table, pytest.raises(InvalidArgument, match="set to a value"):
        table.put("a", None)


def test_a_stored_value_that_does_not_fit_hurts_only_who_reads_it(client, name, table):
    table.put("good", Limit(1))
    with client.table(name) as plain:
        made = plain.put("bad", '{"rate": "x"}')
    table.sync()
    assert table["good"] == Limit(1)
    for call in (lambda: table["bad"], lambda: table.entry("bad"), table.entries, lambda: table.history("bad")):
        with pytest.raises(DecodeFailed, match=rf"The value of key bad of table {name} does not fit Limit") as caught:
            call()
        assert caught.value.object == "bad"
        assert caught.value.detail["offset"] == made.version
    assert "bad" in table


def test_changes_are_decoded(table, wait_until):
    called = []
    stop = table.on_change("a/", called.append)
    with table.watch("a/", limit=5) as watch:
        before = watch.sequence
        table.put("a/x", Limit(1))
        table.delete("a/x")
        first, second = watch.get(timeout=10), watch.get(timeout=10)
        assert (first.old, first.new.value, second.old.value, second.new) == (None, Limit(1), Limit(1), None)
        assert first.change.new.value == b'{"rate":1,"burst":10}'
        assert watch.sequence == table.sequence
    with table.watch(start=before) as watch:
        assert next(iter(watch)).new.value == Limit(1)
    wait_until(lambda: len(called) == 2)
    assert called[0] == first
    stop()
    table.on_resync(print)()
    assert table.state.condition in ("current", "catching up")


def test_other_types_and_formats(client, name):
    with client.table(name, type=Place, format="msgpack") as places:
        places.put("home", Place("Pylos"))
        assert places["home"] == Place("Pylos")
    with pytest.raises(InvalidArgument, match="format='xml' is unknown"):
        client.table(name, type=Place, format="xml")
    client.create_topic("typed.stream", exist_ok=True)
    with pytest.raises(InvalidArgument, match="is no table"):
        client.table("typed.stream", type=Place)


def test_the_same_for_async_code(shared, name):
    async def use():
        async with (
            stentor.connect_async(shared.url) as client,
            client.table(name, type=Limit) as table,
            table.watch() as watch,
        ):
            called = asyncio.Event()
            stop = table.on_change("", lambda _: called.set())
            await table.put("a", Limit(1))
            await table.put_many({"b": Limit(2)})
            with pytest.raises(InvalidArgument, match="key c of table"):
                await table.put("c", Limit("x"))
            assert dict(table) == {"a": Limit(1), "b": Limit(2)}
            await table.delete("b")
            assert [each.value for each in await table.history("b")] == [None, Limit(2)]
            assert (await watch.get(timeout=10)).new.value == Limit(1)
            async for change in watch:
                assert change.new.value == Limit(2)
                break
            assert watch.sequence == (2,)
            async with asyncio.timeout(10):
                await called.wait()
            stop()
            table.on_resync(print)()
            assert await table.sync() == table.sequence
            await table.wait(table.sequence)

    asyncio.run(use())
