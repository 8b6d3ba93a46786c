"""Exactly once, step by step and without Spark: whatever interrupts a commit, a repetition ends it."""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter

import pyarrow as pa
import pytest

from stentor import limits
from stentor.client.identity import producer_id_of
from stentor.errors import InvalidArgument, NotReady, OffsetOutOfRange, StentorError
from stentor.spark import ledger
from stentor.spark.ledger import Ledger, Stage, commits_topic, staged_topic

_numbers = itertools.count()


@pytest.fixture
def application():
    return f"app-{next(_numbers)}"


QUERY = "5a5d9a4c-2f4e-4a2b-9d9c-0d8a8f9f1c11"


@pytest.fixture
def checkpoint(tmp_path):
    """As Spark begins one."""
    (tmp_path / "metadata").write_text(json.dumps({"id": QUERY}))
    return tmp_path


def manifests(client, application):
    return [ledger._decoder.decode(message.value) for message in client.read(commits_topic(application))]


def public_id(client, application):
    """That of a producer without a secret."""
    return producer_id_of(f"spark/{application}/{client.find_topic(commits_topic(application)).id:x}", "")


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """So that a few rows are many chunks and many batches."""
    monkeypatch.setattr(ledger, "CHUNK_BYTES", 400)
    monkeypatch.setattr(ledger, "GROUP_BYTES", 1600)


@pytest.fixture
def targets(client, topic):
    """Two topics, one of them of two partitions: (topic, partition)."""
    client.create_topic(f"{topic}.one")
    client.create_topic(f"{topic}.two", partitions=2)
    return [(f"{topic}.one", 0), (f"{topic}.two", 0), (f"{topic}.two", 1)]


def rows_of(task, epoch=0, count=40):
    return [f"{epoch}/{task}/{number:03}".encode() for number in range(count)]


def as_batch(values):
    from stentor.client.tables import conform

    return conform(pa.record_batch({"value": pa.array(values, pa.binary())}), 1_700_000_000_000_000)


def stage(client, application, targets, *, epoch=0, tasks=(0, 1, 2), step=7):
    """Every task writes its rows to all targets; where they are staged."""
    chunks = []
    for task in tasks:
        staging = Stage(client, application, task)
        values = rows_of(task, epoch)
        for start in range(0, len(values), step):
            for topic, partition in targets:
                staging.add(topic, partition, as_batch(values[start : start + step]))
        chunks += staging.finish()
    return chunks


def check_once(client, targets, epochs=(0,), tasks=(0, 1, 2)):
    """Every row once in every target, those of a task in their order."""
    for topic, partition in targets:
        found = [message.value for message in client.read(topic, partition=partition)]
        expected = [value for epoch in epochs for task in tasks for value in rows_of(task, epoch)]
        assert Counter(found) == Counter(expected)
        for task in tasks:
            of_task = [value for value in found if value.split(b"/")[1] == str(task).encode()]
            assert of_task == [value for epoch in epochs for value in rows_of(task, epoch)]


class Interrupted(Exception):  # noqa: N818 - not an error of anybody's
    """The process ends here."""


class Interrupting:
    """A client that ends after so many steps; before and after every message or batch there is one."""

    def __init__(self, client, steps):
        self._client = client
        self._left = steps

    def __getattr__(self, name):
        return getattr(self._client, name)

    def step(self):
        if self._left == 0:
            raise Interrupted
        self._left -= 1

    def publish(self, *args, **options):
        self.step()
        receipt = self._client.publish(*args, **options)
        self.step()
        return receipt

    def producer(self, *args, **options):
        return _InterruptingProducer(self, self._client.producer(*args, **options))


class _InterruptingProducer:
    def __init__(self, owner, producer):
        self._owner = owner
        self._producer = producer

    def send_batch(self, *args, **options):
        self._owner.step()
        self._producer.send_batch(*args, **options)
        self._producer.flush()
        self._owner.step()

    def __getattr__(self, name):
        return getattr(self._producer, name)


def interrupted_at(client, steps, work):
    """Whether `work` was interrupted."""
    try:
        work(Interrupting(client, steps))
    except Interrupted:
        return True
    return False


