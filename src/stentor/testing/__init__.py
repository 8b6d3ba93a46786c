"""Public helpers for tests: a real broker in the test's own process, a real cluster in processes beside it.

    from stentor.testing import broker

    with broker() as b, b.client() as client:
        client.publish("orders", "hello")

Or, with the pytest plugin that comes with the package, the fixtures `stentor_broker`, `stentor_client` and
`stentor_cluster`.
"""

from stentor.testing.cluster import LocalCluster, cluster
from stentor.testing.etcd import LocalEtcd
from stentor.testing.local import LocalBroker, broker

__all__ = ["LocalBroker", "LocalCluster", "LocalEtcd", "broker", "cluster"]
