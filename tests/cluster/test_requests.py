"""Requests in a cluster: any client reaches any responder, and survives the death of responders and brokers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import stentor
from stentor.errors import StentorError
from stentor.request_errors import NoResponders, ResponderLost

pytestmark = pytest.mark.slow

WAIT_S = 30
A_WHILE = threading.Event()  # nobody sets it

RESPONDER = """
import os, sys, stentor
url, topic, name = sys.argv[1:]
def handler(request):
    return f"{name} {request.value.decode()}"
with stentor.connect(url, name=name) as client, client.serve(topic, handler) as service:
    print("serving", flush=True)
    service.wait()
"""


def responder(url, topic, name):
    process = subprocess.Popen(
        [sys.executable, "-c", RESPONDER, url, topic, name],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "serving\n"
    return process


@pytest.fixture
def responders(three):
    """Makes responders in processes of their own; what still runs at the end is killed."""
    made = []

    def make(topic, name, url=None):
        made.append(responder(url or three.url, topic, name))
        return made[-1]

    yield make
    for process in made:
        process.kill()
        process.wait(WAIT_S)
        process.stdout.close()


def asked_until(client, topic, expected):
    """Ask until an answer has come from each of these."""
    seen, deadline = set(), time.monotonic() + WAIT_S
    while not expected <= seen:
        assert time.monotonic() < deadline, f"only {seen} answered"
        try:
            seen.add(client.request(topic, "x", timeout=5).value.decode().split()[0])
        except NoResponders:
            A_WHILE.wait(0.01)


def test_a_client_of_any_broker_reaches_responders_at_all_brokers(three, responders):
    names = set(three.brokers)
    for name, each in three.brokers.items():
        responders("svc.spread", f"at-{name}", each.address)
    for each in three.brokers.values():
        with stentor.connect(each.address, timeout=WAIT_S) as client:
            asked_until(client, "svc.spread", {f"at-{name}" for name in names})
            with pytest.raises(NoResponders):
                client.request("svc.nobody", timeout=5)


class Load(threading.Thread):
    """Asks all the time; every call must end within its deadline, with an answer or a typed error."""

    def __init__(self, cluster, topic, *, idempotent):
        super().__init__()
        self.cluster, self.topic, self.idempotent = cluster, topic, idempotent
        self.stopped = threading.Event()
        self.answers, self.errors, self.longest_s = [], [], 0.0

    def run(self):
        with self.cluster.client(timeout=WAIT_S) as client:
            number = 0
            while not self.stopped.is_set():
                number += 1
                began = time.monotonic()
                try:
                    reply = client.request(self.topic, f"{number}", timeout=5, idempotent=self.idempotent)
                except StentorError as error:
                    self.errors.append(error)
                else:
                    self.answers.append((number, reply.value.decode().split()))
                self.longest_s = max(self.longest_s, time.monotonic() - began)

    def end(self):
        self.stopped.set()
        self.join(WAIT_S)
        assert not self.is_alive()
        assert all(answered == str(number) for number, (_, answered) in self.answers)
        assert self.longest_s < 6


def test_killed_responders_and_brokers_cost_no_idempotent_request(three, responders):
    topic = "svc.killed"
    processes = [responders(topic, f"r{number}") for number in range(3)]
    with three.client(timeout=WAIT_S) as client:
        asked_until(client, topic, {"r0", "r1", "r2"})
        loads = [Load(three, topic, idempotent=True), Load(three, topic, idempotent=False)]
        for load in loads:
            load.start()
        processes[0].send_signal(signal.SIGKILL)
        for name in sorted(three.brokers)[:2]:
            before = [len(load.answers) for load in loads]
            three.kill(name)
            three.wait_for(
                lambda: all(len(load.answers) > count + 50 for load, count in zip(loads, before, strict=True)),  # noqa: B023
                what="requests that are answered again",
            )
            three.restart(name)
        for load in loads:
            load.end()
    assert loads[0].errors == []
    assert {type(error) for error in loads[1].errors} <= {ResponderLost}
    assert len(loads[1].errors) <= 6