class TestInterrupted:
    def test_a_commit_may_end_after_any_step_and_is_then_done_again(
        self, client, application, targets, topic, monkeypatch
    ):
        """Done again, its rows are staged in another order and cut in other places."""

        def work(client):
            chunks = stage(client, application, targets, epoch=epoch, tasks=(2, 0, 1), step=13)
            Ledger(client, application).commit(epoch, chunks)

        for epoch in itertools.count():
            monkeypatch.setattr(ledger, "CHUNK_BYTES", 400)
            monkeypatch.setattr(ledger, "GROUP_BYTES", 1600)
            # Always one more step than the last time: every epoch is interrupted elsewhere.
            interrupted = interrupted_at(client, 7 * epoch + epoch % 7, work)
            if not interrupted:
                break
            monkeypatch.setattr(ledger, "CHUNK_BYTES", 300)
            monkeypatch.setattr(ledger, "GROUP_BYTES", 900)
            Ledger(client, application).commit(epoch, stage(client, application, targets, epoch=epoch, step=5))
        assert epoch > 5
        check_once(client, targets, epochs=range(epoch + 1))

    def test_publishing_may_be_interrupted_after_every_batch(self, client, application, targets):
        chunks = stage(client, application, targets)
        for steps in itertools.count():

            def work(client):
                Ledger(client, application).commit(0, chunks)

            if not interrupted_at(client, steps, work):
                break
        assert steps > 5
        check_once(client, targets)

    def test_an_epoch_that_an_older_version_began_is_finished_under_the_id_it_had(
        self, client, application, targets, monkeypatch
    ):
        """Its manifest names no producer; half of its rows are published under an id without a token."""
        chunks = stage(client, application, targets)
        monkeypatch.setattr(ledger, "producer_id_of", lambda *_: 0)
        assert interrupted_at(client, 8, lambda client: Ledger(client, application).commit(0, chunks))
        monkeypatch.undo()
        Ledger(client, application).commit(0, chunks)
        check_once(client, targets)

    def test_an_epoch_is_not_finished_with_another_secret(self, client, application, targets, monkeypatch):
        chunks = stage(client, application, targets)
        monkeypatch.setenv("STENTOR_PRODUCER_SECRET", "one")
        assert interrupted_at(client, 8, lambda client: Ledger(client, application).commit(0, chunks))
        for other in ("another", ""):
            monkeypatch.setenv("STENTOR_PRODUCER_SECRET", other)
            with pytest.raises(InvalidArgument, match="another producer secret"):
                Ledger(client, application).commit(0, chunks)
        monkeypatch.setenv("STENTOR_PRODUCER_SECRET", "one")
        Ledger(client, application).commit(0, chunks)
        check_once(client, targets)

    @pytest.mark.parametrize("later", ["environment", "checkpoint"])
    def test_an_epoch_that_was_begun_without_a_secret_is_finished_without_it(
        self, client, application, targets, monkeypatch, checkpoint, later
    ):
        """Queries of an older version go on; their next epoch has a secret."""
        chunks = stage(client, application, targets)
        assert interrupted_at(client, 8, lambda client: Ledger(client, application, QUERY).commit(0, chunks))
        if later == "environment":
            monkeypatch.setenv("STENTOR_PRODUCER_SECRET", "one")
        place = str(checkpoint) if later == "checkpoint" else ""
        Ledger(client, application, QUERY, checkpoint=place).commit(0, chunks)
        chunks = stage(client, application, targets, epoch=1)
        Ledger(client, application, QUERY, checkpoint=place).commit(1, chunks)
        check_once(client, targets, epochs=(0, 1))
        first, second = manifests(client, application)
        assert first.producer_id == public_id(client, application) != second.producer_id

    def test_an_epoch_that_was_begun_with_the_secret_of_its_checkpoint_goes_on_with_it(
        self, client, application, targets, monkeypatch, checkpoint
    ):
        """Also when the environment has one by then."""
        chunks, place = stage(client, application, targets), str(checkpoint)
        assert interrupted_at(
            client, 8, lambda client: Ledger(client, application, QUERY, checkpoint=place).commit(0, chunks)
        )
        with pytest.raises(InvalidArgument, match="another producer secret"):
            Ledger(client, application, QUERY).commit(0, chunks)
        monkeypatch.setenv("STENTOR_PRODUCER_SECRET", "one")
        Ledger(client, application, QUERY, checkpoint=place).commit(0, chunks)
        check_once(client, targets)

    def test_who_knows_the_name_of_an_application_cannot_stop_a_query_with_a_checkpoint(
        self, client, application, targets, checkpoint
    ):
        place = str(checkpoint)
        Ledger(client, application, QUERY, checkpoint=place).commit(0, stage(client, application, targets))
        guessed = f"spark/{application}/{client.find_topic(commits_topic(application)).id:x}"
        for name, partition in targets:
            with client.producer(name, identity=guessed, secret="", generation=2**32 - 1) as forged:
                forged.send(b"0/9/forged", partition=partition)
        Ledger(client, application, QUERY, checkpoint=place).commit(1, stage(client, application, targets, epoch=1))
        for name, partition in targets:
            assert sum(1 for _ in client.read(name, partition=partition)) == 2 * 3 * 40 + 1

    def test_after_the_manifest_other_rows_of_a_repetition_do_not_count(self, client, application, targets):
        chunks = stage(client, application, targets)
        assert interrupted_at(client, 1, lambda client: Ledger(client, application).commit(0, chunks))
        others = stage(client, application, targets, tasks=(5,))
        Ledger(client, application, drop_repeated=True).commit(0, others)
        check_once(client, targets)

    def test_a_repetition_without_rows_still_publishes_what_was_decided(self, client, application, targets):
        chunks = stage(client, application, targets)
        assert interrupted_at(client, 1, lambda client: Ledger(client, application).commit(0, chunks))
        Ledger(client, application).commit(0, [])
        check_once(client, targets)

    def test_an_epoch_without_rows_leaves_nothing_behind(self, client, application, targets):
        Ledger(client, application).commit(0, [])
        assert client.offsets(commits_topic(application)) == {0: 0}

    def test_chunks_of_attempts_that_lost_are_not_published(self, client, application, targets):
        stage(client, application, targets)
        Ledger(client, application).commit(0, stage(client, application, targets))
        check_once(client, targets)


