"""Compaction as brokers do it: tables and topics shrink to what is alive while they are written and read."""

import threading

import pyarrow as pa
import pytest

from stentor import limits
from stentor.broker.cluster import trust
from stentor.broker.partitions import compaction, compactions
from stentor.client.subscription_core import SubscriptionCore
from stentor.client.table_copy import TableEntry
from stentor.client.table_snapshot import TableSnapshot
from stentor.errors import Compacted, InvalidArgument, NotReady, StentorError
from stentor.testing import broker

KIB = 1024


@pytest.fixture
def quick(monkeypatch):
    """Horizons as soon as anything was written."""
    monkeypatch.setattr(compactions, "COMPACTION_CHECK_S", 0.02)
    monkeypatch.setattr(compaction, "COMPACTION_BYTES_MIN", 64 * KIB)
    monkeypatch.setattr(compaction, "COMPACTION_QUIET_S", 0.1)
    monkeypatch.setattr(compaction, "COMPACTION_QUIET_BYTES_MIN", 1)


def statistics_of(client, topic):
    rows = client.statistics()["partitions"]
    return next(row for row in rows if row["topic"] == topic)


def is_idle(client, topic):
    """Nothing is left to compact."""
    row = statistics_of(client, topic)
    found = row["compaction"]
    return found["runs"] and row["log"]["end"] == found["horizon"] + 1 == found["compacted_to"] + 1


def test_a_table_shrinks_to_what_is_alive_while_it_is_written_and_read(quick, tmp_path, wait_until):
    keys, updates = 300, 100
    with broker(tmp_path / "data") as local, local.client() as client:
        client.create_topic("config", kind="table")
        stop, failures = threading.Event(), []

        def read():
            try:
                while not stop.is_set():
                    found = {}
                    for message in client.read("config"):
                        found[message.key] = message.value
                    assert len(found) <= keys
            except (AssertionError, StentorError) as error:
                failures.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        with client.table("config") as table, client.producer("config") as producer:
            for update in range(updates):
                for key in range(keys):
                    producer.send(b"%d" % update + b"v" * 120, key=b"app/key-%d" % key)
                producer.flush()
            expected = {f"app/key-{key}": b"%d" % (updates - 1) + b"v" * 120 for key in range(keys)}
            wait_until(lambda: dict(table) == expected, "the copy has everything")
            alive = sum(len(key) + len(value) + 20 for key, value in expected.items())
            wait_until(lambda: statistics_of(client, "config")["log"]["bytes"] <= 1.2 * alive, "it has shrunk")
            versions = {key: table.entry(key).version for key in table}
        stop.set()
        reader.join()
        assert not failures
        wait_until(lambda: is_idle(client, "config"), "it is at rest")
        row = statistics_of(client, "config")
        assert row["compaction"]["messages_removed"] == keys * (updates - 1)
        assert row["compaction"]["bytes_before"] > 10 * row["compaction"]["bytes_after"] / row["compaction"]["runs"]
        with client.table("config") as fresh:
            assert dict(fresh) == expected
            assert {key: fresh.entry(key).version for key in fresh} == versions
    with broker(tmp_path / "data") as local, local.client() as client, client.table("config") as fresh:
        assert dict(fresh) == expected
        fresh.put("app/key-0", b"new", if_version=versions["app/key-0"])


def test_every_way_to_read_gives_what_is_left_at_its_offset(quick, wait_until):
    with broker() as local, local.client() as client:
        client.create_topic("latest", cleanup="compact")
        for round_number in range(40):
            with client.producer("latest") as producer:
                for key in range(20):
                    if round_number <= 2 * key:
                        producer.send(b"%d" % round_number, key=b"k%d" % key, headers={"round": b"%d" % round_number})
        wait_until(lambda: is_idle(client, "latest"), "it is compacted")
        found = list(client.read("latest"))
        assert len({message.key for message in found}) == len(found) == 20
        offsets = [message.offset for message in found]
        assert offsets == sorted(offsets)
        assert offsets[-1] - offsets[0] > 19
        assert all(message.headers == [("round", message.value)] for message in found)
        assert all(message.timestamp_us > 0 for message in found)
        table = client.read("latest").to_arrow()
        assert table.column("offset").to_pylist() == offsets
        assert table.column("value").to_pylist() == [message.value for message in found]
        read = [
            first + index
            for first, batch in client.read("latest", partition=0).offset_batches(appended_at=True)
            for index in range(batch.num_rows)
        ]
        assert read == offsets
        for place, offset in enumerate(offsets):
            assert [message.offset for message in client.read("latest", start=offset)] == offsets[place:]
            assert [message.offset for message in client.read("latest", start=offset + 1)] == offsets[place + 1 :]
            assert [message.offset for message in client.read("latest", end=offset)] == offsets[:place]
        for place in (3, 11):
            with client.subscribe("latest", start="earliest") as subscription:
                for _ in range(place):
                    message = subscription.get(timeout=10)
                position = message.position
                rest = next(subscription.batches())
                assert rest.column("offset").to_pylist() == offsets[place : place + rest.num_rows]
            with client.subscribe("latest", start=position) as subscription:
                assert subscription.get(timeout=10).offset == offsets[place]
        moment = found[7].timestamp
        assert next(iter(client.read("latest", start=moment))).timestamp >= moment


