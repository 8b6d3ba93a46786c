"""One running cluster for the tests that leave it as they found it."""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from tests.cluster.load import Load

from stentor.errors import TopicNotFound
from stentor.testing.cluster import LocalCluster
from stentor.testing.network import require_network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOG_LINES = 300
_numbers = itertools.count()


@pytest.fixture(scope="session")
def running() -> Iterator[LocalCluster]:
    """Three brokers and an etcd, for the whole session."""
    with LocalCluster(3) as cluster:
        yield cluster


@pytest.fixture
def three(running: LocalCluster) -> Iterator[LocalCluster]:
    """The shared cluster with all its brokers up and no topics, before and after."""
    yield running
    mend(running)
    with running.client(timeout=30) as client:
        for topic in client.topics():
            if not topic.name.startswith("_"):
                with suppress(TopicNotFound):  # the home may not have heard yet that the test deleted it
                    client.delete_topic(topic.name)


@pytest.fixture(scope="session")
def networked() -> Iterator[LocalCluster]:
    """Five brokers in network namespaces of their own."""
    require_network()
    with LocalCluster(5, network=True) as cluster:
        yield cluster


@pytest.fixture
def five(networked: LocalCluster) -> Iterator[LocalCluster]:
    """The shared cluster whose network can be cut, whole before and after."""
    yield networked
    networked.heal()
    mend(networked)


def mend(cluster: LocalCluster) -> None:
    """Whatever a test left behind: everyone runs again."""
    for broker in cluster.brokers.values():
        if broker.running:
            cluster.resume(broker.name)
        else:
            broker.launch()
            broker.wait_ready()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """What the brokers said last goes with a failure."""
    report = yield
    given = getattr(item, "funcargs", {})
    cluster = given.get("three") or given.get("five") or given.get("troubled")
    if report.failed and cluster is not None:
        for broker in cluster.brokers.values():
            lines = broker.log_file.read_text(encoding="utf-8", errors="replace").splitlines()
            report.sections.append((f"broker {broker.name}", "\n".join(lines[-_LOG_LINES:])))
    return report


@pytest.fixture
def load() -> Callable[..., Load]:
    """Makes loads on topics of their own."""

    def make(cluster: LocalCluster, **options: Any) -> Load:
        return Load(cluster, f"load-{next(_numbers)}", **options)

    return make
