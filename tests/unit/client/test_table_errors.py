"""What is wrong with a use of a table is said with its own error and one sentence: a list of all bad inputs."""

import itertools
import threading
from contextlib import suppress

import pyarrow as pa
import pytest

from stentor import limits
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
    made = f"wrong-{next(_numbers)}"
    client.create_topic(made, kind="table")
    return made


@pytest.fixture
def table(client, name):
    with client.table(name) as opened:
        opened.put("a", "1")
        yield opened


def sentence(error):
    """What an error says, which is one sentence of its own; the hint comes after it."""
    assert error.message.endswith("."), error.message
    return error.message


# --- opening --------------------------------------------------------------------------------------

OPENING = {
    "unknown table": ({"name": "wrong.nowhere"}, TopicNotFound, "nowhere"),
    "no table": ({"name": "wrong.stream"}, InvalidArgument, "Topic wrong.stream is no table."),
    "no name": ({"name": "a//b"}, InvalidArgument, "a//b"),
    "a number as name": ({"name": 7}, InvalidArgument, "A topic name must be text, not int."),
    "middle of a word": (
        {"subtree": "app"},
        InvalidArgument,
        "'app' is no subtree: it would end in the middle of a word.",
    ),
    "leading slash": ({"subtree": "/app/"}, InvalidArgument, "'/app/' is no subtree"),
    "empty word": ({"subtree": "a//b/"}, InvalidArgument, "'a//b/' is no subtree"),
    "bytes as subtree": ({"subtree": b"app/"}, InvalidArgument, "A subtree is text, not bytes."),
    "unknown format": ({"type": dict, "format": "xml"}, InvalidArgument, "format='xml' is unknown."),
}


@pytest.mark.parametrize("case", OPENING)
def test_a_table_that_cannot_be_opened_says_why(client, name, case):
    arguments, kind, said = OPENING[case]
    client.create_topic("wrong.stream", exist_ok=True)
    with pytest.raises(kind) as caught:
        client.table(**{"name": name, "timeout": 10} | arguments)
    assert said in sentence(caught.value)
    assert "wrong.nowhere" not in [topic.name for topic in client.topics()], "nobody made it"


# --- calls ----------------------------------------------------------------------------------------

LONG = "k" * (limits.MESSAGE_KEY_BYTES_MAX + 1)

