"""etcd is gone for a while: messages flow on, changes wait and are made when it is back (C27, E7).

`python -m tests.cluster.outage` does it for a whole minute.
"""

from __future__ import annotations

import time

import pytest
from tests.cluster.outage import change_something, wait

from stentor.errors import StentorError
from stentor.limits import LEASE_S

pytestmark = pytest.mark.slow


def test_etcd_stands_still_for_longer_than_its_leases(three, load):
    with load(three) as flow:
        since = time.monotonic()
        three.etcd.pause()
        try:
            wait(three, LEASE_S + 1.5)
            flow.wait_for_acks()
            assert flow.longest_gap_s(since) < 1
            with pytest.raises(StentorError):
                flow.client.create_topic(f"{flow.topic}-meanwhile", timeout=1)
        finally:
            three.etcd.resume()
        flow.wait_for_acks()
        assert flow.longest_gap_s(since) < 1, "mass expiry of leases is not mass death"
        change_something(three, flow)
    assert flow.errors == []


def test_etcd_is_killed_and_a_broker_dies_meanwhile(three, load):
    """The chain waits for the change that only etcd can take, and goes on when it is back."""
    with load(three) as flow:
        three.etcd.kill()
        flow.wait_for_acks()
        name = flow.chains()[0][1]
        three.kill(name)
        three.etcd.start()
        flow.wait_until_without(name)
        flow.wait_for_acks()
        three.restart(name)
        flow.wait_until_whole()
    assert flow.errors == []
