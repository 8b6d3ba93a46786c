"""Transcripts of the replica machine, and random walks that no order of events may break."""

import random

import pytest
from tests.alone import alone
from tests.headers import appended

from stentor.core.dedupe import Resend
from stentor.core.replica_events import Answer, Append, Committed, Durable, Fail, Find, Publish, Refuse, Sync
from stentor.core.statistics import ReplicaStatistics
from stentor.errors import InternalError, NotReady, SequenceError, UnknownOutcome

ACK_NONE, ACK_HEAD, ACK_QUORUM, ACK_ALL = range(4)


class Machine:
    """A replica with a pen: every step is checked, and shown in one short line."""

    def __init__(self, *, end: int = 0, epoch: int = 3) -> None:
        self.replica = alone(epoch=epoch, end=end)
        self.now = 1000
        self.tickets = 0
        self.refusals: dict[int, Exception] = {}

    def step(self, event):
        before = (self.replica.end, self.replica.durable, self.replica.committed)
        effects = self.replica.step(event, self.now)
        self.replica.check_invariants()
        after = (self.replica.end, self.replica.durable, self.replica.committed)
        assert all(new >= old for old, new in zip(before, after, strict=True)), "offsets never go back"
        return effects

    def publish(self, sequence=0, *, count=1, ack=ACK_ALL, producer=7, generation=0, checksum=None, append=True):
        """Publish, and let the log take it if it is to be appended."""
        self.tickets += 1
        checksum = sequence if checksum is None else checksum
        event = Publish(self.tickets, ack, count, producer, generation, sequence, checksum, stamp_us=self.now)
        effects = self.step(event)
        if append and isinstance(effects[0], Append):
            effects = [*effects, *self.step(appended(event, effects[0]))]
        return self.shown(effects)

    def durable(self, end):
        return self.shown(self.step(Durable(end)))

    def fail(self, reason="the disk said no"):
        return self.shown(self.step(Fail(reason)))

    def shown(self, effects):
        return [self._line(effect) for effect in effects]

    def _line(self, effect):
        match effect:
            case Append():
                assert (effect.epoch, effect.appended_at_us) == (self.replica.epoch, self.now)
                return f"append at {effect.base_offset}"
            case Sync():
                return "sync"
            case Committed():
                return f"committed {effect.end}"
            case Answer():
                assert effect.epoch == self.replica.epoch
                return f"answer {effect.ticket}: {effect.base_offset}"
            case Find():
                return f"find {effect.publish.ticket}: {effect.error.detail['reason']}"
            case Refuse():
                self.refusals[effect.ticket] = effect.error
                return f"refuse {effect.ticket}: {effect.error.code}"
        raise AssertionError(effect)


@pytest.fixture
def machine() -> Machine:
    return Machine()


# --- transcripts --------------------------------------------------------------------------------


def test_a_publish_is_answered_when_it_is_on_disk_and_not_before(machine):
    assert machine.publish(0, count=3) == ["append at 0", "sync"]
    assert machine.replica.committed == 0
    assert machine.durable(3) == ["committed 3", "answer 1: 0"]


def test_group_commit_answers_all_that_one_sync_covered_in_order(machine):
    assert machine.publish(0) == ["append at 0", "sync"]
    assert machine.publish(1) == ["append at 1"]
    assert machine.publish(2) == ["append at 2"]
    assert machine.durable(1) == ["committed 1", "answer 1: 0", "sync"]
    assert machine.publish(3) == ["append at 3"]
    assert machine.durable(3) == ["committed 3", "answer 2: 1", "answer 3: 2", "sync"]
    assert machine.durable(4) == ["committed 4", "answer 4: 3"]


def test_a_sync_that_covered_half_a_batch_does_not_answer_it(machine):
    machine.publish(0, count=4)
    assert machine.durable(2) == ["committed 2", "sync"]
    assert machine.durable(4) == ["committed 4", "answer 1: 0"]


def test_an_append_the_disk_refused_costs_no_offset(machine):
    assert machine.publish(0, append=False) == ["append at 0"]
    assert machine.publish(0, count=2) == ["append at 0", "sync"]
    assert machine.durable(2) == ["committed 2", "answer 2: 0"]
    assert machine.replica.end == 2


def test_an_append_the_disk_refused_is_not_a_duplicate_when_it_comes_again(machine):
    machine.publish(0, append=False)
    assert machine.publish(0) == ["append at 0", "sync"]


