from types import SimpleNamespace

from pyspark.sql.streaming import StreamingQueryListener

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


def test_a_listener_gives_its_event_or_the_progress_in_it():
    end, latest = {"t": TopicPlace(7, {0: 5})}, {"t": TopicPlace(7, {0: 25})}
    progress = SimpleNamespace(sources=[source(to_offset(end), to_offset(latest))])
    assert lag(progress).maxOffsetsBehindLatest == 20
    assert lag(SimpleNamespace(progress=progress)).maxOffsetsBehindLatest == 20


def test_a_listener_of_a_running_query_sees_its_lag(spark, client, topic, tmp_path, wait_until):
    seen = []

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event):  # noqa: N802 - Spark's names
            pass

        def onQueryProgress(self, event):  # noqa: N802
            seen.append(lag(event))

        def onQueryTerminated(self, event):  # noqa: N802
            pass

    for number in range(10):
        client.publish(topic, str(number))
    listener = Listener()
    spark.streams.addListener(listener)
    reader = spark.readStream.format("stentor").options(subscribe=topic, startingOffsets="earliest")
    query = reader.option("maxOffsetsPerTrigger", 4).load().writeStream.format("noop")
    query = query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
        wait_until(lambda: [found.maxOffsetsBehindLatest for found in seen][:3] == [6, 2, 0], seconds=60)
    finally:
        spark.streams.removeListener(listener)
    assert seen[0].partitions == {f"{topic}/0": 6}
