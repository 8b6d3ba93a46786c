"""Topics that are tables: how they are made, and what their heads refuse."""

import threading
from contextlib import ExitStack

import pyarrow as pa
import pytest

from stentor import Client, limits
from stentor.broker.cluster import trust
from stentor.errors import DeadlineExceeded, InvalidArgument, NotReady, UnknownOutcome
from stentor.testing import broker
from stentor.wire import table_rows
from stentor.wire.arrow_body import HEADER_TYPE


def test_a_table_keeps_everything_whatever_the_broker_gives_to_others(tmp_path):
    with broker(tmp_path / "data", retention_age_s=60, retention_bytes=1_000_000) as local, local.client() as client:
        client.create_topic("stream")
        client.create_topic("config", kind="table")
        made = client.describe_topic("config").settings
        assert (made.kind, made.retention_age_s, made.retention_bytes) == ("table", None, None)
        assert client.describe_topic("stream").settings.kind == "stream"
        assert client.describe_topic("stream").settings.retention_age_s == 60


@pytest.mark.parametrize("setting", [{"retention_age_s": 60}, {"retention_bytes": 0}], ids=["age", "bytes"])
def test_a_table_has_no_retention(client, setting):
    with pytest.raises(InvalidArgument, match="retention would delete keys"):
        client.create_topic("config", kind="table", **setting)
    client.create_topic("config", kind="table")
    with pytest.raises(InvalidArgument, match="retention would delete keys"):
        client.alter_topic("config", **setting)


def test_a_topic_does_not_become_a_table_nor_a_table_a_topic(client):
    client.create_topic("stream")
    client.create_topic("config", kind="table")
    for name, kind in (("stream", "table"), ("config", "stream")):
        with pytest.raises(InvalidArgument, match="cannot be changed"):
            client.alter_topic(name, kind=kind)


def test_what_is_published_to_a_table_is_a_change(client):
    client.create_topic("config", kind="table")
    with pytest.raises(InvalidArgument, match="without a key"):
        client.publish("config", b"v")
    with pytest.raises(InvalidArgument, match="not UTF-8"):
        client.publish("config", b"v", key=b"\xff")
    name, value = table_rows.condition(7)
    with pytest.raises(InvalidArgument, match="does not say so"):
        client.publish("config", b"v", key="a", headers={name: value})
    client.publish("config", b"v", key="a")
    with client.table("config") as table:
        assert dict(table) == {"a": b"v"}


def test_a_broker_that_is_killed_under_load_loses_nothing_and_makes_nothing_twice(served, wait_until):
    process = served().start()
    with Client(process.url) as client:
        client.create_topic("config", kind="table", segment_bytes=limits.SEGMENT_BYTES_MIN)
    counted, uncounted, stop = [], [], threading.Event()

    def count(table):
        while not stop.is_set():
            try:
                counted.append(table.add("n", timeout=30))
            except (UnknownOutcome, DeadlineExceeded) as error:
                uncounted.append(error)

    with ExitStack() as stack:
        tables = [stack.enter_context(stack.enter_context(Client(process.url)).table("config")) for _ in range(3)]
        watch = stack.enter_context(tables[0].watch())
        threads = [threading.Thread(target=count, args=(table,)) for table in tables]
        for thread in threads:
            thread.start()
        for _ in range(3):
            before = len(counted)
            wait_until(lambda before=before: len(counted) > before + 20, "some additions")
            process.kill()
            process.start()
        stop.set()
        for thread in threads:
            thread.join(60)
        for table in tables:
            table.sync(timeout=30)
        final = int(tables[0]["n"])
        assert len(counted) == len(set(counted))
        assert len(counted) <= final <= len(counted) + len(uncounted)
        assert len({(table.sequence, tuple(table.entries())) for table in tables}) == 1
        seen = [int(watch.get(timeout=10).new.value) for _ in range(final)]
        assert seen == list(range(1, final + 1))
    with Client(process.url) as client, client.table("config") as fresh:
        assert int(fresh["n"]) == final


@pytest.fixture
def before(monkeypatch):
    """Every broker is of the version before: it knows one feature level less."""
    monkeypatch.setattr(trust, "LEVEL_KNOWN", trust.TABLES - 1)
    return monkeypatch


def test_tables_are_made_once_every_broker_knows_them(etcd, before, tmp_path, wait_until):
    """C27: an older broker would serve a table as a stream, and decide nothing."""
    settings = {"coordination": f"{etcd.url}/tables", "broker_id": "b0"}
    with broker(tmp_path / "data", **settings) as local, local.client() as client:
        client.create_topic("stream")
        with pytest.raises(NotReady, match="The cluster is being upgraded"):
            client.create_topic("config", kind="table")
        assert [topic.name for topic in client.topics()] == ["stream"]
        before.undo()
        local.stop()
        local.start()
        known = local.inner.parts.cluster.trust
        wait_until(lambda: known.level >= trust.TABLES, "the level rises")
        client.create_topic("config", kind="table")
        with client.table("config") as table:
            table.put("a", "1")


def test_a_broker_on_its_own_needs_no_level(client):
    client.create_topic("config", kind="table")


@pytest.mark.parametrize("kind", ["table", "queue"])
@pytest.mark.parametrize("headers", [None, [("n", b"v")]])
def test_producers_send_no_more_rows_at_once_than_heads_take(local, client, kind, headers):
    settings = {"kind": "queue", "ordered_by": "key"} if kind == "queue" else {"kind": "table"}
    client.create_topic("many", partitions=1, **settings)
    count = 40_000
    keys = [b"k%d" % number for number in range(count)]
    rows = pa.table({"key": keys, "value": keys, "headers": pa.array([headers] * count, HEADER_TYPE)})
    with client.producer("many", batch_messages=100_000, batch_bytes=8_000_000) as producer:
        producer.send_batch(rows)
        for key in keys:
            producer.send(key, key=key, headers=headers)
    assert client.describe_topic("many").partitions[0].committed == 2 * count
