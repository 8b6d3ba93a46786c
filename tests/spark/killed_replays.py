"""Kill `stentor replay --resume` at random places and pause it at others: every row is published once, in its order.

    python -m tests.spark.killed_replays --kills 20

The work directory is what `stentor replay --work` leaves when Spark is done. The command is killed with SIGKILL: while
it starts, after so many rows, and a moment later. Some runs are stopped with SIGSTOP for longer than a generation lasts
and go on; while some are stopped, another run tries to take up their place, and is refused
unless the one that was stopped had not begun.
"""

from __future__ import annotations

import argparse
import json
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
import pyarrow as pa
import pyarrow.parquet as pq

from stentor.spark.pipelines.replay import SPAN, ReplayPlace, ReplayPlan
from stentor.testing import LocalBroker

SOURCE, TARGET = "feed", "again"
PARTITIONS = 3
FIRST_US = 1_763_208_000_000_000
PACED_S = 24.0
"""How long the paced replay takes without a pause or a kill."""
PAUSE_S = SPAN.seconds * 1.25
_END_S = 300.0


class FailedError(Exception):
    """What should hold does not."""


def value_of(partition, number):
    return b"%d/%08d" % (partition, number)


def prepare(place, *, rows, speed):
    """A replay as `select` writes it down, with rows at even distances."""
    count, step_us = rows // PARTITIONS, max(1, int(PACED_S * 1e6 * max(speed, 1) * PARTITIONS / rows))
    for partition in range(PARTITIONS):
        folder = place / "rows" / f"topic={SOURCE}" / "topic_id=7" / f"partition={partition}"
        folder.mkdir(parents=True)
        times = pa.array(range(FIRST_US, FIRST_US + count * step_us, step_us), pa.timestamp("us", "UTC"))
        values = pa.array([value_of(partition, number) for number in range(count)], pa.binary())
        headers = pa.nulls(count, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
        table = pa.table({"timestamp": times, "key": values, "value": values, "headers": headers, "appended_at": times})
        pq.write_table(table, folder / "part-00000.parquet", row_group_size=20_000)
    last_us = FIRST_US + (count - 1) * step_us
    plan = ReplayPlan(
        identity=f"replay/{random.getrandbits(128):032x}",
        rows=count * PARTITIONS,
        first_us=FIRST_US,
        last_us=last_us,
        partitions={SOURCE: PARTITIONS},
        speed=speed,
        into=TARGET,
        lasting=True,
        span=SPAN,
    )
    (place / "plan.json").write_bytes(msgspec.json.encode(plan))


class Experiment:
    def __init__(self, broker, client, place, seed, say):
        self._broker = broker
        self._client = client
        self._place = place
        self._random = random.Random(seed)
        self._say = say
        self._rows = msgspec.json.decode((place / "plan.json").read_bytes(), type=ReplayPlan).rows
        self._counted = Counter()
        self._processes = []
        self._last_place = 0
        self._idle = threading.Event()  # a moment chosen at random is no condition to wait for

    def run(self, kills):
        began = time.monotonic()
        places = sorted(self._random.sample(range(1, self._rows), kills))
        for number, rows in enumerate(places):
            published = self._published()
            process = self._start()
            kind = self._random.choice(("kill", "kill", "pause", "beside", "starting"))
            if kind == "starting":
                self._idle.wait(self._random.uniform(0, 1.0))
            else:
                self._wait_for(max(rows, published + 1), process)
                self._idle.wait(self._random.choice((0.0, self._random.uniform(0, 0.05))))
            if kind in ("pause", "beside") and process.poll() is None:
                self._pause(process, beside=kind == "beside")
                self._idle.wait(self._random.uniform(0, 0.2))
            self._kill(process)
            self._counted[kind] += 1
            self._say(f"{number + 1}: {kind} at {self._published():,} of {self._rows:,} rows")
            self._counted["moved on"] += self._place_moved()
        self._expect(self._start(), "published ")
        self._check()
        return dict(self._counted) | {"rows": self._rows, "seconds": round(time.monotonic() - began)}

    def _start(self):
        work = ["--lake", "unused", "--work", str(self._place), "--resume", "--url", self._broker.url]
        command = [sys.executable, "-m", "stentor", "replay", *work]
        self._processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        return self._processes[-1]

    def end(self):
        """No process outlives the experiment."""
        for process in self._processes:
            if process.poll() is None:
                self._kill(process)

    def _published(self):
        return sum(self._client.offsets(TARGET).values())

    def _place_moved(self):
        """Whether the killed run left another place than the one before."""
        path = self._place / "place.json"
        rows = msgspec.json.decode(path.read_bytes(), type=ReplayPlace).rows if path.is_file() else 0
        moved, self._last_place = rows != self._last_place, rows
        return moved

    def _wait_for(self, rows, process):
        deadline = time.monotonic() + _END_S
        while self._published() < rows and process.poll() is None:
            if time.monotonic() > deadline:
                raise FailedError(f"{rows} rows were not published within {_END_S} s")

    def _pause(self, process, *, beside):
        process.send_signal(signal.SIGSTOP)
        if beside:
            self._counted["refused"] += self._expect(
                self._start(), "Another process publishes the replay", "published "
            )
        else:
            self._idle.wait(PAUSE_S)
        process.send_signal(signal.SIGCONT)

    def _kill(self, process):
        process.kill()
        process.wait()
        process.stdout.close()

    def _expect(self, process, *sentences):
        """Let a run end; whether it failed, with one of these sentences in any case."""
        said = process.communicate(timeout=_END_S)[0].decode()
        if not any(sentence in said for sentence in sentences):
            raise FailedError(f"A run ended with {process.returncode}: {said}")
        return process.returncode != 0

    def _check(self):
        for partition in range(PARTITIONS):
            found = [bytes(message.value) for message in self._client.read(TARGET, partition=partition)]
            wanted = [value_of(partition, number) for number in range(self._rows // PARTITIONS)]
            if found != wanted:
                doubled = sum(count - 1 for count in Counter(found).values())
                raise FailedError(
                    f"Partition {partition} has {len(found)} rows of {len(wanted)}: {doubled} doubled,"
                    f" {len(set(wanted) - set(found))} missing, or in another order."
                )


@contextmanager
def _folder(given):
    if given is not None:
        yield Path(given)
        return
    with tempfile.TemporaryDirectory(prefix="stentor-killed-replays-") as made:
        yield Path(made)


@contextmanager
def _broker():
    running = LocalBroker().start()
    try:
        yield running
    finally:
        running.cleanup()


def run(kills, *, seed, speed, rows, folder=None, say=print):
    """The whole experiment; its figures. FailedError if a row is missing, doubled or in another order."""
    with _folder(folder) as place, _broker() as broker, broker.client(timeout=60) as client:
        prepare(place, rows=rows, speed=speed)
        client.create_topic(TARGET, partitions=PARTITIONS)
        experiment = Experiment(broker, client, place, seed, say)
        try:
            return experiment.run(kills)
        finally:
            experiment.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="how often the replay is killed")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="of the moments that are chosen")
    parser.add_argument("--speed", type=float, default=1.0, help="the replay's pace; 0: as fast as possible")
    parser.add_argument("--rows", type=int, default=60_000)
    given = parser.parse_args()
    print(f"seed {given.seed}")
    try:
        print(json.dumps(run(given.kills, seed=given.seed, speed=given.speed, rows=given.rows), indent=2))
    except FailedError as error:
        print(f"FAILED: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
