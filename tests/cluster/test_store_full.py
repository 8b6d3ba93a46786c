"""A client fills etcd: it is refused in time, chains change beside it, and all goes on when there is room again."""

import asyncio
import itertools

import pyarrow as pa
import pytest

from stentor.coordination.etcd import open_etcd
from stentor.errors import StentorError, StoreFull
from stentor.limits import KIB, MIB
from stentor.testing.cluster import LocalCluster
from stentor.wire.statistics import from_map

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

QUOTA = 32 * MIB
WAIT_S = 180.0  # longer than a minute of history and two looks


@pytest.fixture
def cluster():
    arguments = (f"--quota-backend-bytes={QUOTA}",)
    settings = {"coordination_quota_bytes": QUOTA}
    with LocalCluster(3, settings=settings, etcd_arguments=arguments) as running:
        yield running


def make_wide(client):
    """A topic whose record is large."""
    columns = [pa.field(f"{'c' * 100}{number}", pa.int64()) for number in range(404)]
    for size in range(400, 404):  # four versions, 50 KB each
        client.tabular("wide", schema=pa.schema(columns[:size]))


def alter_until_refused(client):
    """What one client can do to the store as fast as it is answered."""
    for number in range(QUOTA // (16 * KIB)):
        try:
            client.alter_topic("wide", retention_age_s=1_000 + number % 2)
        except StoreFull:
            return
    raise AssertionError("the store is never full")


def store_of(cluster, client):
    return from_map(client.statistics()).cluster.store


def can_alter(client):
    try:
        client.alter_topic("wide", retention_age_s=5_000)
    except StentorError:
        return False
    return True


async def fill(url):
    """Somebody else fills etcd to its quota."""
    store = open_etcd(url.rstrip("/") + "/others")
    try:
        for number in itertools.count():
            await store.swap(expect={}, put={f"junk/{number % 4}": bytes(512 * KIB)})
    except StentorError:
        return
    finally:
        await store.close()


def test_clients_are_refused_while_chains_change_and_all_goes_on_when_history_is_compacted(cluster):
    with cluster.client(timeout=30) as client:
        client.create_topic("orders", replicas=3)
        make_wide(client)
        alter_until_refused(client)
        assert QUOTA // 2 <= store_of(cluster, client).bytes_in_use < 3 * QUOTA // 4
        with pytest.raises(StoreFull):
            client.create_topic("one.more")
        client.publish("orders", b"messages flow on")

        head = cluster.head("orders")
        cluster.kill(head)
        client.publish("orders", b"a head is replaced", timeout=30)
        assert cluster.head("orders") != head
        cluster.restart(head)
        cluster.wait_for_chain("orders", 3, timeout=WAIT_S)
        assert [message.value for message in client.read("orders")] == [b"messages flow on", b"a head is replaced"]

        compacted = lambda: 0 < store_of(cluster, client).bytes_in_use < QUOTA // 4  # noqa: E731 - said once
        cluster.wait_for(compacted, WAIT_S, "the history to be compacted")
        client.create_topic("one.more")
        assert can_alter(client)


def test_an_etcd_that_others_filled_comes_back_as_doctor_says(cluster):
    with cluster.client(timeout=30) as client:
        client.create_topic("orders", replicas=3)
        make_wide(client)
        asyncio.run(fill(cluster.etcd.url))
        with pytest.raises(StentorError):
            client.create_topic("one.more", timeout=5)

        def alarmed():
            problems = from_map(client.statistics()).health.problems
            return any("alarm disarm" in problem.hint for problem in problems)

        cluster.wait_for(alarmed, WAIT_S, "doctor to say how to clear the alarm")
        client.publish("orders", b"messages flow on")
        cluster.etcd.compact()
        cluster.etcd.defragment()
        cluster.etcd.disarm()
        cluster.wait_for(lambda: can_alter(client), WAIT_S, "changes to be taken again")
        cluster.kill(cluster.head("orders"))
        client.publish("orders", b"a head is replaced", timeout=30)
