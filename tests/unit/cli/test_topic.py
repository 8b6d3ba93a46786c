import json

import pyarrow as pa
import pytest

import stentor


def test_create_describe_alter_and_delete(cli, client):
    made = cli(
        "topic", "create", "shop.orders", "--partitions", "3", "--retention-age", "7d", "--retention-bytes", "1GB"
    )
    assert made.code == 0, made.err
    assert "shop.orders" in made.out
    settings = client.describe_topic("shop.orders").settings
    assert (settings.partitions, settings.retention_age_s, settings.retention_bytes) == (3, 604_800, 10**9)

    assert cli("topic", "alter", "shop.orders", "--retention-age", "none", "--flush", "interval").code == 0
    described = json.loads(cli("topic", "describe", "shop.orders", "--json").out)
    assert described["settings"].get("retention_age_s") is None
    assert described["settings"]["flush"] == "interval"
    assert len(described["partitions"]) == 3

    gone = cli("topic", "delete", "shop.orders", "--yes")
    assert gone == (0, "deleted shop.orders\n", "")
    with pytest.raises(stentor.TopicNotFound):
        client.describe_topic("shop.orders")


def test_internal_topics_and_their_sizes_are_listed_when_asked_for(cli, client):
    client.publish("_spark.application.staged", "x" * 5000)
    client.publish("listed", "x")
    assert not any(line.startswith("_") for line in cli("topic", "list").out.splitlines())
    lines = cli("topic", "list", "--all").out.splitlines()
    staged = next(line for line in lines if line.startswith("_spark.application.staged"))
    assert "5.1 KiB" in staged
    assert any(line.startswith("listed") for line in lines)
    assert cli("topic", "list", "*", "--all").out.count("_spark") == 0
    client.delete_topic("_spark.application.staged")
    client.delete_topic("listed")


def test_describe_shows_what_is_recorded_and_what_is_kept_for_lack_of_it(cli, client):
    assert cli("topic", "create", "lake", "--retention-bytes", "0", "--keep-unrecorded").code == 0
    for number in range(3):
        client.publish("lake", str(number))
    client.mark_recorded("lake", {0: 2})
    lines = cli("topic", "describe", "lake").out.splitlines()
    assert any("recorded only" in line for line in lines)
    assert lines[-2].split() == ["PARTITION", "RECORDED", "NOT", "RECORDED", "KEPT", "LONGER"]
    assert lines[-1].split() == ["0", "2", "1", "0"]
    assert cli("topic", "alter", "lake", "--delete-unrecorded").code == 0
    assert not client.describe_topic("lake").settings.keep_unrecorded
    client.delete_topic("lake")


def test_replicas_and_placement_are_said_and_shown(cli, client):
    made = cli("topic", "create", "placed", "--replicas", "1", "--min-replicas", "1", "--placement", "active-passive")
    assert made.code == 0, made.err
    assert "1, at least 1, active-passive" in made.out
    assert cli("topic", "alter", "placed", "--placement", "spread").code == 0
    assert client.describe_topic("placed").settings.placement == "spread"
    assert "brokers" in cli("topic", "create", "wide", "--replicas", "3").err
    client.delete_topic("placed")


def test_a_partition_at_work_is_not_recovered(cli, client):
    client.publish("healthy", "x")
    assert "needs a confirmation" in cli("topic", "recover", "healthy").err
    done = cli("topic", "recover", "healthy", "--yes")
    assert done == (0, "healthy/0: left as it is: healthy/0 is at work.\n", "")
    assert cli("topic", "recover", "healthy", "--partition", "5", "--yes").code != 0
    assert client.publish("healthy", "y").offset == 1
    client.delete_topic("healthy")


def test_list_is_a_table_of_those_that_match(cli, client):
    client.create_topic("list.b")
    client.create_topic("list.a")
    client.publish("list.a", "x")
    lines = cli("topic", "list", "list.*").out.splitlines()
    assert lines[0].split() == ["TOPIC", "KIND", "PARTITIONS", "MESSAGES", "SIZE", "FLUSH", "RETENTION", "HEALTH"]
    assert [line.split()[0] for line in lines[1:]] == ["list.a", "list.b"]
    assert lines[1].split()[3] == "1"
    assert [topic["name"] for topic in json.loads(cli("topic", "list", "list.>", "--json").out)]


