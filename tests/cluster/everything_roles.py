"""The processes of tests/cluster/everything.py: ``python -m tests.cluster.everything_roles ROLE URL NAME FILE``.

Each works until SIGTERM, and writes a line of JSON for everything that the check must know. Times are those of the
clock that all processes of a machine share.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.cluster.table_history import operate

import stentor
from stentor.errors import LeaseLost, StentorError

if TYPE_CHECKING:
    from collections.abc import Callable

QUEUE, LEASE_S, ATTEMPTS = "work", 3, 20
TABLE, ROWS, ROWS_AT_ONCE, ROW_BYTES = "config", 1_000, 100, 400
SERVICE = "answers"
JOB_S = 0.02  # of work for a job, at most
FAILS = 0.03  # of the jobs


def job(client: stentor.Client, tell: Any, stop: threading.Event, chance: random.Random) -> None:
    """Work off a queue, with the acknowledgement of each job awaited."""
    with client.queue(QUEUE) as queue:
        while not stop.is_set():
            try:
                taken = queue.get(timeout=1)
            except StentorError:
                continue
            name = bytes(taken.value).decode()
            tell("begun", job=name, attempt=taken.attempt)
            stop.wait(chance.random() * JOB_S)
            try:
                if chance.random() < FAILS:
                    queue.nack(taken, delay=0, error="by chance", timeout=10)
                    tell("failed", job=name)
                else:
                    queue.ack(taken, timeout=10)
                    tell("acknowledged", job=name)
            except LeaseLost:
                tell("lost", job=name)
            except StentorError as error:
                tell("unknown", job=name, why=type(error).__name__)


def writer(client: stentor.Client, tell: Any, stop: threading.Event, chance: random.Random) -> None:
    """Change the rows of a table in turn; each value says how many changes its key has had."""
    with client.table(TABLE) as table:
        turn = 1
        while not stop.is_set():
            for first in range(0, ROWS, ROWS_AT_ONCE):
                rows = {f"row/{n}": f"{turn} " + "v" * ROW_BYTES for n in range(first, first + ROWS_AT_ONCE)}
                while not stop.is_set():
                    try:
                        table.put_many(rows, timeout=20)
                    except StentorError:
                        continue
                    break
                stop.wait(0.03)
            turn += 1


def watcher(client: stentor.Client, tell: Any, stop: threading.Event, chance: random.Random) -> None:
    """Follow a table, and write down every change."""
    with client.table(TABLE) as table:
        table.on_resync(lambda resync: tell("resync", changes=resync.changes))
        watch = table.watch(limit=20_000)
        # After the watch began, so perhaps with changes that it will bring as well, and never without one.
        tell("begin", rows=[(key, bytes(table[key]).decode()) for key in table])
        while not stop.is_set():
            try:
                change = watch.get(timeout=0.5)
            except StentorError as error:
                if not error.retriable and error.code != "deadline_exceeded":
                    raise
                continue
            new = None if change.new is None else bytes(change.new.value).decode()
            tell("change", key=change.key, new=new, skipped=change.skipped)


def changer(client: stentor.Client, tell: Any, stop: threading.Event, chance: random.Random) -> None:
    """Change a few keys on conditions."""
    with client.table(TABLE) as table:
        for operation in operate(table, f"p{chance.random()}", chance, stop):
            tell(None, **asdict(operation) | {"ended": None if operation.ended == inf else operation.ended})
            stop.wait(0.05)


def responder(client: stentor.Client, tell: Any, stop: threading.Event, chance: random.Random) -> None:
    """Answer requests."""
    with client.serve(SERVICE, lambda request: f"answer to {bytes(request.value).decode()}"):
        stop.wait()


ROLES: dict[str, Callable[..., None]] = {role.__name__: role for role in (job, writer, watcher, changer, responder)}


def main(role: str, url: str, name: str, file: str) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    lock = threading.Lock()
    with Path(file).open("a", buffering=1, encoding="utf-8") as lines:

        def tell(what: str | None, **fields: Any) -> None:
            said = fields if what is None else {"at": time.monotonic(), "what": what, **fields}
            with lock:
                lines.write(json.dumps(said) + "\n")

        with stentor.connect(url, name=f"{role} {name}", timeout=60) as client:
            ROLES[role](client, tell, stop, random.Random(f"{role}{name}"))


if __name__ == "__main__":
    main(*sys.argv[1:])
