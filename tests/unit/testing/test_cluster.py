import pytest

from stentor.errors import InternalError, InvalidArgument
from stentor.pytest_plugin import stentor_cluster  # noqa: F401 - the fixture, also where the plugin is not installed
from stentor.testing import LocalCluster


def test_mend_repairs_whatever_was_broken(stentor_cluster):  # noqa: F811 - a fixture
    cluster = stentor_cluster
    with cluster.client() as client:
        client.publish("orders", "one")
        cluster.wait_for_chain("orders", 3)
        cluster.kill("b0")
        cluster.pause("b1")
        cluster.etcd.kill()
        cluster.mend()
        cluster.wait_for_chain("orders", 3)
        client.publish("orders", "two")
        assert [message.value for message in client.read("orders")] == [b"one", b"two"]


def test_a_broker_that_cannot_start_says_why_and_leaves_nothing(tmp_path):
    cluster = LocalCluster(brokers=1, data=tmp_path, settings={"segment_bytes": 1})
    with pytest.raises(InternalError, match=r"Broker b0 did not start: .*segment_bytes"):
        cluster.start()
    assert not cluster.brokers["b0"].running


def test_what_only_a_network_or_an_haproxy_can_do_is_refused_without(tmp_path):
    with pytest.raises(InvalidArgument, match="network=True"):
        LocalCluster(data=tmp_path).ring()
