import json

import pytest


@pytest.fixture
def topic(client):
    client.create_topic("shop", partitions=2)
    for partition in (0, 0, 0, 1):
        client.publish("shop", "x", partition=partition)
    yield "shop"
    client.delete_topic("shop")


def test_cursors_are_moved_listed_and_deleted(cli, client, topic):
    assert cli("cursor", "list", topic).out.split()[:4] == ["CURSOR", "PARTITION", "POSITION", "LAG"]
    moved = cli("cursor", "move", topic, "billing", "--to", "0:2")
    assert moved.code == 0, moved.err
    lines = moved.out.splitlines()
    assert lines[1].split()[:4] == ["billing", "0", "2", "1"]
    assert lines[2].split()[:4] == ["billing", "1", "-", "1"]
    assert cli("cursor", "move", topic, "billing", "--at", "latest").code == 0
    assert client.cursors(topic)[0].positions == {0: 3, 1: 1}
    assert cli("cursor", "move", topic, "billing", "--to", "0:1", "--to", "1:0").code == 0
    assert client.cursors(topic)[0].positions == {0: 3, 1: 1}
    assert cli("cursor", "move", topic, "billing", "--at", "earliest", "--back").code == 0
    (listed,) = json.loads(cli("cursor", "list", topic, "--json").out)
    assert (listed["name"], listed["positions"], listed["lag"]) == ("billing", {"0": 0, "1": 0}, {"0": 3, "1": 1})
    assert listed["moved_by"]
    assert "needs a confirmation" in cli("cursor", "delete", topic, "billing").err
    assert cli("cursor", "delete", topic, "billing", "--yes") == (0, "deleted cursor billing of shop\n", "")
    assert "has no cursor billing" in cli("cursor", "delete", topic, "billing", "--yes").err


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ((), "missing or named twice"),
        (("--to", "0:1", "--at", "latest"), "missing or named twice"),
        (("--to", "0"), "no position"),
        (("--to", "a:1"), "no position"),
        (("--to", "0:99"), "ends at 3"),
        (("--to", "7:0"), "no number 7"),
    ],
    ids=["nothing", "both", "no offset", "no number", "too far", "no partition"],
)
def test_a_move_that_cannot_be_is_refused_in_one_sentence(cli, topic, wrong, why):
    done = cli("cursor", "move", topic, "billing", *wrong)
    assert done.code != 0
    assert why in done.err


def test_topics_wait_for_cursors(cli, client):
    waits = ("--wait-for-cursor", "billing", "--wait-bytes", "1MiB")
    made = cli("topic", "create", "kept", "--retention-bytes", "0", *waits)
    assert made.code == 0, made.err
    settings = client.describe_topic("kept").settings
    assert (settings.retention_waits_for, settings.retention_wait_bytes) == ("billing", 2**20)
    client.publish("kept", "x")
    client.move_cursor("kept", "billing", {0: 1})
    lines = cli("topic", "describe", "kept").out.splitlines()
    assert any("waits for billing, up to 1" in line for line in lines)
    assert lines[-2].split() == ["PARTITION", "PASSED", "NOT", "PASSED", "KEPT", "LONGER"]
    assert lines[-1].split() == ["0", "1", "0", "0"]
    assert cli("topic", "alter", "kept", "--wait-for-cursor", "none", "--wait-bytes", "none").code == 0
    settings = client.describe_topic("kept").settings
    assert (settings.retention_waits_for, settings.retention_wait_bytes) == ("", None)
    assert "name of a cursor" in cli("topic", "alter", "kept", "--wait-for-cursor", "a b").err
    client.delete_topic("kept")
