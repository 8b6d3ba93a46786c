"""Streams: topics without an end, read from where a checkpoint stands."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, StructField, StructType

from stentor.errors import OffsetOutOfRange, TopicNotFound
from stentor.spark import lag, reader
from stentor.spark.offsets import OffsetRange, TopicPlace, from_offset, ranges_between, to_offset
from stentor.spark.options import read_options
from stentor.spark.reader import TopicStreamReader

VALUE = StructType([StructField("value", BinaryType())])


class Query:
    """A query that gathers what it reads, batch by batch; started again, it goes on from its checkpoint."""

    def __init__(self, spark, checkpoint, **options):
        self._spark = spark
        self._checkpoint = str(checkpoint)
        self._options = {"startingOffsets": "earliest", **options}
        self.batches = []

    def start(self, **changes):
        def gather(frame, number):
            self.batches.append([row.value.decode() for row in frame.select("value").collect()])

        loaded = self._spark.readStream.format("stentor").options(**(self._options | changes)).load()
        return loaded.writeStream.foreachBatch(gather).option("checkpointLocation", self._checkpoint)

    def run(self, **changes):
        """Everything there is now; what this run read."""
        self.batches.clear()
        query = self.start(**changes).trigger(availableNow=True).start()
        query.awaitTermination()
        return self.values

    @property
    def values(self):
        return sorted(value for batch in self.batches for value in batch)


@pytest.fixture
def make_query(spark, tmp_path):
    """Makes queries; those that a test leaves running are stopped."""
    yield lambda **options: Query(spark, tmp_path / "checkpoint", **options)
    for left in spark.streams.active:
        left.stop()


@pytest.fixture
def stream(monkeypatch):
    """Makes the part of a stream that runs in the driver; it does not wait for rows."""
    monkeypatch.setattr(reader, "LONG_POLL_S", 0.0)
    return lambda **options: TopicStreamReader(read_options(options, streaming=True), VALUE)


def publish(client, topic, *values, **options):
    for value in values:
        client.publish(topic, value, **options)


def offsets_in(offset):
    return {name: topic["offsets"] for name, topic in offset.items()}


class TestAvailableNow:
    def test_a_restarted_query_goes_on_where_it_stopped(self, make_query, client, topic):
        query = make_query(subscribe=topic)
        publish(client, topic, "a", "b")
        assert query.run() == ["a", "b"]
        publish(client, topic, "c")
        assert query.run() == ["c"]
        assert query.run() == []

    def test_a_batch_has_at_most_so_many_rows_of_all_partitions_together(self, make_query, client, topic):
        client.create_topic(topic, partitions=3)
        for partition, count in enumerate((6, 3, 1)):
            publish(client, topic, *(f"{partition}{number}" for number in range(count)), partition=partition)
        query = make_query(subscribe=topic, maxOffsetsPerTrigger=4)
        assert len(query.run()) == 10
        assert [len(batch) for batch in query.batches] == [4, 4, 2]
        assert len(set(query.values)) == 10

    def test_a_batch_that_failed_is_read_again_and_no_other(self, make_query, client, topic, spark):
        query = make_query(subscribe=topic, maxOffsetsPerTrigger=2)
        publish(client, topic, "a", "b", "c", "d")
        seen = []

        def fail_on_the_second(frame, number):
            seen.append((number, sorted(row.value for row in frame.collect())))
            if len(seen) == 2:
                raise RuntimeError("the task is over here")

        started = query.start().foreachBatch(fail_on_the_second).trigger(availableNow=True).start()
        with pytest.raises(StreamingQueryException, match="the task is over here"):
            started.awaitTermination()
        publish(client, topic, "e")
        query.start().foreachBatch(fail_on_the_second).trigger(availableNow=True).start().awaitTermination()
        assert seen == [(0, [b"a", b"b"]), (1, [b"c", b"d"]), (1, [b"c", b"d"]), (2, [b"e"])]

    def test_a_topic_that_came_later_is_read_from_its_start(self, make_query, client, topic):
        publish(client, f"{topic}.a", "old")
        query = make_query(subscribe=f"{topic}.*", startingOffsets="latest")
        assert query.run() == []
        publish(client, f"{topic}.a", "new")
        publish(client, f"{topic}.b", "first", "second")
        assert query.run() == ["first", "new", "second"]

    def test_it_begins_where_json_says(self, make_query, client, topic):
        client.create_topic(topic, partitions=2)
        publish(client, topic, "00", "01", "02", partition=0)
        publish(client, topic, "10", "11", partition=1)
        start = json.dumps({topic: {"0": 1, "1": -2}})
        assert make_query(subscribe=topic, startingOffsets=start).run() == ["01", "02", "10", "11"]


class TestRunning:
    def test_rows_and_topics_are_found_as_they_come_and_progress_says_how_far_it_is(
        self, make_query, client, topic, wait_until
    ):
        publish(client, f"{topic}.a", "before")
        query = make_query(subscribe=f"{topic}.*", startingOffsets="latest")
        running = query.start().start()
        wait_until(lambda: running.recentProgress, "the first batch", 40)
        publish(client, f"{topic}.a", "after")
        wait_until(lambda: query.values == ["after"], "the row", 40)
        publish(client, f"{topic}.b", "b0", "b1")
        wait_until(lambda: query.values == ["after", "b0", "b1"], "the rows of the new topic", 40)
        ends = {f"{topic}.a": {"0": 2}, f"{topic}.b": {"0": 2}}
        # What was read is told after the batch.
        source = wait_until(
            lambda: next(
                (
                    progress.sources[0]
                    for progress in running.recentProgress
                    if progress.numInputRows and offsets_in(json.loads(progress.sources[0].endOffset)) == ends
                ),
                None,
            ),
            "the progress",
            40,
        )
        assert offsets_in(json.loads(source.latestOffset)) == ends
        assert lag(running).partitions == {f"{topic}.a/0": 0, f"{topic}.b/0": 0}
        running.stop()


class TestDriver:
    """What the driver asks the stream, without Spark."""

    def test_it_begins_at_the_end_unless_told_otherwise(self, stream, client, topic):
        publish(client, topic, "a", "b")
        assert offsets_in(stream(subscribe=topic).initialOffset()) == {topic: {"0": 2}}
        assert offsets_in(stream(subscribe=topic, startingOffsets="earliest").initialOffset()) == {topic: {"0": 0}}

    def test_offsets_are_always_written_in_one_order(self, stream, client, topic):
        client.create_topic(f"{topic}.b", partitions=11)
        client.create_topic(f"{topic}.a")
        text = json.dumps(stream(subscribe=f"{topic}.b,{topic}.a").initialOffset())
        assert text == json.dumps(stream(subscribe=f"{topic}.*").initialOffset())
        assert list(json.loads(text)) == [f"{topic}.a", f"{topic}.b"]

    def test_a_limit_is_shared_in_proportion_and_always_used_up(self, stream, client, topic):
        client.create_topic(topic, partitions=3)
        for partition, count in enumerate((60, 30, 1)):
            publish(client, topic, *(["x"] * count), partition=partition)
        made = stream(subscribe=topic, startingOffsets="earliest")
        start, sizes = made.initialOffset(), []
        while start != (end := made.latestOffset(start, ReadMaxRows(10))):
            sizes.append(sum(part.rows for part in made.partitions(start, end)))
            start = end
        assert sizes == [10] * 9 + [1]
        assert offsets_in(start) == {topic: {"0": 60, "1": 30, "2": 1}}

    def test_progress_tells_the_end_that_a_limit_hides(self, stream, client, topic):
        publish(client, topic, "a", "b", "c")
        made = stream(subscribe=topic, startingOffsets="earliest")
        assert made.reportLatestOffset() is None
        end = made.latestOffset(made.initialOffset(), ReadMaxRows(1))
        assert offsets_in(end) == {topic: {"0": 1}}
        assert offsets_in(made.reportLatestOffset()) == {topic: {"0": 3}}

    def test_the_lag_is_what_a_limit_left(self, stream, client, topic):
        client.create_topic(topic, partitions=2)
        publish(client, topic, "a", "b", "c", partition=0)
        made = stream(subscribe=topic, startingOffsets="earliest")
        end = json.dumps(made.latestOffset(made.initialOffset(), ReadMaxRows(1)))
        source = SimpleNamespace(endOffset=end, latestOffset=json.dumps(made.reportLatestOffset()))
        found = lag(SimpleNamespace(lastProgress=SimpleNamespace(sources=[source])))
        assert found.partitions == {f"{topic}/0": 2, f"{topic}/1": 0}
        assert (found.minOffsetsBehindLatest, found.maxOffsetsBehindLatest) == (0, 2)
        assert found.avgOffsetsBehindLatest == 1
        assert lag(SimpleNamespace(lastProgress=None)).partitions == {}

    def test_the_limit_is_the_option(self, stream, client, topic):
        client.create_topic(topic)
        assert stream(subscribe=topic, maxOffsetsPerTrigger="7").getDefaultReadLimit() == ReadMaxRows(7)
        assert stream(subscribe=topic).getDefaultReadLimit() == ReadAllAvailable()

    def test_it_waits_for_enough_rows_but_not_longer_than_it_may(self, stream, client, topic, monkeypatch):
        client.create_topic(topic)
        made = stream(subscribe=topic, minOffsetsPerTrigger="3", maxTriggerDelay="10m")
        start = made.initialOffset()
        publish(client, topic, "a", "b")
        assert made.latestOffset(start, ReadAllAvailable()) == start
        publish(client, topic, "c")
        end = made.latestOffset(start, ReadAllAvailable())
        assert offsets_in(end) == {topic: {"0": 3}}
        publish(client, topic, "d")
        assert made.latestOffset(end, ReadAllAvailable()) == end
        real = reader.time.monotonic
        monkeypatch.setattr(reader, "time", SimpleNamespace(monotonic=lambda: real() + 601, sleep=reader.time.sleep))
        assert offsets_in(made.latestOffset(end, ReadAllAvailable())) == {topic: {"0": 4}}

    def test_available_now_does_not_wait_for_enough_rows(self, stream, client, topic):
        client.create_topic(topic)
        made = stream(subscribe=topic, minOffsetsPerTrigger="3", startingOffsets="earliest")
        publish(client, topic, "a")
        made.prepareForTriggerAvailableNow()
        publish(client, topic, "b")
        assert offsets_in(made.latestOffset(made.initialOffset(), ReadAllAvailable())) == {topic: {"0": 1}}

    def test_partitions_that_came_later_are_read_from_their_start(self, stream, client, topic, monkeypatch):
        """Topics do not grow yet; what stands in a checkpoint may name fewer partitions all the same."""
        client.create_topic(topic, partitions=3)
        for partition in range(3):
            publish(client, topic, "a", "b", partition=partition)
        made = stream(subscribe=topic)
        start = made.initialOffset()
        del start[topic]["offsets"]["2"]
        end = made.latestOffset(start, ReadAllAvailable())
        assert [(part.partition, part.start, part.end) for part in made.partitions(start, end)] == [(2, 0, 2)]

    def test_an_end_never_goes_back_when_another_broker_knows_less(self, stream, client, topic, monkeypatch):
        client.create_topic(topic, partitions=2)
        publish(client, topic, "a", "b", partition=0)
        made = stream(subscribe=topic, startingOffsets="earliest")
        known = made.latestOffset(made.initialOffset(), ReadAllAvailable())
        publish(client, topic, "c", partition=1)
        answers = made._topics.at("latest")
        answers[topic].offsets[0] = 1
        monkeypatch.setattr(made._topics, "at", lambda *_, **__: answers)
        assert offsets_in(made.latestOffset(known, ReadAllAvailable())) == {topic: {"0": 2, "1": 1}}


class TestOffsets:
    """What Spark keeps, without brokers."""

    def test_it_is_written_in_one_order_and_read_back_as_it_was(self):
        places = {"b": TopicPlace(2**62, {10: 1, 2: 5}), "a": TopicPlace(1, {0: 0})}
        text = json.dumps(to_offset(places))
        assert text == (
            '{"a": {"id": "0000000000000001", "offsets": {"0": 0}},'
            ' "b": {"id": "4000000000000000", "offsets": {"2": 5, "10": 1}}}'
        )
        assert from_offset(json.loads(text)) == places

    def test_there_is_no_way_between_places_of_two_topics_of_one_name(self):
        with pytest.raises(TopicNotFound, match="created again"):
            ranges_between({"a": TopicPlace(1, {0: 0})}, {"a": TopicPlace(2, {0: 5})})


class TestLoss:
    """What was not read is gone."""

    def test_a_deleted_topic_ends_a_query_with_a_sentence(self, make_query, client, topic):
        publish(client, f"{topic}.a", "a")
        publish(client, f"{topic}.b", "b")
        query = make_query(subscribe=f"{topic}.*")
        query.run()
        client.delete_topic(f"{topic}.a")
        with pytest.raises(StreamingQueryException, match=f"Topic {topic}.a, which this query reads, was deleted"):
            query.run()
        publish(client, f"{topic}.b", "c")
        assert query.run(failOnDataLoss="false") == ["c"]

    @pytest.mark.parametrize("names", ["{0}.a", "{0}.a,{0}.b", "{0}.*"])
    def test_failing_on_loss_may_be_turned_off_however_topics_are_named(self, stream, client, topic, names):
        publish(client, f"{topic}.a", "a")
        publish(client, f"{topic}.b", "b")
        options = {"subscribe": names.format(topic), "startingOffsets": "earliest"}
        strict, lenient = stream(**options), stream(failOnDataLoss="false", **options)
        start = strict.latestOffset(strict.initialOffset(), ReadAllAvailable())
        client.delete_topic(f"{topic}.a")
        with pytest.raises(TopicNotFound, match=r"was deleted. Set failOnDataLoss to false to continue without it."):
            strict.latestOffset(start, ReadAllAvailable())
        assert lenient.latestOffset(start, ReadAllAvailable()) == start
        publish(client, f"{topic}.b", "c")
        expected = {f"{topic}.b": {"0": 2}}
        found = offsets_in(lenient.latestOffset(start, ReadAllAvailable()))
        assert found == (expected if ".b" in names or "*" in names else offsets_in(start))

    @pytest.mark.parametrize("strict", ["true", "false"])
    def test_a_recreated_topic_is_an_error_whatever_the_options_say(self, stream, client, topic, strict):
        publish(client, topic, "old", "older")
        made = stream(subscribe=topic, startingOffsets="earliest", failOnDataLoss=strict)
        start = made.initialOffset()
        client.delete_topic(topic)
        publish(client, topic, "new")
        with pytest.raises(TopicNotFound, match=r"created again since this query read it. .* new checkpoint"):
            made.latestOffset(start, ReadAllAvailable())

    @pytest.mark.long
    def test_a_recreated_topic_ends_a_query_with_a_sentence(self, make_query, client, topic):
        query = make_query(subscribe=topic)
        publish(client, topic, "old")
        query.run()
        client.delete_topic(topic)
        publish(client, topic, "new", "newer")
        with pytest.raises(StreamingQueryException, match=r"created again since this query read it. .* new checkpoint"):
            query.run()

    def test_a_topic_that_is_recreated_between_planning_and_reading_is_noticed(self, stream, client, topic):
        publish(client, topic, "old")
        made = stream(subscribe=topic, startingOffsets="earliest")
        start = made.initialOffset()
        [part] = made.partitions(start, made.latestOffset(start, ReadAllAvailable()))
        client.delete_topic(topic)
        publish(client, topic, "new")
        with pytest.raises(TopicNotFound, match="created again"):
            list(made.read(part))

    @pytest.fixture
    def expired(self, client, topic, wait_until):
        """A topic whose first messages retention has deleted; the offset where it begins now."""
        client.create_topic(topic, retention_bytes=100_000)
        for number in range(30):
            client.publish(topic, b"%02d" % number + bytes(10_000))
        return wait_until(lambda: client.describe_topic(topic).partitions[0].start, "retention")

    @pytest.mark.long
    def test_what_retention_deleted_before_it_was_read_is_an_error(self, make_query, client, topic, wait_until):
        query = make_query(subscribe=topic)
        client.create_topic(topic, retention_bytes=100_000)
        publish(client, topic, "read")
        assert query.run() == ["read"]
        publish(client, topic, *(f"{number:02}" + "x" * 10_000 for number in range(30)))
        wait_until(lambda: client.describe_topic(topic).partitions[0].start > 1, "retention")
        with pytest.raises(StreamingQueryException, match=f"{topic}/0: offset 1 was deleted before it was read"):
            query.run()
        left = query.run(failOnDataLoss="false")
        assert left[-1].startswith("29")
        assert [value[:2] for value in left] == [f"{number:02}" for number in range(30 - len(left), 30)]

    def test_a_task_whose_rows_retention_deletes_tells_or_goes_on_behind_them(self, stream, client, topic, expired):
        part = OffsetRange(topic, client.describe_topic(topic).id, 0, 0, 30)
        options = {"subscribe": topic}
        with pytest.raises(OffsetOutOfRange, match=r"offset 0 was deleted .* failOnDataLoss to false"):
            list(stream(**options).read(part))
        batches = list(stream(failOnDataLoss="false", **options).read(part))
        values = [value.as_py()[:2] for batch in batches for value in batch.column(0)]
        assert values == [b"%02d" % number for number in range(expired, 30)]

    def test_a_task_all_of_whose_rows_are_gone_yields_nothing(self, stream, client, topic, expired):
        part = OffsetRange(topic, client.describe_topic(topic).id, 0, 0, expired)
        assert list(stream(subscribe=topic, failOnDataLoss="false").read(part)) == []

    def test_a_task_whose_topic_was_deleted_yields_nothing_if_loss_is_allowed(self, stream, client, topic):
        publish(client, topic, "a")
        part = OffsetRange(topic, client.describe_topic(topic).id, 0, 0, 1)
        client.delete_topic(topic)
        with pytest.raises(TopicNotFound):
            list(stream(subscribe=topic).read(part))
        assert list(stream(subscribe=topic, failOnDataLoss="false").read(part)) == []
