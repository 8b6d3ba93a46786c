"""Statistics as typed values: what other versions leave out or add, and what cannot be read."""

import pytest

from stentor.errors import ProtocolError
from stentor.wire import messages
from stentor.wire.statistics import BrokerStatistics, ClusterStatistics, PartitionStatistics, as_map, from_map


def test_what_a_broker_leaves_out_has_a_default_and_what_it_adds_is_passed_over():
    found = from_map({"broker": {"connections": 2, "new": 1}, "cluster": {}, "partitions": [{"topic": "t"}], "new": {}})
    assert found.broker.connections == 2
    assert found.cluster == ClusterStatistics()
    assert found.partitions == [PartitionStatistics(topic="t")]
    assert found.health.disk_writable


def test_a_broker_that_has_not_joined_shows_an_empty_cluster():
    assert as_map(BrokerStatistics())["cluster"] == {}


def test_they_come_back_from_the_wire_as_they_were():
    told = BrokerStatistics(
        cluster=ClusterStatistics(controller="b1", peers={"b2": "heard"}), partitions=[PartitionStatistics()]
    )
    answer = messages.decode(messages.encode(messages.Statistics(statistics=as_map(told))), messages.Response)
    assert "chains" not in answer.statistics["cluster"], "only a controller has them"
    assert from_map(answer.statistics) == told


def test_statistics_that_cannot_be_read_are_the_brokers_fault():
    with pytest.raises(ProtocolError, match="statistics"):
        from_map({"partitions": 3})
