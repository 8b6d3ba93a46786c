"""pytest fixtures, registered by installing Stentor.

Every run of pytest in such an environment imports this module, whether or not a test asks for a fixture. It stands
outside of `stentor.testing`, which loads brokers and all they need; the fixtures load it when a test asks for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stentor import Client
    from stentor.testing import LocalBroker, LocalCluster


@pytest.fixture
def stentor_broker() -> Iterator[LocalBroker]:
    """A real broker, for this test alone."""
    from stentor.testing import broker

    with broker() as local:
        yield local


@pytest.fixture
def stentor_client(stentor_broker: LocalBroker) -> Iterator[Client]:
    """A client connected to `stentor_broker`."""
    with stentor_broker.client() as client:
        yield client


@pytest.fixture(scope="module")
def stentor_cluster() -> Iterator[LocalCluster]:
    """A real cluster of three brokers and an etcd, for the tests of one module; `mend()` repairs what a test broke."""
    from stentor.testing import cluster

    with cluster(brokers=3) as local:
        yield local
