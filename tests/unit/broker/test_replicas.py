"""Copies of partitions: opened, replaced, removed, cut, whatever the disk and the store say meanwhile."""

import threading

import msgspec
import pyarrow as pa
import pytest

from stentor import limits
from stentor.broker.catalogue import HeldTopic
from stentor.core import replica_events as r
from stentor.core.chain_messages import Linked
from stentor.core.records import HeldRecord
from stentor.errors import CorruptData, DiskFull, FormatTooNew, StorageError
from stentor.storage import journal
from stentor.storage.log import PartitionLog
from stentor.storage.recovery import ForeignSegment


class Inside:
    """A broker with one topic, and what tests do to its only partition."""

    def __init__(self, local, client):
        client.create_topic("t")
        for _ in range(3):
            client.publish("t", "x")
        self.broker = local.inner
        self.replicas, self.desk = local.inner.parts.replicas, local.inner.parts.desk
        ((self.key, self.partition),) = self.replicas.partitions.items()
        self.catalogue = local.inner.parts.ground.catalogue
        self.directory, self.journal = local.inner.parts.ground.directory, local.inner.parts.ground.journal
        self.copies = local.inner.parts.copies
        self.topic = self.catalogue.get("t")
        self._steps = 0

    def run(self, work, *arguments):
        """In the broker's loop."""
        done, found = threading.Event(), []

        def now():
            try:
                found.append(work(*arguments))
            finally:
                done.set()

        self.broker.loop.call_soon_threadsafe(now)
        assert done.wait(10)
        return found[0]

    def held(self, **changes):
        """The record as it would be after a change."""
        self._steps += 1
        held = self.catalogue.chains[self.key]
        record = msgspec.structs.replace(held.record, epoch=held.record.epoch + self._steps, **changes)
        return HeldRecord(record, held.revision + self._steps)

    def replicated(self):
        """The topic as if there were three replicas."""
        settings = msgspec.structs.replace(self.topic.record.settings, replicas=3)
        return HeldTopic(msgspec.structs.replace(self.topic.record, settings=settings), 1)

    def name_another_log(self):
        member = self.catalogue.chains[self.key].record.chain[0]
        self._log_id = member.log_id + self._steps + 1
        chain = (msgspec.structs.replace(member, log_id=self._log_id),)
        self.run(self.replicas.configure, self.topic, self.key, self.held(chain=chain))

    def is_replaced(self):
        partition = self.replicas.partitions.get(self.key)
        return partition is not None and partition.replica.me.log_id == self._log_id


@pytest.fixture
def inside(local, client):
    return Inside(local, client)


def test_a_copy_that_is_cut_right_now_can_be_replaced(inside, wait_until):
    go_on, cut_log = threading.Event(), inside.desk.cut_log

    def slowly(partition, effect):
        go_on.wait(10)
        return cut_log(partition, effect)

    def cut():
        partition = inside.partition
        inside.desk.cut_log = slowly
        partition.replica.links.cutting = Linked(partition.replica.epoch, 1, partition.log.end)
        partition._perform([r.Truncate(partition.log.end, reset=False, snapshot=None)])

    inside.run(cut)
    inside.name_another_log()
    go_on.set()
    wait_until(inside.is_replaced, "the new copy")


def test_a_cut_that_fails_lets_those_go_who_wait_for_the_disk(inside, wait_until):
    held = []

    class Publisher:
        def hold(self):
            held.append(self)

        def release(self):
            held.remove(self)

    def cut():
        partition, publisher = inside.partition, Publisher()
        inside.desk.cut_log = lambda *_: (_ for _ in ()).throw(DiskFull("There is no room."))
        partition.sync._held.add(publisher)
        publisher.hold()
        partition.replica.links.cutting = Linked(partition.replica.epoch, 1, partition.log.end)
        partition._perform([r.Truncate(partition.log.end, reset=False, snapshot=None)])

    inside.run(cut)
    wait_until(lambda: not held, "the release")
    assert "cut back" in inside.partition.replica.failed


def test_a_copy_that_could_not_be_made_is_made_with_the_next_record(inside, wait_until):
    put_aside = inside.directory.put_aside

    def full(*_):
        raise OSError(28, "No space left on device")

    inside.directory.put_aside = full
    inside.name_another_log()
    wait_until(lambda: not inside.replicas._creating, "the failure")
    assert inside.key not in inside.replicas.partitions
    inside.directory.put_aside = put_aside
    inside.name_another_log()
    wait_until(inside.is_replaced, "the new copy")


def test_a_copy_of_a_topic_that_was_deleted_while_it_was_made_does_not_stay(inside, wait_until):
    go_on, begin = threading.Event(), inside.copies.begin
    inside.copies.begin = lambda *arguments: (go_on.wait(10), begin(*arguments))[1]
    inside.name_another_log()
    wait_until(lambda: inside.key in inside.replicas._creating, "the new copy begins")
    inside.run(inside.catalogue.drop_topic, inside.topic)
    go_on.set()
    wait_until(lambda: not inside.replicas._creating and not inside.replicas._drops, "it is gone again")
    assert inside.key not in inside.replicas.partitions
    assert inside.journal.get(*inside.key) is None


