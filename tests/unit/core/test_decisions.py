"""The two questions that every message asks: may it be taken, and may it be shown?"""

import pytest
from tests.alone import alone

from stentor.core.acks import ALL, QUORUM
from stentor.core.decisions import Readership, check_seen, check_stream, may_publish, may_read
from stentor.core.records import ChainRecord, HeldRecord, Member
from stentor.core.replica_events import Configure, EpochStored
from stentor.errors import NotHead, NotReady, OffsetOutOfRange

HERE = Readership("t/0", alone=False, head_only=False, stored=None, predecessor_heard=True)


@pytest.fixture
def replica():
    """The head of a chain of one, at work."""
    return alone()


def test_a_head_at_work_takes_a_publish_and_serves_up_to_its_commit_point(replica):
    assert may_publish(replica, ALL) is None
    assert may_publish(replica, QUORUM) is None
    assert may_read(replica, HERE) == replica.committed


def test_a_broker_that_nobody_hears_takes_nothing_and_serves_nobody(replica):
    replica.standing.confirmed = False
    assert "cut off" in may_publish(replica, ALL).message
    with pytest.raises(NotReady, match="cut off"):
        may_read(replica, HERE)


def test_a_broker_without_its_store_takes_nothing_and_serves_what_it_knows_to_be_committed(replica):
    replica.standing.confirmed, replica.standing.storeless = False, True
    assert "coordination store was away" in may_publish(replica, ALL).message
    assert may_read(replica, HERE) == replica.committed
    with pytest.raises(NotReady, match="can be read up to"):
        check_stream(replica, "t/0", 0, start=0, end=None, seen=0)
    check_stream(replica, "t/0", 0, start=0, end=replica.committed, seen=0)
    replica.failed = "the disk said no"
    with pytest.raises(NotReady):
        may_read(replica, HERE)


def test_a_failed_copy_takes_nothing_and_is_read_only_where_there_is_no_other(replica):
    replica.failed = "the disk said no"
    assert "the disk said no" in may_publish(replica, ALL).message
    replica.linked = False
    with pytest.raises(NotReady):
        may_read(replica, HERE)
    alone_here = Readership("t/0", alone=True, head_only=False, stored=None, predecessor_heard=True)
    assert may_read(replica, alone_here) == replica.committed


def test_a_copy_that_doubts_its_record_is_no_head(replica):
    replica.doubted = True
    assert isinstance(may_publish(replica, ALL), NotHead)


def test_offsets_that_do_not_exist_are_refused_and_those_seen_elsewhere_are_waited_for(replica):
    for start in (-1, 5):
        with pytest.raises(OffsetOutOfRange):
            check_stream(replica, "t/0", 0, start=start, end=None, seen=0)
    check_stream(replica, "t/0", 0, start=5, end=None, seen=5)
    with pytest.raises(NotReady, match="has seen 4"):
        check_stream(replica, "t/0", 0, start=5, end=None, seen=4)


def test_no_reader_is_shown_less_than_it_has_seen_unless_it_is_gone_for_good(replica):
    check_seen(replica, "t/0", seen=0, epoch=replica.epoch)
    with pytest.raises(NotReady, match="seen elsewhere"):
        check_seen(replica, "t/0", seen=9, epoch=replica.epoch)
    check_seen(replica, "t/0", seen=9, epoch=replica.epoch - 1)


def test_a_reader_is_sent_where_the_newest_record_says(replica):
    """The store's is newer while this copy waits for its disk to take the epoch."""
    gone = ChainRecord(2, (Member("b", 2, 1),))
    replica.step(Configure(gone, 2), 0)
    replica.step(EpochStored(2), 0)
    with pytest.raises(NotHead, match="on b,"):
        may_read(replica, HERE)
    newer = HeldRecord(ChainRecord(3, (Member("c", 3, 1),)), 3)
    there = Readership("t/0", alone=False, head_only=False, stored=newer, predecessor_heard=True)
    with pytest.raises(NotHead, match="on c,") as refused:
        may_read(replica, there)
    assert refused.value.detail["head"] == "c"
