"""Whoever goes through a table sees it as it was at one moment, whatever changes meanwhile."""

import pytest


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