def test_creating_twice_fails_unless_that_is_fine(cli):
    assert cli("topic", "create", "twice").code == 0
    again = cli("topic", "create", "twice")
    assert again.code == 1
    assert again.err.startswith("stentor: ")
    assert "twice" in again.err
    assert cli("topic", "create", "twice", "--exist-ok").code == 0


def test_creating_again_with_other_settings_says_which_differ(cli, client):
    assert cli("topic", "create", "settled", "--replicas", "0", "--retention-age", "7d").err == ""
    again = cli("topic", "create", "settled", "--exist-ok", "--partitions", "3", "--retention-age", "none")
    assert again.code == 0
    assert "retention_age_s is 604800, not none, partitions is 1, not 3." in again.err
    assert again.err.count("\n") == 1
    assert cli("topic", "create", "settled", "--exist-ok", "--retention-age", "7d", "--replicas", "0").err == ""
    client.delete_topic("settled")


@pytest.mark.parametrize("command", ["create", "alter"])
def test_a_minimum_that_no_chain_could_have_is_refused(cli, command):
    failed = cli("topic", command, "never", "--replicas", "1", "--min-replicas", "2")
    assert (failed.code, failed.out) == (2, "")
    assert failed.err.startswith("stentor: --min-replicas 2 is above --replicas 1")


@pytest.mark.parametrize("name", ["", "x" * 201])
@pytest.mark.parametrize("command", ["create", "describe", "delete", "recover"])
def test_a_name_of_a_wrong_length_is_told_as_publish_does(cli, name, command):
    yes = ["--yes"] if command in {"delete", "recover"} else []
    failed = cli("topic", command, name, *yes)
    assert failed == (2, "", f"stentor: The topic name has {len(name)} characters; it needs 1 to 200.\n")
    assert failed == cli("publish", name, "x")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("topic", "list", "a..b"), 2),
        (("topic", "describe", "no.such"), 1),
        (("topic", "alter", "no.such", "--flush", "always"), 1),
        (("topic", "delete", "no.such", "--yes"), 1),
        (("topic", "create", "bad name!"), 2),
        (("topic", "create", "bad.flush", "--flush", "sometimes"), 2),
        (("topic", "create", "bad.segment", "--segment-bytes", "1"), 2),
        (("topic", "create", "bad.partitions", "--partitions", "99999"), 2),
        (("topic", "alter", "twice"), 2),
        (("topic", "delete", "twice"), 2),
    ],
)
def test_what_cannot_be_done_is_one_sentence(cli, arguments, code):
    failed = cli(*arguments)
    assert failed.out == ""
    assert failed.err.startswith("stentor: ")
    assert failed.err.count("\n") == 1
    assert failed.code == code, failed.err


def test_describe_shows_the_schema_of_a_tabular_topic(cli, client):
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("tags", pa.list_(pa.string()))])
    client.tabular("sales", schema)
    lines = cli("topic", "describe", "sales").out.splitlines()
    (line,) = [line for line in lines if line.startswith("schema")]
    assert line.split(maxsplit=1)[1] == "version 1: id int64 not null, tags list<string>"
    described = json.loads(cli("topic", "describe", "sales", "--json").out)
    assert described["schemas"][0][0] == {"name": "id", "type": "int64", "nullable": False}


def test_describe_lists_the_groups_of_a_topic_with_their_lags(cli, client):
    client.create_topic("grouped")
    for _ in range(3):
        client.publish("grouped", "x")
    assert "groups" not in cli("topic", "describe", "grouped").out
    client.move_cursor("grouped", "billing", {0: 1})
    assert "groups        billing (2 behind)" in cli("topic", "describe", "grouped").out


def test_a_memory_topic_is_made_and_shown_as_one(cli, client):
    made = cli("topic", "create", "telemetry", "--durability", "memory", "--retention-bytes", "1MiB")
    assert made.code == 0, made.err
    assert client.describe_topic("telemetry").settings.durability == "memory"
    assert "durability  memory" in cli("topic", "describe", "telemetry").out
    assert "in memory, 1.0 MiB" in cli("topic", "list").out
    refused = cli("topic", "create", "wrong", "--durability", "memory", "--kind", "table")
    assert refused.code == 2
    assert "kept in memory" in refused.err
