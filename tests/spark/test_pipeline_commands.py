"""The commands that run on Spark, in this process and with the session of the tests."""

from __future__ import annotations

import json
import os
import signal
import threading
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from unittest.mock import ANY, Mock

import msgspec
import pytest
from pyspark.sql import SparkSession

from stentor.cli.app import run
from stentor.cli.spark_session import told
from stentor.errors import InvalidArgument
from stentor.spark.pipelines import metrics
from stentor.spark.pipelines.lake import open_lake
from stentor.spark.pipelines.metrics import TARGET, TopicWindow
from stentor.testing import broker as another_broker

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def cli(spark, monkeypatch, capsys):
    """Runs a command line."""
    monkeypatch.setenv("COLUMNS", "160")

    def call(*arguments):
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        return Outcome(code, *capsys.readouterr())

    return call


@pytest.fixture
def lake(tmp_path):
    return tmp_path / "lake"


@pytest.fixture
def orders(client, topic):
    for number, key in enumerate(("ada", "bob", "ada")):
        client.publish(topic, str(number), key=key, timestamp=NOON + timedelta(seconds=number))
    return topic


def test_the_session_that_was_running_before_a_command_runs_after_it(spark, cli):
    assert cli("sql", "select 1 as one").code == 0
    assert SparkSession.getActiveSession() is not None
    assert spark.range(3).count() == 3


class TestRecord:
    def test_it_says_what_it_recorded_and_goes_on_where_it_ended(self, cli, client, orders, lake):
        assert cli("record", orders, "--lake", lake) == (0, f"recorded 3 messages into {lake}\n", "")
        client.publish(orders, "3")
        assert cli("record", orders, "--lake", lake).out == f"recorded 1 message into {lake}\n"
        client.publish(orders, "4")
        done = cli("record", orders, "--lake", lake, "--compact")
        assert done.err.startswith("stentor: joined ")
        assert cli("pipeline", "compact", "--lake", lake) == (0, f"0 files fewer in {lake}\n", "")

    def test_it_follows_until_it_is_interrupted(self, cli, client, orders, lake, wait_until):
        place = open_lake(lake)
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def interrupt():
            wait_until(lambda: place.exists() and place.files(), "something is recorded", 60)
            os.kill(os.getpid(), signal.SIGINT)

        watcher = threading.Thread(target=interrupt)
        watcher.start()
        try:
            done = cli("record", orders, "--lake", lake, "--follow", "--interval", "0.1")
        finally:
            watcher.join()
            for number, handler in handlers.items():
                signal.signal(number, handler)
        assert done == (0, f"recorded 3 messages into {lake}\n", "")

    def test_mistakes_are_one_sentence(self, cli, topic, lake):
        missing = cli("record", f"{topic}.nothing", "--lake", lake)
        assert missing.code == 1
        assert missing.err.count("\n") == 1
        assert f"{topic}.nothing" in missing.err
        unknown = cli("record", topic, "--lake", lake, "--format", "iceberg")
        assert unknown == (2, "", "stentor: There is no lake format 'iceberg'. Use parquet or delta.\n")
        with open_lake(lake).writing():
            busy = cli("record", topic, "--lake", lake)
        assert busy == (1, "", f"stentor: Another process writes to the lake {lake}. Wait for it, or stop it.\n")


