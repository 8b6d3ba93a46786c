"""Kill brokers at random moments under one running stream: the query survives, and every row comes out once.

    python -m tests.spark.killed_brokers --kills 20 --brokers 3

The stream and its publisher are those of `exactly_once`; here the driver lives through it all. With one broker the
cluster is away until that one runs again.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.spark.exactly_once import (
    COMMITS,
    PARTITIONS,
    SOURCE,
    TARGET,
    Driver,
    FailedError,
    Publisher,
    check,
    manifests,
    wait_for_more,
    wait_while,
)

from stentor.testing import LocalCluster

_AWAY_S = 1.0
"""How long a broker stays dead, at most: long beside a micro-batch, short beside the timeout of a query."""
_BETWEEN_S = 1.5
"""How long the stream is left alone after it has written again, at most: two or three micro-batches."""


def run(kills, *, brokers, seed, folder, per_second=300, say=print):
    """The whole experiment; its figures. FailedError if the query ends, or a row is missing or doubled."""
    with LocalCluster(brokers) as cluster, cluster.client(timeout=60) as client:
        for topic in (SOURCE, TARGET, COMMITS):
            client.create_topic(topic, partitions=1 if topic == COMMITS else PARTITIONS)
        began = time.monotonic()
        publisher = Publisher(cluster.url, per_second)
        driver = Driver(cluster.url, folder, 2)
        try:
            _kill_brokers(cluster, client, driver, kills, random.Random(seed), say)
        finally:
            publisher.stop()
            if sys.exc_info()[0] is not None:
                driver.end()
        (folder / "end").touch()
        driver.wait()
        return {
            "rows": check(client, publisher.rounds),
            "broker_kills": kills,
            "epochs": len(manifests(client)),
            "seconds": round(time.monotonic() - began, 1),
        }


def _kill_brokers(cluster, client, driver, kills, chance, say):
    def written():
        return sum(client.offsets(TARGET).values())

    wait_for_more(driver, written)
    for number in range(kills):
        wait_while(driver, chance.uniform(0, _BETWEEN_S))
        name = chance.choice(sorted(cluster.brokers))
        cluster.kill(name)
        wait_while(driver, chance.uniform(0, _AWAY_S))
        cluster.restart(name)
        for partition in range(PARTITIONS):
            for topic in (SOURCE, TARGET):
                cluster.wait_for_chain(topic, min(3, len(cluster.brokers)), partition, timeout=60)
        wait_for_more(driver, written)
        say(f"kill {number + 1}: {name}; {written()} rows are written")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="how often a broker is killed")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="of the moments that are chosen")
    given = parser.parse_args()
    print(f"seed {given.seed}")
    with tempfile.TemporaryDirectory(prefix="stentor-killed-brokers-") as made:
        try:
            print(json.dumps(run(given.kills, brokers=given.brokers, seed=given.seed, folder=Path(made)), indent=2))
        except FailedError as error:
            print(f"FAILED: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