@pytest.mark.parametrize("ack", [ACK_HEAD, ACK_QUORUM, ACK_ALL])
def test_in_a_chain_of_one_every_level_means_on_disk(machine, ack):
    assert machine.publish(0, ack=ack) == ["append at 0", "sync"]
    assert machine.durable(1) == ["committed 1", "answer 1: 0"]


def test_who_wants_no_answer_gets_none_but_is_written_all_the_same(machine):
    assert machine.publish(0, ack=ACK_NONE) == ["append at 0", "sync"]
    assert machine.durable(1) == ["committed 1"]


def test_a_resend_before_it_is_on_disk_waits_like_the_original(machine):
    machine.publish(0)
    machine.publish(1)
    assert machine.publish(0) == ["sync"]
    assert machine.publish(1) == ["sync"]
    assert machine.durable(2) == ["committed 2", "answer 1: 0", "answer 3: 0", "answer 2: 1", "answer 4: 1"]


def test_a_resend_waits_only_for_its_own_offset(machine):
    machine.publish(0)
    machine.publish(1)
    machine.publish(0)
    assert machine.durable(1) == ["committed 1", "answer 1: 0", "answer 3: 0", "sync"]
    assert machine.durable(2) == ["committed 2", "answer 2: 1"]


def test_a_resend_of_what_is_on_disk_is_answered_at_once_with_the_original_place(machine):
    machine.publish(0, count=5)
    machine.publish(1)
    machine.durable(6)
    machine.now = 9999
    assert machine.publish(0) == ["answer 3: 0"]
    assert machine.publish(1) == ["answer 4: 5"]
    assert machine.replica.end == 6


def test_a_resend_keeps_the_time_of_the_original(machine):
    machine.publish(0)
    machine.durable(1)
    machine.now += 5
    (effect,) = machine.step(Publish(9, ACK_ALL, 1, 7, 0, 0, 0))
    assert effect.appended_at_us == machine.now - 5


def test_sequences_that_do_not_follow_are_refused_without_effect(machine):
    assert machine.publish(1) == ["refuse 1: sequence_error"]
    machine.publish(0)
    machine.durable(1)
    assert machine.publish(2) == ["refuse 3: sequence_error"]
    assert machine.publish(0, checksum=99) == ["refuse 4: sequence_error"]
    machine.publish(0, generation=1)
    machine.durable(2)
    assert machine.replica.end == 2
    assert {type(error) for error in machine.refusals.values()} == {SequenceError}
    reasons = [error.detail["reason"] for error in machine.refusals.values()]
    assert reasons == ["unknown_producer", "gap", "changed"]


def test_a_batch_that_may_be_in_the_log_is_looked_for_there(machine):
    for sequence in range(33):
        machine.publish(sequence)
    machine.durable(33)
    assert machine.publish(0) == ["find 34: forgotten"]
    machine.publish(0, generation=1)
    assert machine.publish(1, generation=0) == ["find 36: old_generation"]
    assert machine.replica.end == 34


def test_a_batch_that_was_found_is_answered_at_its_level(machine):
    machine.publish(0, generation=1)
    again = Publish(9, ACK_ALL, 1, 7, 0, 0, 0, known=Resend(0, 1, 5))
    assert machine.shown(machine.step(again)) == ["sync"]
    assert machine.durable(1) == ["committed 1", "answer 1: 0", "answer 9: 0"]
    assert machine.shown(machine.step(again)) == ["answer 9: 0"]


def test_after_a_failed_sync_what_waits_has_an_unknown_outcome_and_nothing_is_taken(machine):
    machine.publish(0)
    machine.durable(1)
    machine.publish(1)
    machine.publish(2)
    assert machine.fail() == ["refuse 2: unknown_outcome", "refuse 3: unknown_outcome"]
    assert isinstance(machine.refusals[2], UnknownOutcome)
    assert machine.publish(3) == ["refuse 4: not_ready"]
    assert machine.publish(0) == ["refuse 5: not_ready"]
    assert isinstance(machine.refusals[4], NotReady)
    assert "the disk said no" in str(machine.refusals[4])
    assert machine.replica.committed == 1


def test_nothing_is_answered_after_a_failed_sync(machine):
    machine.publish(0)
    machine.fail()
    assert not [line for line in machine.durable(1) if line.startswith("answer")]