class TestReplay:
    def test_it_publishes_what_was_recorded_and_can_be_taken_up(self, cli, client, orders, lake, tmp_path):
        cli("record", orders, "--lake", lake)
        arguments = ("replay", "--lake", lake, orders, "--into", "again.*", "--work", tmp_path / "work")
        arguments = (*arguments, "--pace-by", "timestamp")
        done = cli(*arguments, "--speed", "max", "--start", "2026-11-15T12:00:01+00:00")
        assert done == (0, "selected 2 messages of 1.0s\npublished 2 messages\n", "")
        assert [message.value for message in client.read(f"again.{orders}")] == [b"1", b"2"]
        again = cli("replay", "--lake", lake, "--work", tmp_path / "work", "--resume")
        assert again == (0, "published 0 messages\n", "")
        assert cli(*arguments).err.startswith(f"stentor: {tmp_path / 'work'} already holds a replay.")

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["--resume"], "--resume needs --work. Name the directory of the replay to continue."),
            (["--speed", "fast"], "--speed 'fast' is not a pace. Use original, max, or a number such as 10."),
            (["--speed", "0"], "--speed '0' is not a pace. Use original, max, or a number such as 10."),
            (["--pace-by", "offset"], "--pace-by 'offset' is unknown. Use appended or timestamp."),
            (["--start", "earliest"], "--start 'earliest' is not a time. Use 2026-01-31T12:00 or -1h."),
        ],
    )
    def test_mistakes_are_one_sentence(self, cli, lake, arguments, sentence):
        assert cli("replay", "--lake", lake, *arguments) == (2, "", f"stentor: {sentence}\n")


class TestSql:
    def test_rows_are_printed_as_a_table_or_as_json(self, cli, orders):
        query = f"select key, count(*) as n, max(value) as last from `{orders}` group by key order by key"
        assert cli("sql", query) == (0, "key  n  last\nada  2  2\nbob  1  1\n2 rows\n", "")
        printed = [json.loads(line) for line in cli("sql", query, "--json").out.splitlines()]
        assert printed == [{"key": "ada", "n": 2, "last": "2"}, {"key": "bob", "n": 1, "last": "1"}]
        assert cli("sql", query, "--limit", "1").out.endswith("\n1 row, and more\n")

    def test_the_history_comes_from_the_lake(self, cli, client, orders, lake):
        cli("record", orders, "--lake", lake)
        client.delete_topic(orders)
        assert cli("sql", f"select count(*) as n from `{orders}`", "--lake", lake).out == "n\n3\n1 row\n"

    @pytest.mark.parametrize(
        ("query", "words"),
        [
            ("select colour from {}", "`colour` cannot be resolved"),
            ("selekt 1", "Syntax error at or near"),
            ("select raise_error('no!')", "no!"),
            ("select * from {} --lake", "There is no lake at"),
        ],
    )
    def test_mistakes_are_one_sentence(self, cli, orders, lake, query, words):
        query, *more = query.format(f"`{orders}`").split(" --lake")
        done = cli("sql", query, *(["--lake", lake] if more else []))
        assert (done.code, done.out) == (2, "")
        assert words in done.err
        assert done.err.count("\n") == 1
        assert "SQLSTATE" not in done.err

    def test_a_topic_that_does_not_exist_is_one_sentence(self, cli):
        done = cli("sql", "select * from nothing.at.all.here")
        assert done == (
            1,
            "",
            "stentor: There is no topic nothing.at.all.here. List topics with `stentor topic list`.\n",
        )

    def test_our_own_errors_come_out_of_what_spark_makes_of_them(self):
        text = "[X] Job aborted.\nTraceback\nstentor.errors.TopicNotFound: Topic a was deleted. Set x.\n at java.Foo"
        assert str(told(text)) == "Topic a was deleted. Set x."
        assert isinstance(told("stentor.errors.InvalidArgument: Wrong."), InvalidArgument)
        assert str(told("[TABLE.NOT] The table is gone. SQLSTATE: 42P01; line 1 pos 3\nmore")) == "The table is gone."


