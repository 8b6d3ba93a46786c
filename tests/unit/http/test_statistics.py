"""The names that programs read in `/statistics`, in answers to clients and in the topic `_metrics` stay as they are."""

import json
import time
import urllib.request
from types import SimpleNamespace

import pytest

from stentor.broker.queues.figures import QueueFigures
from stentor.testing import broker

NAMES = {
    "broker": "id version uptime_s connections refusals failures receiving syncs_in_loop streams topics partitions"
    " bytes_in bytes_out memory_log_bytes memory loop",
    "broker.memory": "bytes bytes_max refused tail_cache_bytes tail_cache_bytes_max",
    "broker.loop": "steps over_50_ms over_200_ms lately_ms lately_by longest_ms longest_by longest_at_us parked counts"
    " cpu_counts",
    "broker.receiving": "bytes bytes_max loans waiting closed_frames",
    "health": "disk_writable store_reachable log_failed chain_short chain_refusing retention_overrun unready problems",
    "cluster": "controller peers lags reaches_store writes takeovers resignations store_restored chains confirmed"
    " feature_level store",
    "cluster.store": "bytes bytes_in_use bytes_max alarm refused compacted_to",
    "cluster.chains": "partitions short joining chain_lengths behind removals changes",
    "lagging": "client address topic partition taken lag lag_s",
    "services": "topics responders handed_over refused queued in_work",
    "queues": "topic partitions ready in_work delayed dying consumers finished dead_lettered skipped",
    "partitions": "topic partition batches_in bytes_in bytes_out messages_in messages_out streams lag_max lag_sum"
    " lag_max_s tail_cache_bytes chain replica dedupe log compaction",
    "partitions.chain": "replicas replicas_wanted",
    "partitions.replica": "position epoch linked active end durable committed failed joint waiting passed_over",
    "partitions.dedupe": "producers searches",
    "partitions.log": "start end synced_end bytes segments appends syncs sync_us_total sync_us_max failed damaged"
    " in_memory",
    "partitions.compaction": "horizon compacted_to deletions_until runs running bytes_before bytes_after"
    " messages_removed last_at_us",
}
BY_NAME = {"cluster.peers", "cluster.chains.chain_lengths"}  # their keys are brokers and lengths


def names(found, place=""):
    """The keys of every map inside, by where it is, in their order."""
    for each in found if isinstance(found, list) else [found]:
        if isinstance(each, dict) and place not in BY_NAME:
            yield place, " ".join(each)
            for name, inner in each.items():
                yield from names(inner, f"{place}.{name}".lstrip("."))


@pytest.fixture(scope="module")
def told():
    """What one broker says in each of the three ways, while a subscriber is behind."""
    with (
        broker(http=True, metrics_interval_s=0.01) as local,
        local.client() as client,
        client.subscribe("_metrics", start="earliest") as records,
    ):
        client.create_topic("t")
        client.create_topic("jobs", kind="queue")
        with client.subscribe("t"):
            client.publish("t", "x")
            with urllib.request.urlopen(f"{local.http_url}/statistics", timeout=10) as answer:
                page = json.loads(answer.read())
            record = next(
                found
                for message in records
                if (found := json.loads(message.value)["statistics"])["lagging"] and found["queues"]
            )
            return {"/statistics": page, "a client": client.statistics(), "_metrics": record}


@pytest.mark.parametrize("way", ["/statistics", "a client", "_metrics"])
def test_every_name_is_there_and_in_its_place(told, way):
    assert dict(names(told[way])) == {"": "broker health cluster lagging services queues partitions", **NAMES}


def figures(local):
    """What is said of the only queue: by /statistics, and by /metrics. Between the two it may change."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return _figures(local)
        except AssertionError:
            if time.monotonic() > deadline:
                raise


def _figures(local):
    with urllib.request.urlopen(f"{local.http_url}/statistics", timeout=10) as answer:
        (queue,) = json.loads(answer.read())["queues"]
    with urllib.request.urlopen(f"{local.http_url}/metrics", timeout=10) as answer:
        samples = [line.split() for line in answer.read().decode().splitlines() if 'queue="jobs"' in line]
    assert {name.partition("{")[0].removeprefix("stentor_queue_"): float(value) for name, value in samples} == {
        "ready": queue["ready"],
        "in_work": queue["in_work"],
        "delayed": queue["delayed"],
        "dying": queue["dying"],
        "consumers": queue["consumers"],
        "finished_total": queue["finished"],
        "dead_lettered_total": queue["dead_lettered"],
        "skipped": queue["skipped"],
    }
    return [queue[name] for name in ("ready", "in_work", "delayed", "finished", "dead_lettered")]


def test_the_jobs_of_a_queue_are_counted(wait_until):
    with broker(http=True) as local, local.client() as client:
        client.create_topic("jobs", kind="queue", partitions=2, max_attempts=1)
        with client.queue("jobs") as jobs:
            jobs.put_many([f"{number}" for number in range(6)])
            jobs.put("later", delay=1_000)
            assert figures(local) == [6, 0, 1, 0, 0]
            first = jobs.get(timeout=10)
            wait_until(lambda: sum(figures(local)[:2]) == 6 and figures(local)[1], "some are held")
            jobs.ack(first)
            assert sum(figures(local)[:2]) == 5
            assert figures(local)[2:] == [1, 1, 0]
            jobs.nack(jobs.get(timeout=10), error="no")
            wait_until(lambda: figures(local)[4] == 1, "it was the last attempt")
            with urllib.request.urlopen(local.http_url, timeout=10) as page:
                assert "<td>jobs</td>" in page.read().decode().partition("Queues")[2]
        wait_until(lambda: figures(local)[:2] == [4, 0], "what was held is given back")


def test_a_queue_that_another_broker_leads_is_not_counted():
    partition = SimpleNamespace(
        topic="jobs",
        settings=SimpleNamespace(kind="queue"),
        replica=SimpleNamespace(position=SimpleNamespace(is_head=False), active=True),
    )
    counted = QueueFigures(0)
    counted.look_at(partition)
    assert counted.statistics() == []
