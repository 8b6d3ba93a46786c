"""What earlier versions kept in the coordination store becomes cursors: nothing is lost, and nothing is left."""

import asyncio

import pytest

from stentor import limits
from stentor.broker.catalogue import RecordedEnd, encode, recorded_key, recorded_prefix
from stentor.broker.cluster import trust
from stentor.core.names import CURSORS_TOPIC
from stentor.errors import CoordinationUnavailable, DeadlineExceeded, NotReady
from stentor.testing import broker

SEGMENT = limits.SEGMENT_BYTES_MIN
VALUE = b"v" * 20_000


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(limits, "CURSOR_CHECK_S", 0.02)
    monkeypatch.setattr(limits, "RETENTION_CHECK_S", 0.02)


def do(local, work):
    """In the broker's loop."""
    return asyncio.run_coroutine_threadsafe(work, local.inner.loop).result(10)


def put_ends(local, topic, ends):
    """As the version before did."""
    put = {recorded_key((topic.id, index)): encode(RecordedEnd(end)) for index, end in ends.items()}
    do(local, local.inner.parts.ground.store.swap(expect={}, put=put))


def stored(local, topic):
    return len(do(local, local.inner.parts.ground.store.range(recorded_prefix(topic.id))))


def fill(client, topic, count=9):
    with client.producer(topic, batch_messages=1) as producer:
        for _ in range(count):
            producer.send(VALUE, partition=0)


def positions(client, topic):
    return {cursor.name: cursor.positions for cursor in client.cursors(topic)}


@pytest.fixture
def earlier(tmp_path):
    """A data directory in which recorders have marked something, by an earlier version."""
    data = tmp_path / "earlier"
    with broker(data) as local, local.client() as client:
        local.inner.parts.cursor_care.look_soon = lambda: None
        local.inner.parts.ground.timers.stop()
        topic = client.create_topic("t", partitions=2, retention_bytes=0, segment_bytes=SEGMENT, keep_unrecorded=True)
        fill(client, "t")
        put_ends(local, topic, {0: 4, 1: 0})
        assert stored(local, topic) == 2
    return data, topic


def test_a_broker_on_its_own_takes_over_what_its_store_holds(earlier, wait_until):
    data, topic = earlier
    with broker(data) as local, local.client() as client:
        wait_until(lambda: stored(local, topic) == 0, "nothing is left in the store")
        assert positions(client, "t") == {"recorder": {0: 4, 1: 0}}
        assert client.cursors("t")[0].moved_by == "coordination store"
        wait_until(lambda: client.describe_topic("t").partitions[0].start == 3, "retention goes on with it")
        assert client.describe_topic("t").partitions[0].recorded == 4
    with broker(data) as local, local.client() as client:
        assert positions(client, "t") == {"recorder": {0: 4, 1: 0}}


def test_a_restart_in_the_middle_does_no_harm(earlier, monkeypatch, wait_until):
    data, topic = earlier
    with broker(data) as local, local.client() as client:
        store, deletes = local.inner.parts.ground.store, []
        swap = store.swap

        async def failing(*, expect, put, delete=()):
            if delete and delete[0].startswith("recorded/"):
                deletes.append(delete)
                raise CoordinationUnavailable("The store does not answer.")
            return await swap(expect=expect, put=put, delete=delete)

        monkeypatch.setattr(store, "swap", failing)
        wait_until(lambda: len(deletes) > 1, "it was tried")
        client.mark_recorded("t", {0: 6})
        with pytest.raises(DeadlineExceeded, match="taken over"):
            client.move_cursor("t", "recorder", {0: 2}, back=True, timeout=0.3)
        assert stored(local, topic) == 2
    with broker(data) as local, local.client() as client:
        wait_until(lambda: stored(local, topic) == 0, "nothing is left in the store")
        assert positions(client, "t") == {"recorder": {0: 6, 1: 0}}, "what was marked later counts"


def test_what_is_left_of_a_topic_that_is_gone_goes_too(tmp_path, wait_until):
    with broker(tmp_path / "data") as local, local.client() as client:
        topic = client.create_topic("t")
        client.delete_topic("t")
        put_ends(local, topic, {0: 0})
        wait_until(lambda: stored(local, topic) == 0, "nothing is left in the store")


@pytest.fixture
def before(monkeypatch):
    """Every broker is of the version before: it knows one feature level less."""
    monkeypatch.setattr(trust, "LEVEL_KNOWN", trust.CURSORS - 1)
    return monkeypatch


def test_below_the_level_nothing_changes_but_that_marks_are_refused(etcd, before, tmp_path, wait_until):
    settings = {"coordination": f"{etcd.url}/takeover", "broker_id": "b0"}
    with broker(tmp_path / "data", **settings) as local, local.client() as client:
        topic = client.create_topic("t", retention_bytes=0, segment_bytes=SEGMENT, keep_unrecorded=True)
        fill(client, "t")
        put_ends(local, topic, {0: 4})
        wait_until(lambda: client.describe_topic("t").partitions[0].recorded == 4, "the watch tells it")
        wait_until(lambda: client.describe_topic("t").partitions[0].start == 3, "retention goes on")
        for call in (
            lambda: client.mark_recorded("t", {0: 5}, timeout=0.3),
            lambda: client.move_cursor("t", "a", {0: 5}, timeout=0.3),
        ):
            with pytest.raises(DeadlineExceeded, match="being upgraded"):
                call()
        for call in (lambda: client.cursors("t"), lambda: client.alter_topic("t", retention_waits_for="a")):
            with pytest.raises(NotReady, match="being upgraded"):
                call()
        assert CURSORS_TOPIC not in local.inner.parts.ground.catalogue.topics
        assert stored(local, topic) == 1
        before.undo()
        before.setattr(limits, "CURSOR_CHECK_S", 0.02)
        local.stop()
        local.start()
        wait_until(lambda: stored(local, topic) == 0, "the level rises, and it is taken over")
        assert positions(client, "t") == {"recorder": {0: 4}}
        client.mark_recorded("t", {0: 9})
        assert positions(client, "t") == {"recorder": {0: 9}}


def test_an_unclean_recovery_takes_cursors_back(tmp_path):
    with broker(tmp_path / "data") as local, local.client() as client:
        client.create_topic("t", partitions=2)
        fill(client, "t", 5)
        client.mark_recorded("t", {0: 4})
        client.move_cursor("t", "a", {0: 2, 1: 0})
        client.move_cursor("t", "b", {0: 5})
        desk = local.inner.parts.cursors
        assert do(local, desk.cut("t", 0, 3)) == {}
        assert positions(client, "t") == {"recorder": {0: 3}, "a": {0: 2, 1: 0}, "b": {0: 3}}
        assert do(local, desk.cut(CURSORS_TOPIC, 0, 0)) == {}, "nobody asks the cursors' own topic about itself"


def test_an_unclean_recovery_below_the_level_changes_the_store(etcd, before, tmp_path, wait_until):
    with broker(tmp_path / "data", coordination=f"{etcd.url}/uncleanly", broker_id="b0") as local:
        with local.client() as client:
            topic = client.create_topic("t")
            put_ends(local, topic, {0: 4})
        key = (topic.id, 0)
        wait_until(lambda: key in local.inner.parts.ground.catalogue.recorded, "the watch tells it")
        desk = local.inner.parts.cursors
        assert do(local, desk.cut("t", 0, 4)) == {}
        assert do(local, desk.cut("t", 0, 3)) == {recorded_key(key): encode(RecordedEnd(3))}
