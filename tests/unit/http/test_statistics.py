"""The names that programs read in `/statistics`, in answers to clients and in the topic `_metrics` stay as they are."""

import json
import urllib.request

import pytest

from stentor.testing import broker

NAMES = {
    "broker": "id version uptime_s connections refusals receiving syncs_in_loop streams topics partitions bytes_in"
    " bytes_out memory_log_bytes",
    "broker.receiving": "bytes bytes_max loans waiting closed_frames",
    "health": "disk_writable store_reachable log_failed chain_short chain_refusing retention_overrun unready problems",
    "cluster": "controller peers lags reaches_store writes takeovers resignations store_restored chains confirmed"
    " feature_level",
    "cluster.chains": "partitions short joining chain_lengths behind removals changes",
    "lagging": "client address topic partition taken lag lag_s",
    "services": "topics responders handed_over refused queued in_work",
    "partitions": "topic partition batches_in bytes_in bytes_out messages_in messages_out streams lag_max lag_sum"
    " lag_max_s tail_cache_bytes chain replica dedupe log compaction",
    "partitions.chain": "replicas replicas_wanted",
    "partitions.replica": "position epoch linked active end durable committed failed joint waiting",
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
        with client.subscribe("t"):
            client.publish("t", "x")
            with urllib.request.urlopen(f"{local.http_url}/statistics", timeout=10) as answer:
                page = json.loads(answer.read())
            record = next(
                found
                for message in records
                if (found := json.loads(message.value)["statistics"])["lagging"] and found["partitions"]
            )
            return {"/statistics": page, "a client": client.statistics(), "_metrics": record}


@pytest.mark.parametrize("way", ["/statistics", "a client", "_metrics"])
def test_every_name_is_there_and_in_its_place(told, way):
    assert dict(names(told[way])) == {"": "broker health cluster lagging services partitions", **NAMES}
