"""Whatever stands in the log of a queue, its state goes on, and is the same everywhere (C33)."""

import random

import msgspec
import pytest
from tests.queue_log import WALL, QueueLog, S, new_state

from stentor.core import queue_records as r
from stentor.core.queue import BEGUN, ENDED, HELD
from stentor.errors import CorruptData, StorageError
from stentor.wire import batch, queue_rows, sparse
from stentor.wire.header import HEADER_BYTES, TIMED, unpack

A, B = b"a" * 16, b"b" * 16
HUGE = 2**63 + 7


def control(log, body):
    log.append(sparse.control(r.QUEUE, body, topic_id=1, partition=0))


def write(log, *steps):
    control(log, msgspec.msgpack.encode(steps))


def again(log):
    """A replay gives the same state, and so does its snapshot."""
    state = log.rederived()
    assert state.snapshot() == log.state.snapshot()
    assert state.skipped == log.state.skipped
    restored = new_state(ordered=log.ordered)
    restored.restore(state.snapshot())
    return state


def begun(ordered=False):
    log = QueueLog(ordered=ordered)
    log.put(*[b"job"] * 20, keys=[b"%d" % (each % 3) for each in range(20)])
    log.put(b"late", delay_us=S, unique=b"name", unique_us=S)
    write(log, r.Took(A, 1, [0, 8], [20]), r.Took(B, 1, [8, 4], []))
    return log


@pytest.mark.parametrize(
    "body", [b"", b"nonsense", b"\x93", b"\xc1" * 9, msgspec.msgpack.encode({"a": 1}), b"\x91" * 5_000]
)
def test_steps_that_cannot_be_read_are_skipped_and_counted(body):
    log = begun()
    control(log, body)
    assert log.state.skipped == 1
    write(log, r.Settled(A, 1, [0, 8], [], []))
    assert log.state.finished == 8
    again(log)


def test_of_steps_of_which_one_cannot_be_read_the_others_count():
    log = begun()
    steps = [r.Settled(A, 1, [0, 2], [], []), [99, "of a version to come"], [1, A], r.Settled(B, 1, [8, 4], [], [])]
    control(log, msgspec.msgpack.encode(steps))
    assert log.state.skipped == 2
    assert log.state.finished == 6
    again(log)


@pytest.mark.parametrize(
    "step",
    [
        r.Took(B, 2, [12, 4, 100, 2], [20, 77]),
        r.Took(B, 2, [12], []),
        r.Took(B, 2, [12, HUGE], []),
        r.Took(B, 2, [HUGE, 3], [HUGE]),
        r.Settled(A, 1, [0, 900], [r.JobBack(500)], []),
        r.Settled(A, 1, [0, HUGE, 1], [r.JobBack(HUGE, HUGE)], [], [HUGE]),
        r.Returned([r.JobBack(3, HUGE), r.JobBack(2_000)]),
        r.HolderLeft(A, [r.JobBack(0), r.JobBack(HUGE)]),
        r.HolderLeft(A, []),
        r.Bury(A, 1, [0, 20, 444]),
        r.Buried(17),
        r.Buried(17, [0, HUGE]),
        r.Purged(HUGE),
        r.Purged(-5),
    ],
    ids=repr,
)
@pytest.mark.parametrize("ordered", [False, True])
def test_a_step_that_speaks_of_jobs_that_are_not_there_leaves_a_state_that_goes_on(step, ordered):
    log = begun(ordered)
    write(log, step)
    for following in (r.HolderLeft(A, [r.JobBack(each) for each in range(8)]), r.Bury(B, 9, [20]), r.Buried(9)):
        write(log, following)
    assert not [offset for offset in range(8) if log.state.mark(offset) in (HELD, BEGUN)]
    log.put(b"job")
    again(log)


def test_a_holder_that_goes_without_its_jobs_leaves_them_to_others():
    log = begun()
    write(log, r.HolderLeft(A, [r.JobBack(0)]))
    assert list(log.state.held_by(log.state.holders[B])) == [8, 9, 10, 11]
    assert [log.state.mark(offset) in (HELD, BEGUN) for offset in range(8)] == [False] * 8
    write(log, r.Took(B, 2, [], list(range(8))))
    log.state.check_invariants()


