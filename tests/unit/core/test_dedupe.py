import random

import msgspec
import pytest

from stentor import limits
from stentor.core.dedupe import ANONYMOUS, Dedupe, Resend
from stentor.errors import CorruptData, SequenceError

WINDOW = limits.PRODUCER_IN_FLIGHT_BATCHES_MAX


class Log:
    """A dedupe machine fed by a log that grows: the state is a function of what was appended."""

    def __init__(self) -> None:
        self.dedupe = Dedupe()
        self.headers: list[tuple[int, ...]] = []
        self.end = 0

    def append(self, producer=7, generation=0, sequence=0, checksum=None, count=1) -> Resend:
        checksum = sequence + 1000 if checksum is None else checksum
        header = (producer, generation, sequence, checksum, self.end, self.end + count, 10 * self.end)
        self.dedupe.record(*header)
        self.dedupe.check_invariants()
        self.headers.append(header)
        self.end += count
        return Resend(header[4], header[5], header[6])

    def check(self, producer=7, generation=0, sequence=0, checksum=None):
        return self.dedupe.check(producer, generation, sequence, sequence + 1000 if checksum is None else checksum)

    def refusal(self, **batch) -> SequenceError:
        before = self.dedupe.snapshot()
        with pytest.raises(SequenceError) as caught:
            self.check(**batch)
        assert self.dedupe.snapshot() == before, "a refusal changes nothing"
        return caught.value


@pytest.fixture
def log() -> Log:
    return Log()


def test_a_new_producer_starts_with_sequence_0(log):
    assert log.check(sequence=0) is None
    refusal = log.refusal(sequence=1)
    assert refusal.detail["reason"] == "unknown_producer"
    assert "new producer" in refusal.hint


def test_the_next_sequence_is_fresh(log):
    for sequence in range(100):
        assert log.check(sequence=sequence) is None
        log.append(sequence=sequence)


def test_a_resend_is_answered_with_the_original_place(log):
    written = [log.append(sequence=s, count=s + 1) for s in range(5)]
    for sequence, place in enumerate(written):
        assert log.check(sequence=sequence) == place


def test_a_gap_is_refused_and_says_what_was_expected(log):
    log.append(sequence=0)
    refusal = log.refusal(sequence=2)
    assert refusal.detail == {"reason": "gap", "expected": 1}


def test_the_same_sequence_with_another_content_is_refused(log):
    log.append(sequence=0)
    log.append(sequence=1)
    assert log.refusal(sequence=0, checksum=1).detail["reason"] == "changed"
    assert log.refusal(sequence=1, checksum=1).detail["reason"] == "changed"


def test_the_whole_window_is_remembered_and_nothing_before_it(log):
    written = [log.append(sequence=s) for s in range(WINDOW + 5)]
    oldest = 5
    for sequence in range(oldest, WINDOW + 5):
        assert log.check(sequence=sequence) == written[sequence]
    assert log.refusal(sequence=oldest - 1).detail["reason"] == "forgotten"
    assert log.refusal(sequence=WINDOW + 6).detail["reason"] == "gap"


def test_a_new_generation_starts_over_and_the_old_one_is_too_late(log):
    for sequence in range(3):
        log.append(sequence=sequence)
    assert log.refusal(generation=1, sequence=3).detail["reason"] == "unknown_producer"
    assert log.check(generation=1, sequence=0) is None
    assert log.check(generation=0, sequence=3) is None, "until the new generation is in the log the old one counts"
    log.append(generation=1, sequence=0, checksum=5)
    assert log.refusal(generation=0, sequence=2).detail["reason"] == "old_generation"
    assert log.refusal(generation=0, sequence=3).detail["reason"] == "old_generation"
    assert log.check(generation=1, sequence=0, checksum=5) is not None
    assert log.refusal(generation=1, sequence=0, checksum=1002).detail["reason"] == "changed"


def test_producers_do_not_know_of_each_other(log):
    log.append(producer=1, sequence=0)
    assert log.check(producer=2, sequence=0) is None
    assert log.refusal(producer=2, sequence=1).detail["reason"] == "unknown_producer"


def test_who_wants_no_dedupe_gets_none(log):
    for _ in range(3):
        assert log.check(producer=ANONYMOUS, sequence=9) is None
        log.append(producer=ANONYMOUS, sequence=9)
    assert log.dedupe.producer_count == 0


def test_the_producer_silent_for_longest_is_forgotten_first(log, monkeypatch):
    monkeypatch.setattr(limits, "PRODUCERS_PER_PARTITION_MAX", 3)
    for producer in (1, 2, 3):
        log.append(producer=producer, sequence=0)
    log.append(producer=1, sequence=1)
    log.append(producer=4, sequence=0)
    assert log.refusal(producer=2, sequence=1).detail["reason"] == "unknown_producer"
    assert log.check(producer=1, sequence=1) is not None
    assert log.check(producer=3, sequence=0) is not None
    assert log.dedupe.producer_count == 3


def random_history(chance: random.Random, log: Log, sequences: dict[int, tuple[int, int]], steps: int) -> None:
    """A log of several producers, with generations, forgetting and windows that slide."""
    for _ in range(steps):
        producer = chance.randrange(1, 9)
        generation, sequence = sequences.get(producer, (0, 0))
        checksum = chance.randrange(2**32)
        forgotten = outcome(log.dedupe, producer, generation, sequence) is not None
        if forgotten or chance.random() < 0.05:
            generation, sequence = generation + chance.randrange(1, 3), 0
        assert log.check(producer, generation, sequence, checksum) is None
        log.append(producer, generation, sequence, checksum, chance.randrange(1, 5))
        sequences[producer] = (generation, sequence + 1)


@pytest.mark.parametrize("seed", range(40))
def test_a_snapshot_and_the_headers_after_it_restore_the_state(seed, monkeypatch):
    monkeypatch.setattr(limits, "PRODUCERS_PER_PARTITION_MAX", 5)
    chance = random.Random(seed)
    log = Log()
    sequences: dict[int, tuple[int, int]] = {}
    snapshots = [(0, None)]
    for _ in range(6):
        random_history(chance, log, sequences, chance.randrange(60))
        snapshots.append((len(log.headers), log.dedupe.snapshot()))
    final = log.dedupe.snapshot()
    for position, snapshot in snapshots:
        other = Dedupe()
        other.record(99, 0, 0, 0, 0, 1, 0)  # whatever was there before is gone after a restore
        other.restore(snapshot)
        for header in log.headers[position:]:
            other.record(*header)
            other.check_invariants()
        assert other.snapshot() == final
        for producer in range(1, 9):
            for generation in range(4):
                for sequence in (0, 1, 5, 20):
                    assert outcome(other, producer, generation, sequence) == outcome(
                        log.dedupe, producer, generation, sequence
                    )


def outcome(dedupe: Dedupe, *batch: int):
    try:
        return dedupe.check(*batch, 0)
    except SequenceError as error:
        return error.detail


@pytest.mark.parametrize(
    "broken", [b"", b"\xc1", msgspec.msgpack.encode([1]), msgspec.msgpack.encode({"a": 1}), b"\x92\x01"]
)
def test_a_snapshot_that_cannot_be_read_is_corrupt_data(broken):
    with pytest.raises(CorruptData, match="snapshot"):
        Dedupe().restore(broken)
