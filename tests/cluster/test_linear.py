"""Conditional changes of tables are linearizable while heads die and members are cut off; the check notices if not."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from math import inf
from pathlib import Path

import pytest
from tests.cluster.linear import ABSENT, Operation, explain
from tests.cluster.table_history import operate

from stentor.core.table import TableState
from stentor.testing import broker

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = 4


# --- the check itself -----------------------------------------------------------------------------


def put(value, called, ended, version, condition=None, outcome="done"):
    return Operation("k", "put", called, ended, outcome, value, version, condition)


def read(value, called, ended, version):
    return Operation("k", "read", called, ended, "done", value, version)


def test_histories_that_one_register_gives_are_explained():
    assert explain([]) == ""
    assert explain([read(ABSENT, 0, 1, -1), put("a", 0.5, 3, 5), read("a", 2, 4, 5), put("b", 5, 6, 9, 5)]) == ""
    both = [put("a", 0, 10, 3, -1), put("b", 0, 10, -1, -1, "refused"), read("a", 11, 12, 3)]
    assert explain(both) == ""


def test_an_unknown_outcome_may_be_either():
    unknown = put("b", 2, inf, -1, 1, "unknown")
    assert explain([put("a", 0, 1, 1), unknown, read("a", 3, 4, 1)]) == ""
    assert explain([put("a", 0, 1, 1), unknown, read("b", 3, 4, 2), put("c", 5, 6, 7, 2)]) == ""
    assert explain([put("a", 0, 1, 1), unknown, read("b", 3, 4, 2), read("a", 5, 6, 1)]) != ""


@pytest.mark.parametrize(
    "history",
    [
        [put("a", 0, 1, 1), put("b", 2, 3, 2, 1), put("c", 2, 3, 3, 1)],
        [put("a", 0, 1, 1, -1), put("b", 2, 3, 2, -1)],
        [put("a", 0, 1, 1), read(ABSENT, 2, 3, -1)],
        [put("a", 0, 1, 1), put("b", 2, 3, 2), read("a", 4, 5, 1)],
        [put("a", 0, 1, 1), put("b", 2, 3, -1, 1, "refused"), read("a", 4, 5, 1)],
        [put("a", 0, 1, 1), Operation("k", "delete", 2, 3, "done", condition=1), read("a", 4, 5, 1)],
        [put("a", 0, 1, 1), read("b", 2, 3, 1)],
    ],
    ids=[
        "two swaps of one version",
        "two claims",
        "a read that misses a write",
        "a read that goes back",
        "a refusal without a reason",
        "a deletion without effect",
        "a version with two values",
    ],
)
def test_histories_that_no_register_gives_are_noticed(history):
    assert "key k:" in explain(history)


# --- one broker -----------------------------------------------------------------------------------


def record(local, enough):
    """What several clients in threads saw."""
    found, stop = [], threading.Event()

    def run(number):
        with local.client() as client, client.table("config") as table:
            for operation in operate(table, f"t{number}", random.Random(number), stop):
                found.append(operation)
                if len(found) >= enough:
                    stop.set()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(PROCESSES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def test_one_broker_is_linearizable_and_without_its_check_of_versions_it_is_not(monkeypatch):
    with broker() as local:
        with local.client() as client:
            client.create_topic("config", kind="table")
        found = record(local, 600)
        assert sum(each.outcome == "done" and each.condition is not None for each in found) > 10
        assert any(each.outcome == "refused" for each in found), "clients met"
        assert explain(found) == ""
        with local.client() as client:
            client.delete_topic("config")
            client.create_topic("config", kind="table")
        monkeypatch.setattr(TableState, "allows", lambda *_: True)
        assert explain(record(local, 600)) != ""


# --- a cluster ------------------------------------------------------------------------------------


class Recorders:
    """Client processes that change a table until the end of the block."""

    def __init__(self, cluster, name):
        self._command = [sys.executable, "-m", "tests.cluster.table_history", cluster.url, name]
        self._running = []
        self.history: list[Operation] = []

    def __enter__(self):
        for seed in range(PROCESSES):
            process = subprocess.Popen(
                [*self._command, str(seed)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # that brokers are gone
                text=True,
            )
            thread = threading.Thread(target=self._read, args=(process,))
            thread.start()
            self._running.append((process, thread))
        return self

    def _read(self, process):
        for line in process.stdout:
            fields = json.loads(line)
            self.history.append(Operation(**fields | {"ended": inf if fields["ended"] is None else fields["ended"]}))

    def changes(self):
        return sum(each.outcome == "done" and each.kind != "read" for each in list(self.history))

    def __exit__(self, *_):
        for process, _ in self._running:
            process.stdin.close()
        try:
            codes = [process.wait(30) for process, _ in self._running]
        finally:
            for process, thread in self._running:
                process.kill()
                process.wait()
                thread.join(10)
                process.stdout.close()
        assert codes == [0] * PROCESSES


def change_while(cluster, rounds, changes):
    """Conditional changes by several processes, while the head dies, and then the next one is cut off."""
    with cluster.client(timeout=30) as client:
        client.create_topic("linear", kind="table", replicas=3)
        cluster.wait_for_chain("linear", 3)
        with Recorders(cluster, "linear") as recorders:

            def more(what):
                before = recorders.changes()
                cluster.wait_for(lambda: recorders.changes() >= before + changes, timeout=30, what=what)

            more("changes")
            for _ in range(rounds):
                killed = cluster.head("linear")
                cluster.kill(killed)
                more("changes without the head")
                cut = cluster.head("linear")
                cluster.isolate(cut)
                more("changes without the one that was cut off")
                cluster.heal()
                cluster.restart(killed)
                more("changes of all")
        client.delete_topic("linear")
    return recorders.history


@pytest.mark.slow
def test_changes_are_linearizable_while_a_head_dies_and_another_is_cut_off(five):
    history = change_while(five, rounds=1, changes=40)
    assert sum(each.outcome == "done" and each.condition is not None for each in history) > 100
    assert any(each.outcome == "refused" for each in history), "clients met"
    assert explain(history) == ""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_changes_are_linearizable_through_many_failovers(five):
    history = change_while(five, rounds=8, changes=300)
    assert explain(history) == ""
