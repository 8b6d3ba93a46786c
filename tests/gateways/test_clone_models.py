"""Clients as the ZeroMQ Guide has them, for its models 4, 5 and 6, served by gateways."""

import pytest
import zmq
from tests.gateways.clone_clients import ModelFive, ModelFour, ModelSix
from tests.gateways.conftest import RunningGateway


def test_clients_of_model_four_share_a_subtree_in_three_frames(shared, client, table_name):
    with RunningGateway(shared.url, table=table_name, three_frames=True) as gateway, client.table(table_name) as table:
        table.put_many({"client/old": "1", "elsewhere": "2"})
        with ModelFour(gateway.port) as one, ModelFour(gateway.port) as other:
            assert one.values == other.values == {b"/client/old": b"1"}
            table.put("client/live", "2")
            for clone in (one, other):
                clone.follow_until(lambda values: b"/client/live" in values)
            one.set(b"7", b"seven")
            other.follow_until(lambda values: values.get(b"/client/7") == b"seven")
            other.set(b"old", b"")
            one.follow_until(lambda values: b"/client/old" not in values)
            assert one.values == other.values
            table.sync()
            assert dict(table) == {"client/live": b"2", "client/7": b"seven", "elsewhere": b"2"}


def test_clients_of_model_five_share_a_subtree_in_five_frames(gateway, table):
    table.put("client/old", "1")
    with ModelFive(gateway.port) as one, ModelFive(gateway.port) as other:
        table.put("client/live", "2")
        for clone in (one, other):
            clone.follow_until(lambda values: b"/client/live" in values)
        one.set(b"7", b"seven", b"ttl=30\n")
        other.follow_until(lambda values: values.get(b"/client/7") == b"seven")
        assert one.values == other.values


@pytest.mark.parametrize("kind", [zmq.PUB, pytest.param(zmq.PUSH, marks=pytest.mark.long)], ids=["pub", "push"])
def test_a_client_of_model_six_turns_to_the_other_gateway_and_back(shared, client, table_name, kind):
    with RunningGateway(shared.url, table=table_name) as backup:
        primary = RunningGateway(shared.url, table=table_name)
        with ModelSix([primary.port, backup.port], kind) as clone:
            with primary:
                clone.set_until_heard(b"a", b"1")
                assert clone.current == 0
            clone.run_until(lambda clone: clone.current == 1 and clone.state == "active")
            assert clone.values == clone.mine
            clone.set_until_heard(b"b", b"2")
        with client.table(table_name) as table:
            assert dict(table) == {"client/a": b"1", "client/b": b"2"}


def got(gateway):
    """How many changes a gateway has taken."""
    return gateway.counts.changes + gateway.counts.duplicates


def test_a_change_that_two_gateways_get_is_made_once(shared, client, table_name, wait_until):
    count = 300
    with (
        RunningGateway(shared.url, table=table_name) as one,
        RunningGateway(shared.url, table=table_name) as other,
        ModelSix([one.port, other.port], zmq.PUB) as clone,
        client.table(table_name) as table,
    ):
        clone.set_until_heard(b"hello", b"1")
        wait_until(lambda: all(clone.set(b"hello", b"2") or got(gateway) for gateway in (one, other)))
        with table.watch("client/k/") as watch:
            for index in range(count):
                clone.set(b"k/%d" % (index % 10), b"%d" % index)
            clone.run_until(lambda clone: clone.values.get(b"/client/k/9") == b"%d" % (count - 1))
            changes = [watch.get(timeout=10) for _ in range(count)]
            assert [int(change.new.value) for change in changes] == list(range(count))
            wait_until(lambda: one.counts.duplicates + other.counts.duplicates >= count)
            table.put("client/k/end", "1")
            assert watch.get(timeout=10).key == "client/k/end"
        assert one.counts.changes_lost == other.counts.changes_lost == 0
