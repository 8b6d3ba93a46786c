from types import SimpleNamespace

from stentor.spark import lag
from stentor.spark.offsets import TopicPlace, to_offset


def query(*sources):
    return SimpleNamespace(lastProgress=SimpleNamespace(sources=list(sources)) if sources else None)


def source(end, latest):
    return SimpleNamespace(endOffset=end, latestOffset=latest)


def test_lag_is_what_is_committed_and_not_processed():
    end, latest = {"t": TopicPlace(7, {0: 5, 1: 10})}, {"t": TopicPlace(7, {0: 25, 1: 10})}
    found = lag(query(source(to_offset(end), to_offset(latest))))
    assert found.partitions == {"t/0": 20, "t/1": 0}
    assert (found.minOffsetsBehindLatest, found.maxOffsetsBehindLatest, found.avgOffsetsBehindLatest) == (0, 20, 10.0)


def test_a_query_that_has_not_begun_or_reads_something_else_has_no_lag():
    assert lag(query()).maxOffsetsBehindLatest == 0
    assert lag(query(source("0", "17"))).partitions == {}
    assert lag(query(source(None, None))).partitions == {}
