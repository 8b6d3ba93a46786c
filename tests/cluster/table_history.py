"""A client that changes a few keys of a table on conditions, and writes down what it did: one process of several.

python -m tests.cluster.table_history URL TABLE SEED     prints a line of JSON for each operation, until its input ends
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from dataclasses import asdict
from math import inf
from typing import TYPE_CHECKING

from tests.cluster.linear import ABSENT, Operation

import stentor

if TYPE_CHECKING:
    from collections.abc import Iterator

KEYS = ("leader", "limits/rate", "shard/7")
TIMEOUT_S = 4.0


def operate(table: stentor.Table, name: str, chance: random.Random, stop: threading.Event) -> Iterator[Operation]:
    """Operations one after the other, each with its outcome."""
    number = 0
    while not stop.is_set():
        number += 1
        key, value = chance.choice(KEYS), f"{name}-{number}"
        kind = chance.choices(["read", "put", "swap", "claim", "delete"], [4, 1, 6, 2, 1])[0]
        entry = table.entry(key)
        version = -1 if entry is None else entry.version
        called = time.monotonic()
        try:
            if kind == "read":
                table.sync(timeout=TIMEOUT_S)
                entry = table.entry(key)
                held, at = (ABSENT, -1) if entry is None else (entry.value.decode(), entry.version)
                yield Operation(key, "read", called, time.monotonic(), "done", held, at)
            elif kind == "delete" and entry is not None:
                table.delete(key, if_version=version, timeout=TIMEOUT_S)
                yield Operation(key, "delete", called, time.monotonic(), "done", condition=version)
            elif kind == "put":
                made = table.put(key, value, timeout=TIMEOUT_S)
                yield Operation(key, "put", called, time.monotonic(), "done", value, made.version)
            elif kind == "claim" or entry is None:
                version = -1
                made = table.put(key, value, if_absent=True, timeout=TIMEOUT_S)
                yield Operation(key, "put", called, time.monotonic(), "done", value, made.version, -1)
            else:
                made = table.put(key, value, if_version=version, timeout=TIMEOUT_S)
                yield Operation(key, "put", called, time.monotonic(), "done", value, made.version, version)
        except stentor.ConditionFailed:
            wrote = "delete" if kind == "delete" and entry is not None else "put"
            yield Operation(key, wrote, called, time.monotonic(), "refused", value, condition=version)
        except stentor.StentorError:
            if kind != "read":  # a read that failed says nothing
                wrote = "delete" if kind == "delete" and entry is not None else "put"
                yield Operation(key, wrote, called, inf, "unknown", value, condition=None if kind == "put" else version)


def main() -> None:
    """Until the input ends."""
    url, name, seed = sys.argv[1:]
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    with stentor.connect(url, timeout=20) as client, client.table(name) as table:
        for operation in operate(table, f"p{seed}", random.Random(int(seed)), stop):
            fields = asdict(operation) | {"ended": None if operation.ended == inf else operation.ended}
            print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    main()