def test_a_late_or_repeated_durable_says_nothing_new(machine):
    machine.publish(0, count=3)
    assert machine.durable(3) == ["committed 3", "answer 1: 0"]
    assert machine.durable(3) == []
    assert machine.durable(1) == []
    assert machine.replica.durable == 3


def test_a_restarted_replica_goes_on_at_its_end(machine):
    machine = Machine(end=40, epoch=8)
    assert machine.publish(0) == ["append at 40", "sync"]
    assert machine.durable(41) == ["committed 41", "answer 1: 40"]


def test_what_is_not_an_event_is_a_bug_of_ours(machine):
    with pytest.raises(InternalError):
        machine.replica.step("publish", 0)


def test_statistics_show_where_it_stands(machine):
    machine.publish(0, count=2)
    assert machine.replica.statistics() == ReplicaStatistics(
        position=0, epoch=3, linked=True, active=True, end=2, durable=0, committed=0, waiting=1
    )


# --- random walks -------------------------------------------------------------------------------


class Walk:
    """Producers with windows, a log that syncs late and sometimes refuses, links that repeat."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.replica = alone()
        self.log: list[tuple[int, int, int, int]] = []  # producer, sequence, first offset, count
        self.sequences = [0] * 3
        self.unanswered: dict[int, tuple[int, int, int]] = {}  # ticket: producer, sequence, count
        self.sizes: dict[tuple[int, int], int] = {}
        self.acked: dict[tuple[int, int], int] = {}
        self.answer_order: list[int] = []
        self.ticket = 0
        self.failed = False

    def step(self, event):
        effects = self.replica.step(event, 0)
        self.replica.check_invariants()
        for effect in effects:
            self.perform(effect)
        return effects

    def perform(self, effect):
        if isinstance(effect, Answer):
            producer, sequence, count = self.unanswered.pop(effect.ticket)
            place = (producer, sequence, effect.base_offset, count)
            assert place in self.log, "an answer names where the batch is"
            assert effect.base_offset + count <= self.replica.durable, "answered before it was on disk"
            assert self.acked.setdefault((producer, sequence), effect.base_offset) == effect.base_offset
        elif isinstance(effect, Refuse):
            del self.unanswered[effect.ticket]
        elif isinstance(effect, Committed):
            assert effect.end == self.replica.committed <= self.replica.end

    def publish(self):
        chance = self.chance
        producer = chance.randrange(3)
        oldest = max(0, self.sequences[producer] - 20)
        sequence = chance.choice([self.sequences[producer], chance.randint(oldest, self.sequences[producer] + 1)])
        count = self.sizes.setdefault((producer, sequence), chance.randrange(1, 4))
        self.ticket += 1
        self.unanswered[self.ticket] = (producer, sequence, count)
        event = Publish(self.ticket, ACK_ALL, count, producer + 1, 0, sequence, count)
        (effect,) = self.step(event)
        if not isinstance(effect, Append):
            return
        assert sequence == self.sequences[producer], "only the next one is appended"
        if chance.random() < 0.1:
            del self.unanswered[self.ticket]  # the disk was full; the client is told and comes again
            return
        self.log.append((producer, sequence, effect.base_offset, count))
        self.sequences[producer] += 1
        self.step(appended(event, effect))

    def run(self, steps: int):
        for _ in range(steps):
            match self.chance.randrange(10):
                case 0 | 1:
                    self.step(Durable(self.chance.randint(0, self.replica.end)))
                case 2 if self.chance.random() < 0.01 and not self.failed:
                    self.failed = True
                    self.step(Fail("chance"))
                case _:
                    self.publish()


@pytest.mark.parametrize("seed", range(60))
def test_no_order_of_events_doubles_reorders_or_answers_too_early(seed):
    walk = Walk(seed)
    walk.run(400)
    if not walk.failed:
        walk.step(Durable(walk.replica.end))
        assert walk.unanswered == {}, "everything is answered once the disk has it"
    offsets = 0
    for _, _, base, count in walk.log:
        assert base == offsets, "offsets are given once and without holes"
        offsets += count
    for producer in range(3):
        sequences = [sequence for owner, sequence, _, _ in walk.log if owner == producer]
        assert sequences == list(range(len(sequences))), "each batch is in the log once and in order"
