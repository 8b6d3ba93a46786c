"""Disks that are full, read-only, taken or damaged: nothing acknowledged is lost, and a person is told what to do."""

import asyncio
import os
import subprocess
import threading

import msgspec
import pytest

from stentor import limits
from stentor.core.replica_events import Tick
from stentor.errors import CorruptData, DirectoryInUse, DirectoryUnusable, DiskFull, StentorError
from stentor.storage import journal
from stentor.storage.files import FileKind, atomic_write, seal
from stentor.storage.state import FailureMark, mark_path
from stentor.testing import LocalBroker, broker
from stentor.wire import messages

MIB = limits.MIB


# --- a full disk --------------------------------------------------------------------------------


def fill_up(link, topic_id, size=50_000):
    """Publish until the disk says no: the values that were acknowledged, and what it said."""
    acknowledged = []
    while True:
        value = b"%06d" % len(acknowledged) + bytes(size)
        try:
            offset = link.published(link.publish(topic_id, [value]))
        except DiskFull as error:
            return acknowledged, error
        assert offset == len(acknowledged)
        acknowledged.append(value[:6])


@pytest.fixture
def small(tmpfs):
    """A broker on a file system of 12 MiB."""
    disk = tmpfs(12)
    with broker(disk / "data", disk_reserve_bytes=MIB, segment_bytes=MIB) as local:
        yield local


def prefixes(client, **options):
    return [message.value[:6] for message in client.read("t", **options)]


def test_a_full_disk_refuses_publishes_and_goes_on_reading_and_recovers_by_itself(small, raw, wait_until):
    link = raw(small.url).greet()
    target = link.ask(messages.CreateTopic(name="t")).topic.id
    acknowledged, refusal = fill_up(link, target)
    assert len(acknowledged) > 50
    assert "bytes left" in str(refusal)
    assert refusal.hint
    assert refusal.retriable
    with small.client() as client:
        assert prefixes(client) == acknowledged
        with pytest.raises(DiskFull):
            link.published(link.publish(target, [b"x" * 50_000]))
        client.alter_topic("t", retention_bytes=4 * MIB)
        small.inner.loop.call_soon_threadsafe(small.inner._retain)
        wait_until(lambda: client.describe_topic("t").partitions[0].start > 0, "retention made room")
        offset = wait_until(lambda: try_publish(link, target), "publishing works again")
        assert offset == len(acknowledged), "a refusal costs no offset"
        start = client.describe_topic("t").partitions[0].start
        assert prefixes(client) == [*acknowledged[start:], b"again"]


def try_publish(link, target):
    try:
        return link.published(link.publish(target, [b"again"]))
    except DiskFull:
        return None


def test_nothing_acknowledged_on_a_full_disk_is_lost_in_a_restart(small, raw):
    link = raw(small.url).greet()
    target = link.ask(messages.CreateTopic(name="t")).topic.id
    acknowledged, _ = fill_up(link, target)
    small.stop()
    small.start()
    with small.client() as client:
        assert prefixes(client) == acknowledged
        link = raw(small.url).greet()
        with pytest.raises(DiskFull):
            link.published(link.publish(target, [b"x" * 50_000]))


def test_a_disk_filled_by_others_to_the_last_byte_costs_nothing_but_time(tmpfs, raw, wait_until):
    disk = tmpfs(12)
    with broker(disk / "data", disk_reserve_bytes=0, segment_bytes=MIB) as local:
        link = raw(local.url).greet()
        target = link.ask(messages.CreateTopic(name="t")).topic.id
        for number in range(20):
            link.published(link.publish(target, [b"%06d" % number]))
        filler = disk / "filler"
        fill_completely(filler)
        refused = None
        count = 20
        while refused is None:
            try:
                link.published(link.publish(target, [b"%06d" % count + bytes(30_000)]))
                count += 1
            except StentorError as error:
                refused = error
        assert isinstance(refused, DiskFull)
        with local.client() as client:
            assert prefixes(client) == [b"%06d" % number for number in range(count)]
            with pytest.raises(DiskFull):
                client.create_topic("another", partitions=200)
            filler.unlink()
            assert client.create_topic("another", partitions=3).settings.partitions == 3
            assert wait_until(lambda: try_publish(link, target)) == count
        local.stop()
        local.start()
        with local.client() as client:
            assert prefixes(client) == [*(b"%06d" % number for number in range(count)), b"again"]


def fill_completely(path):
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 4096, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue


