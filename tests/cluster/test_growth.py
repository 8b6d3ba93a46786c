"""From three brokers to five and back, while messages flow; and the last replica of a partition dies."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
def grown(three):
    """Two more brokers, which are gone again afterwards."""
    names = [three.add(), three.add()]
    yield names
    with three.client() as client:
        for name in names:
            client.drain_broker(name)
            three.wait_for(lambda name=name: holds_nothing(client, name), what=f"{name} to be empty")
            three.terminate(name)
            three.wait_for(lambda name=name: state_of(client, name).view != "heard", what=f"{name} to be gone")
            client.forget_broker(name)
            del three.brokers[name]


def state_of(client, name):
    return next(state for state in client.brokers() if state.info.id == name)


def holds_nothing(client, name):
    return state_of(client, name).replicas == 0


@pytest.mark.long
def test_new_brokers_get_replicas_and_give_them_back(three, load, request):
    with load(three, partitions=6) as flow:
        names = request.getfixturevalue("grown")
        flow.wait_for(lambda: all(any(name in chain for chain in flow.chains()) for name in names), "a share of it")
        flow.wait_until_whole()
        for name in names:
            flow.client.drain_broker(name)
        flow.wait_until_without(*names)
        flow.wait_until_whole()
        flow.wait_for_acks()
    assert flow.errors == []
    check_that_the_last_replica_is_waited_for(three, load)


def check_that_the_last_replica_is_waited_for(three, load):
    """C12: with min_replicas=1 the last one acknowledged alone; whoever left before it may not lead.

    The two brokers that are being drained vote and hold nothing, so that there is a majority without the replicas.
    """
    with load(three, partitions=1, min_replicas=1) as flow:
        first, second, last = flow.chains()[0]
        for name in (first, second):
            three.kill(name)
            flow.wait_until_without(name)
        flow.wait_for_acks()
        three.kill(last)
        acknowledged = flow.acknowledged
        for name in (first, second):
            three.brokers[name].launch()
        for name in (first, second):
            three.brokers[name].wait_ready()
        assert flow.probe(timeout=2) is not None
        assert flow.chains() == [[last]]
        assert flow.acknowledged == acknowledged
        three.restart(last)
        flow.wait_for_acks()
        flow.wait_until_whole()
    assert len(flow.errors) == 1, "only the probe"