def test_steps_of_any_numbers_raise_nothing_and_mean_the_same_everywhere():
    for seed in range(150):
        rng = random.Random(seed)
        log = begun(ordered=seed % 2 == 0)

        def number(rng=rng):
            return rng.choice([rng.randrange(30), rng.randrange(30), rng.randrange(-3, 3), 2 ** rng.randrange(64)])

        def numbers(number=number, rng=rng):
            return [number() for _ in range(rng.randrange(7))]

        def backs(number=number, rng=rng):
            return [
                r.JobBack(number(), number(), rng.random() < 0.5, rng.random() < 0.3, "why", lost=rng.random() < 0.5)
                for _ in range(rng.randrange(4))
            ]

        for _ in range(12):
            holder = rng.choice([A, B, b"", b"c"])
            step = rng.choice(
                [
                    r.Took(holder, number(), numbers(), numbers()),
                    r.Settled(holder, number(), numbers(), backs(), numbers(), numbers()),
                    r.Returned(backs()),
                    r.HolderLeft(holder, backs()),
                    r.Bury(holder, number(), numbers(), series=number()),
                    r.Buried(number(), numbers()),
                    r.Purged(number()),
                ]
            )
            data = bytearray(msgspec.msgpack.encode([step]))
            if rng.random() < 0.3:
                data[rng.randrange(len(data))] = rng.randrange(256)
            control(log, bytes(data))
        log.put(b"job", priority=3)
        log.commit()
        again(log)
        log.lead()
        log.checks = False
        log.hear(b"d")
        log.take(b"d", 1)
        log.passes(1)


def put_rows(log, count, headers):
    """Jobs as an older head took them, whatever their headers say."""
    encoded = batch.encode([WALL] * count, [b"k"] * count, [b"v"] * count, headers)
    encoded = msgspec.structs.replace(encoded, attributes=encoded.attributes | TIMED)
    return log.append(queue_rows.whole(encoded, topic_id=1, partition=0))


def test_terms_that_cannot_be_read_are_those_of_one_job_alone():
    log = QueueLog(ordered=True)
    good = queue_rows.headers_of(priority=4)
    bad = [(queue_rows.DELAY, b"short"), (queue_rows.PRIORITY, b"\xff")]
    put_rows(log, 4, [good, [bad[0]], [bad[1]], good])
    assert log.state.skipped == 2
    assert sorted(log.state.jobs) == [0, 3]
    assert log.state.mark(1) == log.state.mark(2) == 0
    again(log)


def test_a_batch_that_cannot_be_read_is_jobs_without_terms_and_keys():
    log = QueueLog(ordered=True)
    put_rows(log, 2, [queue_rows.headers_of(priority=4)] * 2)
    (data,) = log.batches
    header, body = unpack(data), memoryview(b"\xff" * (len(data) - HEADER_BYTES))
    state = new_state(ordered=True)
    state.apply(header, body)
    assert (state.end, state.skipped) == (2, 2)
    assert [state.mark(offset) != ENDED for offset in range(2)] == [True, True]
    assert state.key_hash(0) == 0


@pytest.mark.parametrize("error", [MemoryError(), OSError("the disk"), StorageError("the disk")])
def test_what_is_no_fault_of_the_bytes_is_not_skipped(error, monkeypatch):
    log = QueueLog(ordered=True)

    def fails(*_):
        raise error

    monkeypatch.setattr(batch, "body_columns", fails)
    with pytest.raises(type(error)):
        log.put(b"job", priority=1)


def test_a_lack_of_memory_is_none_of_the_bytes_either(monkeypatch):
    log = QueueLog()

    def fails(*_):
        raise CorruptData("as Arrow says it") from MemoryError()

    monkeypatch.setattr(batch, "body_columns", fails)
    with pytest.raises(MemoryError):
        log.put(b"job", priority=1)


def test_a_purge_ends_jobs_with_terms_whose_marks_are_wrong():
    log = begun()
    log.put(b"late", delay_us=S)
    late = log.end - 1
    write(log, r.Took(B, 2, [late, 1], []))  # as if it had none; no head writes this
    write(log, r.Purged(log.end))
    assert late not in log.state.jobs
    assert 20 in log.state.jobs, "somebody holds it"
    again(log)