@pytest.mark.timeout(180)
def test_a_topic_for_which_there_is_no_room_is_not_made_and_its_name_stays_free(tmpfs):
    disk = tmpfs(4)
    with broker(disk / "data", disk_reserve_bytes=0) as local, local.client() as client:
        client.create_topic("there")
        filler = disk / "filler"
        fill_completely(filler)
        os.truncate(filler, filler.stat().st_size - 200 * 1024)
        for _ in range(2):
            with pytest.raises(DiskFull):
                client.create_topic("wide", partitions=300)
        assert [topic.name for topic in client.topics()] == ["there"]
        assert len(list((local.data_directory / "partitions").iterdir())) == 1, "nothing of it stays"
        assert len(local.inner.parts.ground.journal.replicas()) == len(local.inner.partitions) == 1
        filler.unlink()
        assert client.create_topic("wide", partitions=3).settings.partitions == 3
        assert client.publish("wide", b"x").offset == 0


def test_a_publish_whose_time_is_up_says_that_the_disk_is_full(small, raw):
    link = raw(small.url).greet()
    fill_up(link, link.ask(messages.CreateTopic(name="t")).topic.id)
    with small.client(timeout=2) as client, pytest.raises(StentorError, match="bytes left"):
        client.publish("t", bytes(60_000))


def test_a_flush_whose_messages_found_no_room_says_that_the_disk_is_full(small, raw):
    link = raw(small.url).greet()
    fill_up(link, link.ask(messages.CreateTopic(name="t")).topic.id)
    with small.client(timeout=2) as client:
        producer = client.producer("t", timeout=1)
        producer.send(bytes(60_000))
        with pytest.raises(StentorError, match="bytes left"):
            producer.flush(timeout=3)


def test_a_client_that_keeps_trying_gets_through_when_there_is_room_again(small, raw, wait_until):
    link = raw(small.url).greet()
    target = link.ask(messages.CreateTopic(name="t")).topic.id
    acknowledged, _ = fill_up(link, target)
    with small.client() as client:
        receipts = []
        waiting = threading.Thread(target=lambda: receipts.append(client.publish("t", b"x" * 60_000, timeout=30)))
        waiting.start()
        client.alter_topic("t", retention_bytes=2 * MIB)
        small.inner.loop.call_soon_threadsafe(small.inner._retain)
        waiting.join(30)
        assert [receipt.offset for receipt in receipts] == [len(acknowledged)]


# --- a directory that cannot be used ------------------------------------------------------------


def test_two_brokers_cannot_share_a_directory(tmp_path):
    with broker(tmp_path) as first, first.client() as client:
        with pytest.raises(DirectoryInUse, match="in use") as caught, broker(tmp_path):
            pass
        assert "another data directory" in caught.value.hint
        assert client.publish("t", b"x").offset == 0
    with broker(tmp_path) as later, later.client() as client:
        assert client.publish("t", b"y").offset == 1


def test_two_processes_cannot_share_a_directory(served):
    first, second = served(), served()
    first.start()
    with pytest.raises(AssertionError, match="in use"):
        second.start()
    assert second.process.wait(30) != 0
    second.process.stdout.close()


def test_a_read_only_directory_is_refused_in_words(tmpfs, wait_until):
    disk = tmpfs(4)
    with broker(disk / "data"):
        pass
    command = ["mount", "-o", "remount,ro", str(disk)]  # refused while a probe of the disk ends in its thread
    wait_until(lambda: subprocess.run(command, check=False).returncode == 0, "the disk is read-only")
    with pytest.raises(DirectoryUnusable, match="read-only") as caught, broker(disk / "data"):
        pass
    assert caught.value.hint


def test_a_file_in_place_of_the_directory_is_refused_in_words(tmp_path):
    path = tmp_path / "data"
    path.write_text("not a directory")
    with pytest.raises(DirectoryUnusable, match="not a directory"), broker(path):
        pass