class TestEpochs:
    def test_epochs_follow_each_other(self, client, application, targets):
        for epoch in range(4):
            Ledger(client, application).commit(epoch, stage(client, application, targets, epoch=epoch))
        check_once(client, targets, epochs=range(4))

    def test_an_epoch_older_than_the_last_was_published_and_is_not_again(self, client, application, targets):
        for epoch in (2, 3, 3, 2, 0):
            ledger = Ledger(client, application, drop_repeated=True)
            ledger.commit(epoch, stage(client, application, targets, epoch=epoch))
        check_once(client, targets, epochs=(2, 3))

    def test_an_epoch_older_than_the_last_means_an_older_checkpoint_and_is_refused(self, client, application, targets):
        for epoch in (0, 1, 2):
            Ledger(client, application, "query").commit(epoch, stage(client, application, targets, epoch=epoch))
        with pytest.raises(InvalidArgument, match=r"epoch 1 comes with 120 rows after epoch 2 was written") as error:
            Ledger(client, application, "query").commit(1, stage(client, application, targets[:1], epoch=1))
        assert "dropRepeated" in error.value.hint
        check_once(client, targets, epochs=(0, 1, 2))

    def test_the_last_epoch_with_another_number_of_rows_is_refused_when_it_is_published(
        self, client, application, targets
    ):
        """The newest files of a checkpoint were lost: what came meanwhile is in the repeated epoch."""
        chunks = stage(client, application, targets)
        assert interrupted_at(client, 8, lambda client: Ledger(client, application, "query").commit(0, chunks))
        more = stage(client, application, targets, tasks=(0, 1, 2, 3))
        with pytest.raises(InvalidArgument, match=r"comes with 480 rows after it was written with 360\."):
            Ledger(client, application, "query").commit(0, more)
        check_once(client, targets)

    def test_a_version_that_goes_back_is_refused(self, client, application, targets):
        Ledger(client, application).commit(7, stage(client, application, targets))
        with pytest.raises(
            InvalidArgument, match="repeats an earlier write: txnVersion 6 comes with 360 rows after txnVersion 7"
        ):
            Ledger(client, application).commit(6, stage(client, application, targets, epoch=1))
        check_once(client, targets)

    def test_an_older_epoch_without_rows_loses_none(self, client, application, targets):
        Ledger(client, application).commit(7, stage(client, application, targets))
        Ledger(client, application).commit(6, [])
        check_once(client, targets)

    def test_a_version_may_be_any_large_number(self, client, application, targets):
        version = 20_261_115_143_000_123
        for epoch in (version, version, version + 1):
            Ledger(client, application).commit(epoch, stage(client, application, targets, epoch=epoch))
        check_once(client, targets, epochs=(version, version + 1))

    def test_an_application_whose_topics_were_deleted_begins_anew(self, client, application, targets):
        for epoch in (0, 1):
            Ledger(client, application).commit(epoch, stage(client, application, targets, epoch=epoch))
        client.delete_topic(commits_topic(application))
        client.delete_topic(staged_topic(application))
        Ledger(client, application).commit(0, stage(client, application, targets, epoch=2))
        check_once(client, targets, epochs=(0, 1, 2))

    def test_a_query_of_another_checkpoint_is_refused(self, client, application, targets):
        Ledger(client, application, "one").commit(5, stage(client, application, targets))
        with pytest.raises(InvalidArgument, match="has written with another checkpoint"):
            Ledger(client, application, "two").commit(0, stage(client, application, targets))
        check_once(client, targets)

    def test_applications_do_not_disturb_each_other(self, client, application, targets):
        for name in (f"{application}-a", f"{application}-b"):
            Ledger(client, name).commit(0, stage(client, name, targets))
        for topic, partition in targets:
            found = Counter(message.value for message in client.read(topic, partition=partition))
            assert set(found.values()) == {2}


