"""A job that runs on one machine runs on a cluster of Spark: nothing but the master's address changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from tests.spark.standalone import QUICK_JAVA, StandaloneSpark

from stentor.testing import LocalCluster, broker

JOB = """
import sys
from stentor.spark import session

master, checkpoint = sys.argv[1:]
settings = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "512m",
}
spark = session(master, app="job", ui=False, config=settings)
words = spark.readStream.format("stentor").option("startingOffsets", "earliest").load("words")
counted = words.groupBy("value").count().selectExpr("value as key", "string(count) as value")
writer = counted.writeStream.format("stentor").outputMode("complete").option("topic", "counts")
writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
print("partitions", spark.conf.get("spark.sql.shuffle.partitions"))
print("rows", spark.read.format("stentor").load("counts").count())
spark.stop()
"""


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_job_runs_on_a_spark_cluster_against_a_cluster_of_brokers(tmp_path):
    with LocalCluster(3) as brokers, brokers.client() as client, StandaloneSpark(tmp_path) as spark:
        client.create_topic("words", partitions=4)
        with client.producer("words") as producer:
            for word in ("to", "be", "or", "not", "to", "be") * 50:
                producer.send(word, word)
        done = subprocess.run(
            [sys.executable, "-c", JOB, spark.url, str(tmp_path / "checkpoint")],
            env=os.environ | {"STENTOR_URL": brokers.url, "JDK_JAVA_OPTIONS": QUICK_JAVA},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "rows 4" in done.stdout
        assert "partitions 2\n" in done.stdout, "as many as there are cores"
        found = {message.key: int(message.value) for message in client.read("counts")}
        assert found == {b"to": 100, b"be": 100, b"or": 50, b"not": 50}
        executors = [list(spark.work_folder(number).glob("app-*/*")) for number in range(2)]
        assert [len(each) for each in executors] == [1, 1], "both workers took part"


RECORD = """
import sys
from stentor.spark import session
from stentor.spark.pipelines.record import record

master, lake = sys.argv[1:]
settings = {"spark.executor.memory": "512m", "spark.driver.memory": "512m"}
spark = session(master, app="record", ui=False, config=settings)
record(spark, ["words"], lake)
"""


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="hiding a folder needs root and unshare"
)
def test_executors_that_do_not_share_the_lake_record_nothing_and_say_so(tmp_path):
    hidden = tmp_path / "not-shared"
    hidden.mkdir()
    with broker() as local, local.client() as client, StandaloneSpark(tmp_path, 1, hidden) as spark:
        client.create_topic("words", keep_unrecorded=True)
        for _ in range(5):
            client.publish("words", b"x")
        done = subprocess.run(
            [sys.executable, "-c", RECORD, spark.url, (hidden / "lake").as_uri()],
            env=os.environ | {"STENTOR_URL": local.url, "JDK_JAVA_OPTIONS": QUICK_JAVA},
            capture_output=True,
            text=True,
            check=False,
        )
        assert "The lake should get 5 rows, and Spark has put 0 of them into" in done.stderr, done.stderr
        assert [each.recorded for each in client.describe_topic("words").partitions] == [0]
