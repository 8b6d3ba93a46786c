"""How far subscribers are behind, as an operator sees it from outside."""

import json
import re
import urllib.request

import pytest

from stentor import limits
from stentor.cli.app import run
from stentor.testing import broker

COUNT = 400


@pytest.fixture
def served():
    with broker(http=True) as local:
        yield local


def fetch(local, path):
    with urllib.request.urlopen(local.http_url + path, timeout=10) as answer:
        return answer.read().decode()


def row(local):
    [found] = [row for row in json.loads(fetch(local, "/statistics"))["partitions"] if row["topic"] == "t"]
    return found


def metric(local, name):
    found = re.search(rf'^{name}{{partition="0",topic="t"}} (\S+)$', fetch(local, "/metrics"), re.MULTILINE)
    return None if found is None else float(found[1])


def listed(local, capsys, name):
    """What `stentor clients` shows of a client."""
    capsys.readouterr()
    assert run(["clients", "--json", "--url", local.url]) == 0
    [found] = [client for client in json.loads(capsys.readouterr().out) if client["name"] == name]
    return found


def test_lag_counts_what_a_subscriber_has_not_taken_not_what_was_sent(served, capsys, wait_until):
    with served.client() as client, served.client(name="slow") as slow:
        client.create_topic("t")
        assert metric(served, "stentor_partition_lag_max") is None, "nobody subscribes"
        with slow.subscribe("t") as subscription:
            with client.producer("t") as producer:
                for _ in range(COUNT):
                    producer.send(bytes(1000))
            wait_until(lambda: row(served)["messages_out"] == COUNT, "everything was sent")
            found = row(served)
            assert (found["lag_max"], found["lag_sum"]) == (COUNT, COUNT)
            assert 0 < found["lag_max_s"] < 60
            assert metric(served, "stentor_partition_lag_max") == COUNT
            assert metric(served, "stentor_partition_lag_sum") == COUNT
            assert metric(served, "stentor_partition_lag_max_s") > 0
            assert listed(served, capsys, "slow")["lag"] == COUNT
            assert listed(served, capsys, "slow")["lag_s"] > 0
            [behind] = json.loads(fetch(served, "/statistics"))["lagging"]
            assert (behind["client"], behind["topic"], behind["partition"], behind["lag"]) == ("slow", "t", 0, COUNT)

            for _ in range(COUNT):
                subscription.get(timeout=10)
            wait_until(lambda: row(served)["lag_max"] == 0, "the broker hears what was taken")
            assert metric(served, "stentor_partition_lag_max_s") == 0
            assert listed(served, capsys, "slow")["lag"] == 0
            assert json.loads(fetch(served, "/statistics"))["lagging"] == []


def test_the_table_of_clients_shows_lag(served, capsys):
    with served.client() as client, served.client(name="slow") as slow, slow.subscribe("t"):
        client.publish("t", b"x")
        capsys.readouterr()
        assert run(["clients", "--url", served.url]) == 0
        heading, *lines = capsys.readouterr().out.splitlines()
        assert "LAG" in heading.split()
        assert any(line.startswith("slow") for line in lines)


def test_a_read_of_history_is_nobody_who_lags(served, raw, wait_until):
    from stentor.wire import messages
    from stentor.wire.frames import Kind

    with served.client() as client:
        for _ in range(3):
            client.publish("t", b"x")
        topic_id = client.describe_topic("t").id
        link = raw(served.url).greet()
        wish = messages.OpenStream(topic_id=topic_id, partition=0, start=0, end=10, credit=1)
        link.send(Kind.OPEN_STREAM, 7, messages.encode(wish))
        wait_until(lambda: row(served)["streams"] == 1, "it reads")
        assert row(served)["lag_max"] == 0


def test_the_list_of_those_who_lag_is_bounded(served, wait_until):
    with served.client() as client, served.client() as slow:
        client.create_topic("t")
        held = [slow.subscribe("t") for _ in range(limits.LAGGING_TOLD_MAX + 3)]
        client.publish("t", b"x")
        wait_until(lambda: row(served)["lag_sum"] == len(held), "all of them lag")
        assert len(json.loads(fetch(served, "/statistics"))["lagging"]) == limits.LAGGING_TOLD_MAX
