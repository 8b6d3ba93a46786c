"""Kill the driver of a stateful stream, and brokers, again and again: every row comes out exactly once.

    python -m tests.spark.exactly_once --kills 10

A publisher counts up under twenty keys. A streaming query numbers the messages of each key with a count that Spark
keeps as state, and writes them to another topic: value 17 of a key must come out once, with count 18. A row that was
read twice, a state that was taken back without its rows, or rows that were written twice would all show.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import msgspec
from tests.spark.standalone import QUICK_JAVA

from stentor.spark.ledger import Manifest, commits_topic
from stentor.testing import LocalCluster

SOURCE, TARGET, APPLICATION = "numbers", "counted", "exactly-once"
COMMITS = commits_topic(APPLICATION)
KEYS = 20
PARTITIONS = 3
_START_S = 300.0
_MOMENTS = ("decided", "any", "decided", "any", "starting")
"""When drivers are killed."""
_END_S = 300.0


class FailedError(Exception):
    """What should hold does not."""


# --- the driver ---------------------------------------------------------------------------------


def drive(url, folder, cores):
    """The query; ends when it is told to, after everything that was published by then."""
    from stentor.spark import session

    spark = session(
        f"local[{cores}]",
        ui=False,
        config={"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": 2},
    )
    source = spark.readStream.format("stentor").option("url", url).option("startingOffsets", "earliest").load(SOURCE)
    numbers = source.selectExpr("string(key) as key", "int(string(value)) as number")
    counted = numbers.groupBy("key").applyInPandasWithState(
        _count, "key string, value string", "seen long", "append", "NoTimeout"
    )
    sink = counted.writeStream.format("stentor").option("url", url).option("topic", TARGET)
    sink = sink.option("applicationId", APPLICATION).option("checkpointLocation", str(folder / "checkpoint"))
    query = sink.start()
    while not (folder / "end").exists():
        query.awaitTermination(0.2)
    query.processAllAvailable()
    query.stop()
    spark.stop()


def _count(key, frames, state):
    import pandas as pd

    seen = state.get[0] if state.exists else 0
    numbers = sorted(number for frame in frames for number in frame["number"])
    state.update((seen + len(numbers),))
    values = [f"{number}:{seen + place}" for place, number in enumerate(numbers, 1)]
    yield pd.DataFrame({"key": [key[0]] * len(values), "value": values})


class Driver:
    """The query in a process of its own, which can be killed with all it started."""

    def __init__(self, url, folder, cores):
        self._log = folder / "driver.log"
        command = [sys.executable, "-m", "tests.spark.exactly_once", "--drive", url, str(folder), str(cores)]
        environment = os.environ | {"JDK_JAVA_OPTIONS": QUICK_JAVA}
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                command,
                cwd=Path(__file__).parents[2],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment,
            )

    def check(self):
        if self._process.poll() is not None:
            raise FailedError(f"the driver ended by itself: {self.last_words()}")

    def last_words(self):
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-60:])

    def kill(self):
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def wait(self):
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise FailedError(f"the driver did not end: {self.last_words()}") from None
        if code:
            raise FailedError(f"the driver ended with {code}: {self.last_words()}")

    def end(self):
        if self._process.poll() is None:
            self.kill()


# --- the publisher ------------------------------------------------------------------------------


class Publisher:
    """Counts up under every key, until it is told to stop."""

    def __init__(self, url, per_second):
        from stentor import connect

        self._client = connect(url, name="publisher", timeout=60)
        self._pause_s = KEYS / per_second
        self._stopping = threading.Event()
        self._error = None
        self.rounds = 0
        self._thread = threading.Thread(target=self._run, name="publisher")
        self._thread.start()

    def _run(self):
        try:
            with self._client, self._client.producer(SOURCE) as producer:
                while not self._stopping.wait(self._pause_s):
                    for key in range(KEYS):
                        producer.send(str(self.rounds).encode(), b"key-%d" % key)
                    self.rounds += 1
        except Exception as error:  # noqa: BLE001 - told to whoever waits
            self._error = error

    def stop(self):
        self._stopping.set()
        self._thread.join()
        if self._error is not None:
            raise self._error


# --- what happened ------------------------------------------------------------------------------


def last_number(folder):
    """The newest batch that Spark wrote down in a folder of its checkpoint."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)


def manifests(client):
    """The epochs that were decided."""
    found = client.read(COMMITS)
    return [msgspec.msgpack.decode(message.value, type=Manifest).epoch for message in found]


def where_it_was(client, folder):
    """Where in its work a driver was killed."""
    begun, done = last_number(folder / "checkpoint" / "offsets"), last_number(folder / "checkpoint" / "commits")
    if begun == done:
        return "between epochs"
    return "publishing" if begun in manifests(client)[-5:] else "before the decision"