def test_a_compacted_topic_takes_no_message_without_a_key(client):
    client.create_topic("latest", cleanup="compact")
    client.publish("latest", b"v", key="k")
    with pytest.raises(InvalidArgument, match="has no key"):
        client.publish("latest", b"v")
    with client.producer("latest") as producer:
        producer.send_batch(pa.table({"key": [b"a", None], "value": [b"1", b"2"]}))
        with pytest.raises(Exception, match="has no key"):
            producer.flush()


def test_cleanup_is_chosen_when_a_topic_is_made(client):
    client.create_topic("stream")
    client.create_topic("latest", cleanup="compact,delete", retention_bytes=limits.MIB)
    assert client.describe_topic("latest").settings.cleanup == "compact,delete"
    for name, cleanup in (("stream", "compact"), ("latest", "delete")):
        with pytest.raises(InvalidArgument, match="cannot be changed"):
            client.alter_topic(name, cleanup=cleanup)
    with pytest.raises(InvalidArgument, match="retention deletes nothing"):
        client.create_topic("other", cleanup="compact", retention_bytes=1)
    with pytest.raises(InvalidArgument, match="is a table"):
        client.create_topic("config", kind="table", cleanup="compact,delete")


def test_retention_of_the_broker_is_not_for_compacted_topics(tmp_path):
    with broker(tmp_path / "data", retention_age_s=60) as local, local.client() as client:
        client.create_topic("latest", cleanup="compact")
        assert client.describe_topic("latest").settings.retention_age_s is None
        client.create_topic("both", cleanup="compact,delete")
        assert client.describe_topic("both").settings.retention_age_s == 60


def test_a_crash_before_a_snapshot_is_written_does_not_end_compaction(quick, monkeypatch, tmp_path, wait_until):
    """Nothing is compacted without the snapshot behind it; the next horizon brings another one."""
    with broker(tmp_path / "data") as local, local.client() as client:
        monkeypatch.setattr(compaction.PartitionCompaction, "begin", lambda _: None)
        client.create_topic("latest", cleanup="compact")
        for number in range(20):
            client.publish("latest", b"%d" % number, key="k")
        wait_until(lambda: statistics_of(client, "latest")["log"]["segments"] == 2, "a segment was begun")
        (partition,) = local.inner.parts.ground.partitions.values()
        last = partition.log._state.segments[-1]
    monkeypatch.undo()
    last.path(".snapshot").unlink()  # as if it had been killed after it sealed the other one
    monkeypatch.setattr(compactions, "COMPACTION_CHECK_S", 0.02)
    monkeypatch.setattr(compaction, "COMPACTION_QUIET_S", 0.1)
    monkeypatch.setattr(compaction, "COMPACTION_QUIET_BYTES_MIN", 1)
    with broker(tmp_path / "data") as local, local.client() as client:
        for number in range(20):
            client.publish("latest", b"%d" % number, key="k")
        wait_until(lambda: is_idle(client, "latest"), "it is compacted")
        assert [message.value for message in client.read("latest")] == [b"19"]


def test_deletions_go_once_they_are_old_enough(quick, wait_until):
    with broker() as local, local.client() as client:
        client.create_topic("config", kind="table", deletions_kept_s=0)
        with client.table("config") as table:
            deleted_often(client, table)
            wait_until(lambda: is_idle(client, "config"), "it is compacted")
            table.put("more", b"v")
            wait_until(lambda: is_idle(client, "config"), "it is compacted again")
            wait_until(lambda: len(list(client.read("config"))) == 2, "no deletion is left")
            assert dict(table) == {"stays": b"v", "more": b"v"}


def test_deletions_stay_for_their_time(quick, wait_until):
    with broker() as local, local.client() as client:
        client.create_topic("config", kind="table")
        with client.table("config") as table:
            for number in range(5):
                table.put(f"key-{number}", b"v")
                table.delete(f"key-{number}")
        wait_until(lambda: is_idle(client, "config"), "it is compacted")
        assert [message.value for message in client.read("config")] == [None] * 5


def test_an_old_cluster_compacts_nothing(monkeypatch, quick, wait_until):
    """C27: until every broker knows sparse batches."""
    monkeypatch.setattr(trust, "LEVEL_KNOWN", trust.COMPACTION - 1)
    monkeypatch.setattr(trust.Trust, "compaction", property(lambda self: self.level >= trust.COMPACTION))
    with broker() as local, local.client() as client, pytest.raises(NotReady, match="being upgraded"):
        client.create_topic("latest", cleanup="compact")


def test_producers_go_on_after_a_compaction_and_a_restart(quick, tmp_path, wait_until):
    with broker(tmp_path / "data") as local, local.client() as client:
        client.create_topic("latest", cleanup="compact")
        with client.producer("latest") as producer:
            for number in range(50):
                producer.send(b"%d" % number, key=b"k")
                producer.flush()
            wait_until(lambda: is_idle(client, "latest"), "it is compacted")
            local.stop()
            local.start()
            producer.send(b"last", key=b"k")
            producer.flush()
        assert [message.value for message in client.read("latest")][-1] == b"last"