class TestPipeline:
    def test_a_snapshot_is_written_or_published(self, cli, client, orders, tmp_path):
        arguments = ("pipeline", "snapshot", orders)
        assert cli(*arguments, "--out", tmp_path / "out").out == f"2 keys of {orders} in {tmp_path / 'out'}\n"
        assert (tmp_path / "out" / "_SUCCESS").exists()
        into = f"{orders}.closing"
        assert (
            cli(*arguments, "--into", into, "--until", "2026-11-15T12:00:02Z").out == f"2 keys of {orders} in {into}\n"
        )
        assert {message.key: message.value for message in client.read(into)} == {b"ada": b"0", b"bob": b"1"}
        needed = "stentor: Exactly one of --out and --into is needed. --out DIR writes files, --into publishes.\n"
        assert cli(*arguments) == (2, "", needed)

    def test_a_snapshot_of_a_table_says_its_sequence(self, cli, client, spark, topic, tmp_path):
        client.create_topic(topic, kind="table", partitions=2)
        with client.table(topic) as table:
            for key in ("a", "b", "gone", "a"):
                table.put(key, f"value of {key}")
            table.delete("gone")
            told = ",".join(map(str, table.sequence))
            sequence = list(table.sequence)
        for _ in range(2):
            done = cli("pipeline", "snapshot", topic, "--out", tmp_path / "out")
            assert done.out == f"2 keys of {topic} at sequence {told} in {tmp_path / 'out'}\n"
        assert json.loads((tmp_path / "out" / "_snapshot.json").read_text()) == {"table": topic, "sequence": sequence}
        rows = spark.read.parquet(str(tmp_path / "out")).selectExpr("key", "string(value)").collect()
        assert sorted(map(tuple, rows)) == [("a", "value of a"), ("b", "value of b")]
        client.create_topic(f"{topic}.copy", kind="table")
        assert cli("pipeline", "snapshot", topic, "--into", f"{topic}.copy").code == 0
        with client.table(f"{topic}.copy") as copy:
            assert dict(copy.items()) == {"a": b"value of a", "b": b"value of b"}

    def test_the_newest_windows_are_shown(self, cli, monkeypatch):
        window = TopicWindow(
            start="2026-11-15T12:00:00Z",
            end="2026-11-15T12:01:00Z",
            topic="orders",
            messages=72_000,
            bytes=7_200_000,
            messages_per_second=1200.0,
            bytes_per_message=100.0,
            delivered=0,
            delivered_per_second=0.0,
            subscriptions=2,
            lag=17,
            log_bytes=0,
            latency_us_p50=310.0,
        )
        with another_broker() as other, other.client() as client:
            monkeypatch.setenv("STENTOR_URL", other.url)
            nothing = cli("pipeline", "show")
            assert nothing.code == 1
            assert "There are no windows yet. Compute them with `stentor pipeline metrics`." in nothing.err
            later = msgspec.structs.replace(window, start=window.end, end="2026-11-15T12:02:00Z", lag=3)
            for one in (window, later):
                client.publish(TARGET, msgspec.json.encode(one))
            shown = cli("pipeline", "show")
            assert shown.out.split("\n")[1].split() == [
                *("orders", "2026-11-15T12:02:00Z", "1,200.0", "100", "0.0", "2", "3", "310"),
            ]
            assert json.loads(cli("pipeline", "show", "--json").out)[0]["lag"] == 3

    def test_metrics_are_started_as_they_are_asked_for(self, cli, tmp_path, monkeypatch):
        query = Mock()
        start = Mock(return_value=query)
        monkeypatch.setattr(metrics, "run", start)
        done = cli("pipeline", "metrics", "--checkpoint", tmp_path, "--once", "--window", "5m", "--late", "10")
        assert done == (0, f"windows are in the topic {TARGET}\n", "")
        query.awaitTermination.assert_called_once_with()
        assert start.call_args.args[1:] == (str(tmp_path),)
        assert start.call_args.kwargs == {"url": ANY, "window_s": 300, "late_s": 10, "once": True, "into_table": None}
        into = cli("pipeline", "metrics", "--checkpoint", tmp_path, "--into-table", "ops.load")
        assert into == (0, "windows are in the table ops.load\n", "")
        assert start.call_args.kwargs["into_table"] == "ops.load"

    def test_mistakes_are_one_sentence(self, cli, tmp_path):
        wrong = cli("pipeline", "metrics", "--checkpoint", tmp_path, "--once", "--window", "soon")
        assert (wrong.code, wrong.err.split(".")[0]) == (
            2,
            "stentor: --window 'soon' is not a duration of at least a second",
        )
        nothing = cli("pipeline", "compact", "--lake", tmp_path / "nothing")
        assert nothing == (
            2,
            "",
            f"stentor: There is no lake at {tmp_path / 'nothing'}. Create one with `stentor record`.\n",
        )