CALLS = {
    "empty key": (lambda t: t.put("", "1"), InvalidArgument, "'' is no key of a table."),
    "key that is a subtree": (lambda t: t.put("a/", "1"), InvalidArgument, "'a/' is no key of a table."),
    "key of bytes": (lambda t: t.delete(b"a"), InvalidArgument, "A key of a table is text, not bytes."),
    "long key": (lambda t: t.put(LONG, "1"), LimitExceeded, f"A key has {len(LONG)} bytes; the limit is"),
    "long key among others": (lambda t: t.put_many({"b": "1", LONG: "1"}), LimitExceeded, "A key has"),
    "large value": (lambda t: t.put("b", bytes(9 << 20)), LimitExceeded, "8388608"),
    "large value among others": (lambda t: t.put_many({"b": "1", "c": bytes(9 << 20)}), LimitExceeded, "8388608"),
    "no value": (lambda t: t.put("b", None), InvalidArgument, "A key is set to a value."),
    "a number as value": (lambda t: t.put("b", 5), InvalidArgument, "int"),
    "no keys": (lambda t: t.put_many({}), InvalidArgument, "A change names at least one key."),
    "negative version": (lambda t: t.put("a", "2", if_version=-1), InvalidArgument, "if_version=-1 is no version."),
    "version that is text": (lambda t: t.delete("a", if_version="0"), InvalidArgument, "if_version='0' is no version."),
    "two conditions": (
        lambda t: t.put("a", "2", if_version=0, if_absent=True),
        InvalidArgument,
        "A change depends on a version or on absence, not on both.",
    ),
    "another version": (lambda t: t.put("a", "2", if_version=7_000), ConditionFailed, "was not made"),
    "present": (lambda t: t.put("a", "2", if_absent=True), ConditionFailed, "was not made"),
    "no counter": (lambda t: (t.put("text", "x"), t.add("text")), InvalidArgument, "text of table"),
    "half a count": (lambda t: t.add("n", 0.5), InvalidArgument, "A counter counts by whole numbers, not by 0.5."),
    "watch of a word": (lambda t: t.watch("app"), InvalidArgument, "'app' is no subtree"),
    "watch from elsewhere": (lambda t: t.watch(start=(0, 0)), InvalidArgument, "has 1 partitions; the sequence has 2."),
    "watch of no size": (lambda t: t.watch(limit=0), InvalidArgument, "limit=0 is no number of changes."),
    "callback of no kind": (lambda t: t.on_change("", 7), InvalidArgument, "A callback is a function, not int."),
    "view of a word": (lambda t: t.items("app"), InvalidArgument, "'app' is no subtree"),
    "one key as several": (lambda t: t.get_many("abc"), InvalidArgument, "Keys are a list of them, not str."),
    "history of a subtree": (lambda t: t.history("a/"), InvalidArgument, "'a/' is no key of a table."),
    "less than no history": (lambda t: t.history("a", limit=-1), InvalidArgument, "limit=-1 is not a number"),
    "a sequence of another": (lambda t: t.wait((0, 0)), InvalidArgument, "has 1 partitions; the sequence has 2."),
    "a sequence to come": (lambda t: t.wait((9_000,), timeout=0.05), DeadlineExceeded, "0.05 s"),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_wrong_call_says_what_is_wrong_and_changes_nothing(table, case):
    call, kind, said = CALLS[case]
    with pytest.raises(kind) as caught:
        call(table)
    assert type(caught.value) is kind
    assert said in sentence(caught.value)
    assert table["a"] == b"1"
    assert set(table) <= {"a", "text"}
    assert table._copy.watchers == []


def test_a_key_that_is_not_there_is_a_key_error(table):
    with pytest.raises(KeyError) as caught:
        table["nowhere"]
    assert not isinstance(caught.value, StentorError)


# --- deleted meanwhile ----------------------------------------------------------------------------


@pytest.mark.parametrize("subtree", ["", "app/"])
def test_a_table_that_is_deleted_while_it_is_copied_is_not_there(shared, subtree):
    """Whenever the deletion comes, opening ends, with a copy or with TopicNotFound, and makes nothing."""
    outcomes = []
    for number in range(12):
        name = f"wrong.going-{number}"
        with shared.client() as owner, shared.client() as reader:
            owner.create_topic(name, kind="table")
            with owner.producer(name) as producer:
                for row in range(2_000):
                    producer.send("x" * 100, key=f"app/{row}")
            start = threading.Event()

            def delete(owner=owner, name=name, start=start):
                start.wait()
                owner.delete_topic(name)

            deleting = threading.Thread(target=delete)
            deleting.start()
            try:
                if number % 3 == 0:
                    start.set()
                    deleting.join(10)
                start.set()
                table = reader.table(name, subtree=subtree, timeout=10)
            except TopicNotFound as error:
                outcomes.append(sentence(error))
            else:
                outcomes.append("opened")
                with suppress(TopicNotFound):
                    assert len(table) == 2_000
                    table.sync(timeout=10)
                table.close()
            deleting.join(10)
            assert owner.topics(name) == []
    assert set(outcomes) != {"opened"}


def test_a_copy_that_is_cut_off_when_its_table_goes_says_that_it_is_deleted(tmp_path, wait_until):
    with broker(tmp_path / "data") as local, local.client() as client:
        client.create_topic("config", kind="table")
        with client.table("config") as table, table.watch() as watch:
            table.put("a", "1")
            watch.get(timeout=10)
            local.stop()
            local.start()
            with local.client() as other:
                other.delete_topic("config")
            with pytest.raises(TopicNotFound) as caught:
                watch.get(timeout=20)
            assert sentence(caught.value)
            for use in (
                lambda: table["a"],
                table.entries,
                table.watch,
                lambda: table.put("a", "2"),
                lambda: table.state,
            ):
                with pytest.raises(TopicNotFound):
                    use()


def test_a_closed_copy_says_so_whatever_is_asked(client, name):
    table = client.table(name)
    table.close()
    for use in (
        lambda: table["a"],
        lambda: table.get("a"),
        lambda: "a" in table,
        lambda: len(table),
        lambda: list(table),
        table.entries,
        lambda: table.get_many(["a"]),
        lambda: table.history("a"),
        table.watch,
        lambda: table.on_change("", print),
        lambda: table.put("a", "1"),
        lambda: table.add("n"),
        lambda: table.state,
        table.sync,
    ):
        with pytest.raises(Closed, match=f"This copy of table {name} is closed."):
            use()


# --- more than one change can be -------------------------------------------------------------------


def test_a_change_of_too_many_keys_is_refused_before_it_is_sent(table):
    with pytest.raises(LimitExceeded, match=f"has {limits.TABLE_BATCH_ROWS_MAX + 1} rows"):
        table.put_many({f"k{number}": "1" for number in range(limits.TABLE_BATCH_ROWS_MAX + 1)})
    with pytest.raises(LimitExceeded, match="rows with conditions or a ttl"):
        table.put_many({f"k{number}": "1" for number in range(limits.TABLE_BATCH_TERMS_ROWS_MAX + 1)}, ttl=60)
    assert "k0" not in table
    table.put_many({f"k{number}": "1" for number in range(limits.TABLE_BATCH_TERMS_ROWS_MAX)}, ttl=60)
    assert "k0" in table


def test_producers_cut_what_they_send_to_a_table(client):
    client.create_topic("bulk", kind="table")
    keys = [f"k{number}" for number in range(limits.TABLE_BATCH_ROWS_MAX + 1)]
    with client.producer("bulk", batch_messages=1_000_000, batch_bytes=8_000_000) as producer:
        producer.send_many([b"1"] * len(keys), keys=keys)
        producer.send_batch(pa.table({"key": [f"a{key}".encode() for key in keys], "value": [b"1"] * len(keys)}))
    with client.table("bulk") as table:
        assert len(table) == 2 * len(keys)