def deleted_often(client, table):
    """Keys that come and go, and one that stays."""
    for number in range(20):
        table.put(f"key-{number}", b"v")
        table.delete(f"key-{number}")
    table.put("stays", b"v")


def test_a_reader_that_keeps_a_copy_is_told_when_deletions_are_gone(quick, wait_until):
    """C23: others go on without a word."""
    with broker() as local, local.client() as client:
        client.create_topic("config", kind="table", deletions_kept_s=0)
        with client.table("config") as table:
            deleted_often(client, table)
            wait_until(lambda: statistics_of(client, "config")["compaction"]["deletions_until"] > 20, "they are gone")
        core, taken = client._core, []

        async def follow(start, *, copies):
            subscription = SubscriptionCore(core, "config", start=start, put=taken.append, copies=copies)
            await subscription.open(core.deadline(10))
            return subscription

        opened = [core.wait_for(follow(5, copies=True))]
        wait_until(lambda: taken, "it is told")
        assert isinstance(taken.pop(), Compacted)
        for start, copies in ((5, False), (0, True)):
            opened.append(core.wait_for(follow(start, copies=copies)))
            wait_until(lambda: taken, "it reads on")
            assert not isinstance(taken.pop(), StentorError)
            taken.clear()
        for subscription in opened:
            core.wait_for(subscription.close())


def test_a_copy_that_missed_deletions_is_filled_anew(client, wait_until):
    client.create_topic("config", kind="table")
    with client.table("config") as table:
        table.put("stays", b"v")
        table.put("changes", b"old")
        copy = table._copy
        news = []
        table.on_resync(news.append)
        with copy.lock:
            copy.entries["gone"] = TableEntry("gone", b"v", 0)
            copy.entries["changes"] = TableEntry("changes", b"stale", 0)
        copy.core.loop.call_soon_threadsafe(copy._take, Compacted("Deletions are gone."))
        wait_until(lambda: dict(table) == {"stays": b"v", "changes": b"old"}, "it is as the table is")
        wait_until(lambda: news, "it is told")
        assert news[0].changes == 2
        table.put("more", b"v")
        assert table["more"] == b"v"


def test_a_table_as_it_was_below_the_horizon_is_refused_and_not_guessed(quick, wait_until):
    with broker() as local, local.client() as client:
        client.create_topic("config", kind="table")
        with client.table("config") as table:
            table.put("a", "1")
            table.put("b", "1")
            early = table.sequence
            for number in range(50):
                table.put("a", str(number))
            wait_until(lambda: is_idle(client, "config"), "it is compacted")
            snapshot = TableSnapshot(client, "config", sequence=early)
            with pytest.raises(Compacted, match="no longer known"):
                list(snapshot.batches())
            rows = [row for batch in TableSnapshot(client, "config").batches() for row in batch.to_pylist()]
            assert {row["key"]: row["value"] for row in rows if row["there"]} == {"a": b"49", "b": b"1"}
            with table.watch(start=early) as watch:
                change = watch.get(timeout=5)
                assert (change.key, change.new.value) == ("a", b"49")
                assert change.skipped >= 49, "horizons count as well"
            with table.watch(start=table.sync()) as watch:
                table.put("b", "2")
                assert watch.get(timeout=5).new.value == b"2"


def test_a_watch_of_the_past_is_told_when_a_compaction_takes_some_of_it(quick, monkeypatch, wait_until):
    worth_it = False
    monkeypatch.setattr(compaction.PartitionCompaction, "is_worth_it", lambda *_: worth_it)
    with broker() as local, local.client() as client:
        client.create_topic("config", kind="table")
        with client.table("config") as table:
            table.put("b", "1")
            early = table.sequence
            for _ in range(100):  # more than a subscription has credit for
                table.put("a", b"v" * 150_000)
            with table.watch(start=early) as watch:
                assert watch.get(timeout=10).version == 1
                worth_it = True
                wait_until(lambda: statistics_of(client, "config")["compaction"]["runs"], "it is compacted")
                worth_it = False
                with pytest.raises(Compacted, match="no longer known"):
                    [watch.get(timeout=10) for _ in range(100)]


def test_a_table_that_only_grows_is_left_alone_until_something_is_replaced(quick, wait_until):
    with broker() as local, local.client() as client:
        client.create_topic("config", kind="table")
        with client.table("config") as table:
            for number in range(10):
                table.put_many({f"k/{number}/{place}": "v" * 1000 for place in range(100)})
            (partition,) = local.inner.parts.ground.partitions.values()
            assert not partition.compaction.is_worth_it(1e9)
            for number in range(2):
                table.put_many({f"k/{number}/{place}": "w" * 1000 for place in range(100)})
            wait_until(lambda: statistics_of(client, "config")["compaction"]["runs"], "it is compacted")
            assert len(table) == 1000
