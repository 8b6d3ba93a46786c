import json

import pytest


@pytest.fixture
def work(cli, client):
    """A queue with two jobs that wait, and one that is a dead letter."""
    made = cli("queue", "create", "work", "--max-attempts", "2", "--lease", "5")
    assert made.code == 0, made.err
    with client.queue("work") as queue:
        queue.put("bad", key="7")
        queue.nack(queue.get(timeout=5), dead=True, error="spoilt")
        while not queue.describe().died:
            queue.peek()
        queue.close()
        queue.put("one", priority=3)
        queue.put("two", delay=100)
    yield client
    client.delete_topic("work")
    client.delete_topic("work.dead")


def test_queues_are_listed_described_and_looked_into(cli, work):
    listed = cli("queue", "list").out.splitlines()
    assert listed[0].split()[:4] == ["QUEUE", "WAITING", "HELD", "DYING"]
    assert listed[1].split()[:6] == ["work", "2", "0", "0", "0", "1"]
    described = cli("queue", "describe", "work")
    assert described.code == 0, described.err
    assert "attempts        2" in described.out
    assert "in work.dead" in described.out
    told = json.loads(cli("queue", "describe", "work", "--json").out)
    assert (told["settings"]["lease_s"], told["partitions"][0]["waiting"]) == (5, 2)
    peeked = json.loads(cli("queue", "peek", "work", "--json").out)
    assert [(each["value"], each["state"]) for each in peeked] == [("one", "waiting"), ("two", "delayed")]
    assert "one" in cli("queue", "peek", "work").out


def test_dead_letters_are_put_back_and_queues_purged(cli, work):
    assert "needs a confirmation" in cli("queue", "redrive", "work").err
    assert cli("queue", "redrive", "work", "--yes").out == "put 1 jobs back into work\n"
    assert "needs a confirmation" in cli("queue", "purge", "work").err
    assert cli("queue", "purge", "work", "--yes").out == "ended 3 jobs of work\n"
    assert cli("queue", "alter", "work", "--max-attempts", "9").code == 0
    assert work.describe_queue("work").settings.max_attempts == 9


def test_what_is_no_queue_is_told(cli, client):
    assert "There is no queue nothing" in cli("queue", "peek", "nothing").err
    assert "No setting was named" in cli("queue", "alter", "nothing").err
    client.create_topic("plain")
    assert "is no queue" in cli("queue", "describe", "plain").err
    client.delete_topic("plain")