def test_a_foreign_directory_is_refused_and_left_as_it_is(tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    (tmp_path / "photos").mkdir()
    with pytest.raises(DirectoryUnusable), broker(tmp_path):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos", "precious.txt"]


def test_a_broker_that_could_not_start_lets_go_of_everything(tmp_path):
    with broker(tmp_path / "a") as first:
        port = first.inner.port
        with pytest.raises(StentorError, match="in use"), broker(tmp_path / "b", port=port):
            pass
        with broker(tmp_path / "b") as second, second.client() as client:
            assert client.publish("t", b"x").offset == 0


def test_a_broker_that_cannot_write_its_last_words_lets_go_of_everything(tmp_path, monkeypatch):
    local = LocalBroker(tmp_path).start()
    with local.client() as client:
        client.publish("t", b"x")
    (partition,) = local.inner.partitions.values()
    inner, real = local.inner, journal.atomic_write

    def full(path, data):
        raise DiskFull("There is no room on the disk.")

    monkeypatch.setattr(journal, "atomic_write", full)
    inner.parts.ground.journal.note_revision(5)  # so that there is something to write
    stopping = asyncio.run_coroutine_threadsafe(inner.stop(), inner.loop)
    with pytest.raises(DiskFull):
        stopping.result(20)
    monkeypatch.setattr(journal, "atomic_write", real)
    assert partition.log._state.closed
    with broker(tmp_path) as again, again.client() as client:
        assert [message.value for message in client.read("t")] == [b"x"]
    inner.loop.call_soon_threadsafe(local._stop.set)


# --- damage -------------------------------------------------------------------------------------


def log_files(local):
    return sorted((local.data_directory / "partitions").glob("*/*.log"))


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


@pytest.fixture
def hundred(tmp_path):
    """A broker with a hundred messages of 1 KB in one topic, one per batch, stopped."""
    with broker(tmp_path / "data") as local:
        with local.client() as client:
            for number in range(100):
                client.publish("t", b"%04d" % number + bytes(1000))
        local.stop()
        yield local


def test_a_flipped_bit_in_the_middle_of_a_log_costs_only_the_batch_it_is_in(hundred):
    (path,) = log_files(hundred)
    flip(path, 64 + 50 * (96 + 20 + 1004) + 600)
    hundred.start()
    with hundred.client() as client:
        ((first, end),) = client.describe_topic("t").partitions[0].damaged
        assert (first, end) == (50, 51)
        assert [m.value[:4] for m in client.read("t", end=50)] == [b"%04d" % n for n in range(50)]
        assert [m.value[:4] for m in client.read("t", start=51)] == [b"%04d" % n for n in range(51, 100)]
        got = []
        with pytest.raises(CorruptData) as caught:
            got.extend(message.offset for message in client.read("t"))
        assert "50" in str(caught.value)
        assert caught.value.hint
        assert caught.value.detail["resume_at"] == 51
        assert client.publish("t", b"more").offset == 100


@pytest.fixture
def flipped(tmp_path):
    """A running broker, and its client, with a hundred messages of which offset 20 was damaged meanwhile."""
    with broker(tmp_path / "data") as local, local.client() as client:
        for number in range(100):
            client.publish("t", b"%04d" % number + bytes(1000))
        (path,) = log_files(local)
        partition = local.inner.parts.serving.partition(client.describe_topic("t").id, 0)
        partition.tail._limit = 0
        partition.tail._trim()
        with path.open("r+b") as file:
            file.seek(64 + 20 * 1120 + 500)
            file.write(b"\xff\xff\xff")
        yield local, client


def damaged(client):
    return client.describe_topic("t").partitions[0].damaged


def test_a_flipped_bit_while_running_is_never_handed_out_as_a_message(flipped):
    _, client = flipped
    got = []
    with pytest.raises(CorruptData, match="20"):
        got.extend(message.value[:4] for message in client.read("t"))
    assert got == [b"%04d" % number for number in range(20)]
    with pytest.raises(CorruptData):
        client.read("t").to_arrow()
    assert len(list(client.read("t", start=21))) == 79


def test_a_broker_that_is_told_of_damage_looks_and_refuses_those_offsets(flipped, raw):
    local, client = flipped
    link = raw(local.url).greet()
    topic_id = client.describe_topic("t").id
    with pytest.raises(CorruptData, match="20"):
        link.ask(messages.ReportDamage(topic_id=topic_id, partition=0, offset=0, end=100))
    assert damaged(client) == [(20, 21)]
    with pytest.raises(CorruptData) as caught:
        list(client.read("t"))
    assert caught.value.detail["resume_at"] == 21
    assert len(list(client.read("t", start=21))) == 79


def test_a_broker_that_is_told_of_damage_where_there_is_none_goes_on(flipped, raw):
    local, client = flipped
    link = raw(local.url).greet()
    topic_id = client.describe_topic("t").id
    for offset, end in ((60, 70), (60, 2**62), (70, 60), (10**9, 2 * 10**9), (10**9, 0)):
        link.ask(messages.ReportDamage(topic_id=topic_id, partition=0, offset=offset, end=end))
    assert damaged(client) == []


def test_a_reader_that_meets_damage_tells_the_broker_and_is_told_where_to_go_on(flipped):
    _, client = flipped
    with pytest.raises(CorruptData) as caught:
        list(client.read("t"))
    assert damaged(client) == [(20, 21)]
    assert caught.value.detail["resume_at"] == 21


def test_a_reader_of_tables_that_meets_damage_tells_the_broker_as_well(flipped):
    _, client = flipped
    with pytest.raises(CorruptData):
        client.read("t").to_arrow()
    assert damaged(client) == [(20, 21)]


def test_a_torn_tail_is_cut_off_and_said_so(hundred, caplog):
    (path,) = log_files(hundred)
    size = 64 + 100 * 1120
    with path.open("r+b") as file:
        file.seek(size)
        file.write(b"STB\x01" + bytes(range(200)))
    hundred.start()
    assert any("cut off" in record.getMessage() for record in caplog.records)
    with hundred.client() as client:
        assert len(list(client.read("t"))) == 100
        assert client.publish("t", b"more").offset == 100


def test_a_missing_index_is_made_again(tmp_path):
    with broker(tmp_path / "data", segment_bytes=limits.SEGMENT_BYTES_MIN) as local:
        with local.client() as client:
            for number in range(200):
                client.publish("t", b"%04d" % number + bytes(1000))
        local.stop()
        indexes = list((local.data_directory / "partitions").glob("*/*.index"))
        assert indexes
        for index in indexes:
            index.unlink()
        local.start()
        with local.client() as client:
            assert [m.value[:4] for m in client.read("t", start=77)] == [b"%04d" % n for n in range(77, 200)]


def test_a_foreign_file_in_a_partition_is_left_alone(hundred):
    (path,) = log_files(hundred)
    foreign = path.with_name("notes.txt")
    foreign.write_text("mine")
    hundred.start()
    with hundred.client() as client:
        assert len(list(client.read("t"))) == 100
        client.delete_topic("t")
    assert foreign.read_text() == "mine"


def test_a_damaged_coordination_file_is_refused_with_a_hint(hundred):
    path = hundred.data_directory / "coordination"
    flip(path, path.stat().st_size // 2)
    with pytest.raises(CorruptData, match="coordination") as caught:
        hundred.start()
    assert caught.value.hint


def test_a_failed_log_that_also_lost_something_does_not_keep_the_others_from_starting(tmp_path):
    with broker(tmp_path) as local:
        with local.client() as client:
            for topic in ("bad", "good"):
                for number in range(10):
                    client.publish(topic, b"%d" % number + bytes(100))
            topic_id = client.describe_topic("bad").id
        local.stop()
        directory = tmp_path / "partitions" / f"{topic_id:016x}-0"
        mark = FailureMark(10, "A sync failed: EIO.", 1)
        atomic_write(mark_path(directory), seal(FileKind.FAILURE, msgspec.json.encode(mark)))
        (log,) = directory.glob("*.log")
        flip(log, log.stat().st_size - 5)
        local.start()
        with local.client() as client:
            assert len(list(client.read("good"))) == 10
            assert "sync failed" in client.describe_topic("bad").partitions[0].failed


# --- threads that are busy ----------------------------------------------------------------------


def is_tick(event):
    return isinstance(event, Tick)


def test_a_sync_that_waits_for_a_thread_is_not_one_that_the_disk_does_not_finish(monkeypatch, wait_until):
    """It would be taken to have begun with the one before, long ago, and the broker would report its own disk."""
    from stentor.broker.sessions import inline_sync as lone

    monkeypatch.setattr(lone, "RUN_MIN", 10**9)  # syncs in threads only
    with broker() as local, local.client() as client, client.producer("t") as producer:
        producer.send("first")
        producer.flush()
        (partition,) = local.inner.parts.replicas.partitions.values()
        ticks, step = [], partition.step
        monkeypatch.setattr(partition, "step", lambda event: ticks.append(event) if is_tick(event) else step(event))
        syncs, release = local.inner.parts.ground.environment.syncs, threading.Event()
        try:
            for _ in syncs._threads:
                syncs.submit(release.wait, lambda *_: None)
            wait_until(lambda: not syncs.waiting, "all threads are taken")
            producer.send("second")
            wait_until(lambda: syncs.waiting, "the sync waits")
            del ticks[:]
            wait_until(lambda: ticks, "a tick")
            assert ticks[0].sync_began_us is None
        finally:
            release.set()
        producer.flush()