def test_a_copy_that_was_made_while_its_topic_changed_knows_the_change(inside, client, wait_until):
    """As a head it would refuse rows of a schema that every other broker knows, for ever."""
    go_on, begin = threading.Event(), inside.copies.begin

    def made_late(*arguments):
        copy = begin(*arguments)  # with the topic as it was then
        go_on.wait(10)
        return copy

    inside.copies.begin = made_late
    inside.name_another_log()
    wait_until(lambda: inside.key not in inside.replicas.partitions, "the old copy is gone")
    client.tabular("t", pa.schema([pa.field("n", pa.int64())]))
    client.alter_topic("t", retention_bytes=123_456_789)
    go_on.set()
    wait_until(inside.is_replaced, "the new copy")
    copy = inside.replicas.partitions[inside.key]
    assert copy.schemas == 1
    assert copy.settings.retention_bytes == copy.log.settings.retention_bytes == 123_456_789


def test_a_copy_that_is_being_removed_is_not_opened_before_it_is_gone(inside, wait_until):
    """Its files would be unlinked under a member that acknowledges."""
    go_on, delete = threading.Event(), inside.partition.log.delete
    inside.partition.log.delete = lambda: (go_on.wait(10), delete())
    record = inside.held()
    dropping = inside.run(
        lambda: inside.broker.loop.create_task(inside.replicas.drop(inside.key, StorageError("Removed.")))
    )
    wait_until(lambda: inside.key in inside.replicas._dropping, "the removal")
    inside.name_another_log()
    assert inside.key not in inside.replicas._creating
    go_on.set()
    wait_until(dropping.done, "the end of the removal")
    wait_until(inside.is_replaced, "the new copy")
    assert inside.partition.log.directory.exists()
    # The old one would come back empty under its old name.
    inside.run(inside.replicas.configure, inside.topic, inside.key, record)
    assert inside.key not in inside.replicas._creating
    assert inside.is_replaced()


def leave_no_room(patch):
    """From now on nothing is written to the journal; returns what was refused."""
    refused = []

    def full(path, *_):
        refused.append(path)
        raise DiskFull("There is no room on the disk.")

    patch.setattr(journal, "atomic_write", full)
    patch.setattr(journal.ChangesFile, "append", full)
    return refused


def test_an_epoch_that_found_no_room_is_stored_when_there_is_some(inside, client, wait_until, monkeypatch):
    held = inside.held()
    with monkeypatch.context() as patch:
        refused = leave_no_room(patch)
        inside.run(inside.partition.step, r.Configure(held.record, held.revision))
        wait_until(lambda: refused, "the refusal")
    wait_until(lambda: inside.partition.replica.epoch == held.record.epoch, "the epoch")
    assert not inside.partition.replica.failed
    assert client.publish("t", "y").offset == 3


def test_epochs_that_follow_each_other_while_there_is_no_room_are_stored_when_there_is_some(
    inside, client, wait_until, monkeypatch
):
    monkeypatch.setattr(limits, "DISK_AGAIN_S", 0.05)
    with monkeypatch.context() as patch:
        refused = leave_no_room(patch)
        for _ in range(2):
            held, seen = inside.held(), len(refused)
            inside.run(inside.partition.step, r.Configure(held.record, held.revision))
            wait_until(lambda seen=seen: len(refused) > seen + 3, "some refusals")
    wait_until(lambda: inside.partition.replica.epoch == held.record.epoch, "the epoch")
    assert client.publish("t", "y").offset == 3


def refuse_to_open(monkeypatch, error):
    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(PartitionLog, "open", refuse)


@pytest.mark.parametrize("error", [FormatTooNew("Format 2."), StorageError("Too many open files.")])
def test_a_copy_that_cannot_be_opened_for_another_reason_is_not_put_aside(inside, monkeypatch, error):
    refuse_to_open(monkeypatch, error)
    with pytest.raises(type(error)):
        inside.copies.reopen(inside.replicated(), inside.key, 1, inside.desk)
    assert inside.partition.log.directory.exists()
    assert inside.journal.get(*inside.key) is not None


@pytest.mark.parametrize("error", [CorruptData("Not a batch."), ForeignSegment("Not a segment.")])
def test_a_damaged_copy_of_a_replicated_partition_is_put_aside(inside, monkeypatch, error):
    refuse_to_open(monkeypatch, error)
    assert inside.copies.reopen(inside.replicated(), inside.key, 1, inside.desk) is None
    assert not inside.partition.log.directory.exists()


def test_what_a_torn_tail_took_is_remembered_until_the_copy_is_reconciled(inside, wait_until):
    """C13: it leads nobody, also after one more restart, which finds nothing torn any more."""
    topic = inside.replicated()
    log = inside.partition.log
    inside.run(inside.replicas.partitions.pop, inside.key)
    inside.run(log.close)
    (file,) = log.directory.glob("*.log")
    with file.open("ab") as torn:
        torn.write(file.read_bytes()[-60:])
    first = inside.copies._open(topic, inside.key, log.identity.log_id, inside.desk)
    assert first.replica.damaged
    first.log.close()
    again = inside.copies._open(topic, inside.key, log.identity.log_id, inside.desk)
    assert not again.log.recovery.truncated
    assert again.replica.damaged
    again.let_lead()
    assert not again.replica.damaged
    again.log.close()
