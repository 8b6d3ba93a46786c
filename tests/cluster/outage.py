"""All of etcd is gone for a while: `python -m tests.cluster.outage --seconds 60`.

Messages flow on, changes wait, and are made when it is back (C27, E7). The tests do the same for as long as etcd's
leases last; this is for the whole minute, and says in figures what happened.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from tests.cluster.load import Load

from stentor.errors import StentorError
from stentor.testing.cluster import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Callable

GAP_S_MAX = 1.0
BACK_S = 30.0
ETCD = 3


def wait(cluster: LocalCluster, seconds: float) -> None:
    """Let time pass."""
    until = time.monotonic() + seconds
    cluster.wait_for(lambda: time.monotonic() > until, timeout=seconds + 1, what="the time to pass")


def change_something(cluster: LocalCluster, flow: Load) -> None:
    """A chain and a topic, as a proof that changes work."""
    name = flow.chains()[0][0]
    cluster.kill(name)
    flow.wait_until_without(name)
    flow.wait_for_acks()
    cluster.restart(name)
    flow.wait_until_whole()
    flow.client.create_topic(f"{flow.topic}-after")


def refused(flow: Load) -> StentorError:
    """Why a topic is not made at present."""
    try:
        flow.client.create_topic(f"{flow.topic}-meanwhile", timeout=5)
    except StentorError as error:
        return error
    raise AssertionError("a topic was made without etcd")


def newcomer(cluster: LocalCluster, flow: Load) -> float:
    """How long a client that comes meanwhile takes to connect and publish."""
    began = time.monotonic()
    with cluster.client(name="newcomer", timeout=5) as client:
        assert flow.probe(5, client) is None
        return time.monotonic() - began


def take_away(cluster: LocalCluster, *, paused: bool) -> Callable[[], None]:
    """Stop or pause every member of etcd; what is returned brings them back."""
    if not paused:
        cluster.etcd.stop()
        return cluster.etcd.start
    members = range(len(cluster.etcd.endpoints))
    for index in members:
        cluster.etcd.pause(index)

    def bring_back() -> None:
        for index in members:
            cluster.etcd.resume(index)

    return bring_back


def outage(cluster: LocalCluster, topic: str, seconds: float, *, paused: bool) -> None:
    """One outage under load, judged by the history and told in figures."""
    with Load(cluster, topic, producers=3, rate=100) as flow:
        bring_back = take_away(cluster, paused=paused)
        before, since = flow.acknowledged, time.monotonic()
        try:
            wait(cluster, seconds / 2)
            connected_s, why = newcomer(cluster, flow), refused(flow)
            wait(cluster, max(0.0, seconds - (time.monotonic() - since)))
            flow.wait_for_acks()
            lasted_s, taken = time.monotonic() - since, flow.acknowledged - before
            gap_s = flow.longest_gap_s(since)
        finally:
            bring_back()
        back = time.monotonic()
        flow.client.create_topic(f"{topic}-back", timeout=BACK_S)
        made_s = time.monotonic() - back
        change_something(cluster, flow)
        changed_s = time.monotonic() - back
    how = "paused" if paused else "stopped"
    print(f"etcd {how} for {lasted_s:.1f} s: {taken} publishes acknowledged, longest gap {gap_s:.2f} s;")
    print(f"  a new client connected and published in {connected_s:.2f} s; a topic was refused: {why.message}")
    print(
        f"  back: a topic made after {made_s:.2f} s, a broker killed, replaced and whole again after {changed_s:.1f} s"
    )
    print(f"  {len(flow.errors)} publishes failed; no anomaly in the history, all copies equal")
    assert gap_s < GAP_S_MAX, f"publishing stood still for {gap_s:.2f} s"
    assert not flow.errors, flow.errors


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.outage", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    chosen = parser.parse_args()
    with LocalCluster(3, etcd=ETCD) as cluster:
        outage(cluster, "stopped", chosen.seconds, paused=False)
        outage(cluster, "paused", chosen.seconds, paused=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