class TestDrivers:
    """Spark keeps two drivers from working on one checkpoint, but a cut-off one may not know that it is over."""

    def test_of_two_drivers_the_first_to_decide_is_followed_by_both(self, client, application, targets):
        mine = stage(client, application, targets, tasks=(5,))
        others = stage(client, application, targets)

        class Late(Interrupting):
            def publish(self, *args, **options):
                Ledger(client, application).commit(0, others)
                return client.publish(*args, **options)

        Ledger(Late(client, -1), application).commit(0, mine)
        check_once(client, targets)

    def test_a_driver_that_is_an_epoch_late_changes_nothing(self, client, application, targets):
        chunks = stage(client, application, targets, epoch=0)
        others = iter((0, 1))  # of the driver that is in time; at the first step only

        class Late(Interrupting):
            def publish(self, *args, **options):
                for epoch in others:
                    Ledger(client, application).commit(epoch, stage(client, application, targets, epoch=epoch))
                return client.publish(*args, **options)

        Ledger(Late(client, -1), application).commit(0, chunks)
        Ledger(client, application).commit(2, stage(client, application, targets, epoch=2))
        check_once(client, targets, epochs=(0, 1, 2))

    def test_two_drivers_at_once(self, client, application, targets):
        gate = threading.Barrier(2)
        errors = []

        def drive(step):
            try:
                for epoch in range(4):
                    chunks = stage(client, application, targets, epoch=epoch, step=step)
                    gate.wait(30)
                    Ledger(client, application).commit(epoch, chunks)
                    gate.wait(30)
            except (StentorError, threading.BrokenBarrierError) as error:
                gate.abort()
                errors.append(error)

        threads = [threading.Thread(target=drive, args=(step,)) for step in (5, 11)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        check_once(client, targets, epochs=range(4))


class TestSizes:
    @pytest.mark.parametrize("sizes", [[1] * 300 + [5000], [5000] + [1] * 300, [2000] * 5, [1], [0] * 3000, [100_000]])
    def test_rows_of_very_different_sizes_are_staged_and_published(self, client, application, topic, sizes):
        client.create_topic(topic)
        values = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
        staging = Stage(client, application, 0)
        staging.add(topic, 0, as_batch(values))
        chunks = staging.finish()
        assert sum(chunk.rows for chunk in chunks) == len(values)
        Ledger(client, application).commit(0, chunks)
        assert [message.value for message in client.read(topic)] == values

    def test_small_rows_of_an_epoch_are_one_batch_per_partition(self, client, application, targets, monkeypatch):
        monkeypatch.setattr(ledger, "GROUP_BYTES", 8 << 20)
        Ledger(client, application).commit(0, stage(client, application, targets))
        for topic, partition in targets:
            assert len(list(client.read(topic, partition=partition).batches())) == 1


class TestLost:
    def test_a_target_that_was_made_anew_is_an_error(self, client, application, targets):
        topic = targets[0][0]
        chunks = stage(client, application, targets)
        client.delete_topic(topic)
        client.create_topic(topic)
        with pytest.raises(StentorError, match=rf"{topic} was deleted and created again .* new checkpoint"):
            Ledger(client, application).commit(0, chunks)

    def test_staged_rows_that_expired_are_an_error(self, client, application, targets, wait_until):
        chunks = stage(client, application, targets)
        name = staged_topic(application)
        client.alter_topic(name, retention_age_s=1, keep_unrecorded=False)
        wait_until(lambda: all(part.start == part.end for part in client.describe_topic(name).partitions), "expiry")
        with pytest.raises(OffsetOutOfRange, match=rf"Rows staged in {name} were deleted before they were published"):
            Ledger(client, application).commit(0, chunks)

    def test_rows_of_another_stage_of_the_same_name_are_never_taken_for_those_decided(
        self, client, application, targets
    ):
        chunks = stage(client, application, targets)
        assert interrupted_at(client, 1, lambda client: Ledger(client, application).commit(0, chunks))
        client.delete_topic(staged_topic(application))
        again = stage(client, application, targets, step=3)
        with pytest.raises(OffsetOutOfRange, match="were deleted before they were published"):
            Ledger(client, application).commit(0, again)
        assert [client.offsets(topic)[partition] for topic, partition in targets] == [0, 0, 0]


class TestStagedRows:
    """They go soon after they were published, and never before."""

    @pytest.fixture(autouse=True)
    def _soon(self, monkeypatch):
        monkeypatch.setattr(ledger, "STAGED_KEPT_S", 1)
        monkeypatch.setattr(ledger, "STAGED_SEGMENT_BYTES", limits.SEGMENT_BYTES_MIN)
        monkeypatch.setattr(ledger, "MARK_EVERY_S", 0.0)

    @staticmethod
    def starts(client, application):
        return {part.partition: part.start for part in client.describe_topic(staged_topic(application)).partitions}

    @staticmethod
    def fill(client, application, partitions=(0, 1, 2)):
        """So that what was staged before is in segments that can go."""
        with client.producer(staged_topic(application)) as producer:
            for partition in partitions:
                for _ in range(5):
                    producer.send(b"x" * 20_000, partition=partition)

    def test_of_a_query_go_when_the_next_epoch_is_published(self, client, application, targets, wait_until):
        Ledger(client, application, "q").commit(0, stage(client, application, targets))
        self.fill(client, application)
        chunks = stage(client, application, targets, epoch=1)
        self.fill(client, application)
        Ledger(client, application, "q").commit(1, chunks)
        wait_until(lambda: all(self.starts(client, application)[p] > 0 for p in (0, 1, 2)), "staged rows go")
        first = min(chunk.staged_offset for chunk in chunks if chunk.staged_partition == 0)
        assert self.starts(client, application)[0] <= first
        Ledger(client, application, "q").commit(1, chunks)  # Spark repeats the last epoch
        check_once(client, targets, epochs=(0, 1))

    def test_that_wait_for_their_commit_stay_however_old_they_are(self, client, application, targets, wait_until):
        chunks = stage(client, application, targets)
        self.fill(client, application)
        name = staged_topic(application)
        due = [lambda p=p: client.describe_topic(name).partitions[p].kept_unrecorded > 0 for p in (0, 1, 2)]
        for is_due in due:
            wait_until(is_due, "rows are old enough to go")
        Ledger(client, application, "q").commit(0, chunks)
        check_once(client, targets)

    def test_of_a_batch_write_go_at_once_and_it_may_be_repeated(self, client, application, targets, wait_until):
        chunks = stage(client, application, targets)
        self.fill(client, application)
        Ledger(client, application).commit(7, chunks)
        wait_until(lambda: all(self.starts(client, application)[p] > 0 for p in (0, 1, 2)), "staged rows go")
        Ledger(client, application).commit(7, stage(client, application, targets))
        check_once(client, targets)

    def test_a_mark_that_fails_fails_no_commit(self, client, application, targets):
        class Refusing(Interrupting):
            def mark_recorded(self, *_args, **_options):
                raise NotReady("no head")

        Ledger(Refusing(client, -1), application, "q").commit(0, stage(client, application, targets))
        check_once(client, targets)