def check(client, rounds):
    """Every number of every key once, with its count."""
    expected = Counter({(f"key-{key}", f"{number}:{number + 1}"): 1 for key in range(KEYS) for number in range(rounds)})
    found = Counter((message.key.decode(), message.value.decode()) for message in client.read(TARGET))
    if found != expected:
        missing, extra = expected - found, found - expected
        raise FailedError(
            f"{missing.total()} rows are missing, such as {sorted(missing)[:5]};"
            f" {extra.total()} are too many, such as {sorted(extra)[:5]}"
        )
    return found.total()


def wait_for_more(driver, count):
    """Wait until a number has grown; FailedError if the driver ends, or nothing happens for long."""
    before = count()
    if not wait_while(driver, _START_S, lambda: count() > before):
        raise FailedError(f"the driver wrote nothing in {_START_S:g} s: {driver.last_words()}")


def wait_while(driver, seconds, holds=lambda: False):
    """Wait until something holds, for a while at most; whether it did. FailedError if the driver ends."""
    pause, deadline = threading.Event(), time.monotonic() + seconds
    while time.monotonic() < deadline:
        driver.check()
        if holds():
            return True
        pause.wait(0.01)
    return False


# --- the experiment -----------------------------------------------------------------------------


class Experiment:
    """A cluster, a publisher, and a query whose driver does not live long."""

    def __init__(self, cluster, client, folder, seed, cores, say):
        self._cluster = cluster
        self._client = client
        self._folder = folder
        self._random = random.Random(seed)
        self._cores = cores
        self._say = say
        self._dead = None  # the broker that is
        self._moments = Counter()

    def run(self, kills, per_second):
        began = time.monotonic()
        for topic in (SOURCE, TARGET):
            self._client.create_topic(topic, partitions=PARTITIONS)
        self._client.create_topic(COMMITS)
        publisher = Publisher(self._cluster.url, per_second)
        driver = None
        try:
            for number in range(kills):
                driver = Driver(self._cluster.url, self._folder, self._cores)
                self._let_live(driver, number)
                driver.kill()
                moment = where_it_was(self._client, self._folder)
                self._moments[moment] += 1
                self._say(f"kill {number + 1}: {moment}; {self._written()} rows are written")
                self._break_brokers(number)
            driver = Driver(self._cluster.url, self._folder, self._cores)
            wait_for_more(driver, self._written)
        finally:
            publisher.stop()
            if driver is not None and sys.exc_info()[0] is not None:
                driver.end()
        (self._folder / "end").touch()
        driver.wait()
        rows = check(self._client, publisher.rounds)
        epochs = manifests(self._client)
        return {
            "rows": rows,
            "driver_kills": kills,
            "killed": dict(self._moments),
            "broker_kills": kills,
            "epochs": len(epochs),
            "seconds": round(time.monotonic() - began, 1),
        }

    def _written(self):
        return sum(self._client.offsets(TARGET).values())

    def _decided(self):
        return sum(self._client.offsets(COMMITS).values())

    def _let_live(self, driver, number):
        """Until an epoch is decided, until some moment after rows were written, or while it starts."""
        kind = _MOMENTS[number % len(_MOMENTS)]
        if kind == "starting":
            wait_while(driver, self._random.uniform(1, 6))
        elif kind == "decided":
            wait_for_more(driver, self._decided)
            wait_while(driver, self._random.choice([0, 0, 0.01, 0.03]))
        else:
            wait_for_more(driver, self._written)
            wait_while(driver, self._random.uniform(0, 2))

    def _break_brokers(self, number):
        """One dies; the one that died before is back. The last one comes back, too."""
        if self._dead is not None:
            self._cluster.restart(self._dead)
            for topic in (SOURCE, TARGET):
                for partition in range(PARTITIONS):
                    self._cluster.wait_for_chain(topic, 3, partition, timeout=60)
        self._dead = self._random.choice(sorted(self._cluster.brokers))
        self._cluster.kill(self._dead)
        self._say(f"broker {self._dead} is dead")


@contextmanager
def _folder(given):
    if given is not None:
        yield Path(given)
        return
    with tempfile.TemporaryDirectory(prefix="stentor-exactly-once-") as made:
        yield Path(made)


def run(kills, *, seed, folder=None, per_second=500, cores=2, say=print):
    """The whole experiment; its figures. FailedError if a row is missing, doubled or counted wrongly."""
    with _folder(folder) as place, LocalCluster(3) as cluster, cluster.client(timeout=60) as client:
        return Experiment(cluster, client, place, seed, cores, say).run(kills, per_second)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10, help="how often the driver is killed, and a broker each time")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="of the moments that are chosen")
    parser.add_argument("--per-second", type=int, default=500, help="messages published")
    parser.add_argument("--drive", nargs=3, metavar=("URL", "FOLDER", "CORES"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.drive:
        url, folder, cores = given.drive
        drive(url, Path(folder), int(cores))
        return 0
    print(f"seed {given.seed}")
    try:
        print(json.dumps(run(given.kills, seed=given.seed, per_second=given.per_second), indent=2))
    except FailedError as error:
        print(f"FAILED: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
