"""Whoever goes through a table sees it as it was at one moment, whatever changes meanwhile."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest

import stentor
from stentor.errors import InvalidArgument


@pytest.fixture
def table(client):
    client.create_topic("views", kind="table", exist_ok=True)
    with client.table("views") as opened:
        opened.put_many({"a/1": "one", "a/2": "two", "b/1": "three"})
        yield opened
        opened.put_many(dict.fromkeys([*opened.keys(), "b/1"]))


@pytest.mark.parametrize("view", ["keys", "values", "items"])
def test_going_through_a_table_is_not_disturbed_by_changes(table, view):
    found = []
    for each in getattr(table, view)():
        table.delete("b/1")
        found.append(each)
    assert len(found) == 3
    assert len(table) == 2


def test_a_table_is_a_mapping_of_text_to_bytes(table):
    assert dict(table) == {"a/1": b"one", "a/2": b"two", "b/1": b"three"}
    assert list(table.keys()) == ["a/1", "a/2", "b/1"]
    assert list(table.values()) == [b"one", b"two", b"three"]
    assert ("a/2", b"two") in table.items()
    assert table.get("a/1") == b"one"
    assert table.get("a/9") is None
    assert table.get("a/9", b"none") == b"none"


# --- parts, several keys, the past ----------------------------------------------------------------


def test_views_may_be_of_a_subtree(table):
    assert list(table.keys("a/")) == ["a/1", "a/2"]
    assert list(table.values("b/")) == [b"three"]
    assert dict(table.items("a/")) == {"a/1": b"one", "a/2": b"two"}
    assert list(table.items("c/")) == []
    for view in (table.keys, table.values, table.items):
        with pytest.raises(InvalidArgument, match="no subtree"):
            view("a")


def test_several_keys_are_read_at_one_sequence(client, table):
    assert table.get_many(["a/1", "x", "b/1"]) == ({"a/1": b"one", "b/1": b"three"}, table.sequence)
    assert table.get_many([]) == ({}, table.sequence)
    stop, torn = threading.Event(), []
    with client.table("views") as other:
        first = other.sequence[0]

        def look():
            while not stop.is_set():
                values, (sequence,) = other.get_many(["n/1", "n/2", "n/3"])
                numbers = {int(value) for value in values.values()}
                if len(numbers) > 1 or (numbers and sequence != first + 3 * (numbers.pop() + 1)):
                    torn.append((values, sequence))

        thread = threading.Thread(target=look)
        thread.start()
        try:
            for number in range(200):
                table.put_many({"n/1": str(number), "n/2": str(number), "n/3": str(number)})
            other.wait(table.sequence, timeout=10)
        finally:
            stop.set()
            thread.join()
    assert not torn


@pytest.mark.parametrize("keys", ["a/1", b"a/1", ["a//1"], [1]], ids=str)
def test_several_keys_are_a_list_of_keys(table, keys):
    with pytest.raises(InvalidArgument):
        table.get_many(keys)


def test_the_versions_of_a_key_are_in_the_log(client, table):
    before = datetime.now(UTC) - timedelta(seconds=1)
    made = [table.put("h", str(number)).version for number in range(3)]
    table.put("other", "1")
    table.delete("h")
    with pytest.raises(stentor.ConditionFailed):
        table.put("h", "refused", if_version=made[0])
    made.append(table.put("h", "last").version)
    found = table.history("h")
    assert [each.value for each in found] == [b"last", None, b"2", b"1", b"0"]
    assert [each.version for each in found if not each.deleted] == made[::-1]
    assert [each.deleted for each in found] == [False, True, False, False, False]
    assert before < found[0].timestamp <= datetime.now(UTC) + timedelta(seconds=1)
    assert found == sorted(found, key=lambda each: each.version, reverse=True)
    assert table.history("h", limit=2) == found[:2]
    assert table.history("h", limit=None) == found
    assert table.history("never") == []
    for wrong in ({"key": "h", "limit": -1}, {"key": "h/", "limit": 1}):
        with pytest.raises(InvalidArgument):
            table.history(**wrong)


def test_the_versions_of_a_key_of_several_partitions(client):
    client.create_topic("views.parts", kind="table", partitions=3)
    with client.table("views.parts") as table:
        for number in range(5):
            for key in ("a", "b", "c"):
                table.put(key, f"{key}{number}")
        assert [each.value for each in table.history("b", limit=2)] == [b"b4", b"b3"]


def test_the_same_for_async_code(shared):
    async def use():
        async with stentor.connect_async(shared.url) as client, client.table("views") as table:
            await table.put("async/h", "1")
            await table.delete("async/h")
            assert [each.value for each in await table.history("async/h")] == [None, b"1"]
            assert table.get_many(["async/h"]) == ({}, table.sequence)

    asyncio.run(use())
