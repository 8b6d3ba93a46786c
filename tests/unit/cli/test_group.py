import json

import msgspec
import pytest

from stentor.cli import group


@pytest.fixture
def billing(client):
    """A group that has done three messages of four."""
    client.create_topic("shop", partitions=2)
    for partition in (0, 0, 0, 1):
        client.publish("shop", "x", partition=partition)
    with client.group("billing", "shop", auto_commit=False) as group:
        while sum(group.positions().values()) < 3:
            group.get(timeout=10)
            group.commit()
    yield client
    client.delete_topic("shop")


def test_groups_are_listed_and_described(cli, billing):
    listed = cli("group", "list").out.splitlines()
    assert listed[0].split()[:3] == ["GROUP", "MEMBERS", "TOPICS"]
    assert listed[1].split()[:3] == ["billing", "0", "-"]
    described = cli("group", "describe", "billing")
    assert described.code == 0, described.err
    assert "lag         1" in described.out
    told = json.loads(cli("group", "describe", "billing", "--json").out)
    assert sum(each["lag"] for each in told["partitions"]) == 1
    assert sum(each["behind_s"] > 0 for each in told["partitions"]) == 1
    assert json.loads(cli("topic", "describe", "shop", "--json").out)["groups"] == ["billing"]
    with billing.group("billing", "shop"):
        (told,) = json.loads(cli("group", "list", "--json").out)
        assert told["members"][0]["topics"] == ["shop"]
        assert "has 1 members" in cli("group", "delete", "billing", "--yes").err
        assert "has 1 members" in cli("group", "reset", "billing", "--to", "earliest", "--yes").err


def test_groups_are_reset_and_deleted(cli, billing):
    assert "needs a confirmation" in cli("group", "reset", "billing", "--to", "earliest").err
    told = json.loads(cli("group", "reset", "billing", "--to", "earliest", "--yes", "--json").out)
    assert [each["position"] for each in told["partitions"]] == [0, 0]
    with billing.group("billing", "shop") as group:
        assert len([group.get(timeout=10) for _ in range(4)]) == 4
    assert "needs a confirmation" in cli("group", "delete", "billing").err
    assert cli("group", "delete", "billing", "--yes") == (0, "deleted group billing\n", "")
    assert billing.cursors("shop") == []
    assert "There is no group billing" in cli("group", "describe", "billing").err
    assert "There is no group billing" in cli("group", "delete", "billing", "--yes").err


def test_wrong_names_are_told_in_one_sentence(cli):
    assert "cannot be called recorder" in cli("group", "describe", "recorder").err
    assert "There is no group nobody" in cli("group", "describe", "nobody").err


def test_transactions_that_wait_for_a_member_are_shown(billing, capsys):
    found = billing.describe_group("billing")
    group._print(found, as_json=False)
    assert "unfinished" not in capsys.readouterr().out
    group._print(msgspec.structs.replace(found, unfinished=2), as_json=False)
    assert "unfinished  2 transactions" in capsys.readouterr().out
