"""Clients as the ZeroMQ Guide has them, for its models 4, 5 and 6, served by gateways."""

import time

import pytest
import zmq
from tests.gateways.clone_clients import (
    JavaModelSix,
    ModelFive,
    ModelFour,
    ModelSix,
    ModelThree,
    PythonModelFour,
    PythonModelSix,
    PythonModelThree,
)
from tests.gateways.conftest import RunningGateway, free_port_run

from stentor.errors import InvalidArgument
from stentor.gateways.zmq import bounds, chp


@pytest.mark.parametrize(
    ("model", "form"), [(ModelFour, "three_frames"), (PythonModelFour, "short_sequences")], ids=["C, Java", "Python"]
)
def test_clients_of_model_four_share_a_subtree_in_three_frames(shared, client, table_name, model, form):
    with RunningGateway(shared.url, table=table_name, **{form: True}) as gateway, client.table(table_name) as table:
        table.put_many({"client/old": "1", "elsewhere": "2"})
        with model(gateway.port) as one, model(gateway.port) as other:
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


@pytest.mark.parametrize(
    ("model", "form"), [(ModelThree, "three_frames"), (PythonModelThree, "short_sequences")], ids=["C, Java", "Python"]
)
def test_clients_of_model_three_share_keys_without_slashes(shared, client, table_name, model, form):
    with RunningGateway(shared.url, table=table_name, **{form: True}) as gateway, client.table(table_name) as table:
        with model(gateway.port) as one, model(gateway.port) as other:
            one.set(b"4711", b"seven")
            other.follow_until(lambda values: values == {b"4711": b"seven"})
            other.set(b"4711", b"eight")
            table.put("elsewhere", "2")
            one.follow_until(lambda values: values == {b"4711": b"eight", b"/elsewhere": b"2"})
        with model(gateway.port) as late:
            assert late.values == {b"4711": b"eight", b"/elsewhere": b"2"}


def test_a_gateway_takes_changes_with_sequences_of_either_width(gateway, table, wait_until):
    """What it sends is of one width."""
    pusher = zmq.Context.instance().socket(zmq.PUSH)
    pusher.connect(f"tcp://localhost:{gateway.port + 2}")
    for width in (4, 8):
        pusher.send_multipart([b"/%d" % width, bytes(width), b"v"])
    wait_until(lambda: {"4", "8"} <= set(table))
    pusher.close(linger=0)


def test_a_table_that_is_beyond_short_sequences_is_not_served_in_them(shared, client, table_name, monkeypatch):
    monkeypatch.setattr(chp, "SHORT_SEQUENCE_MAX", 3)
    with client.table(client.create_topic(table_name, kind="table", partitions=1).name) as table:
        with RunningGateway(shared.url, table=table_name, short_sequences=True) as gateway:
            table.put("a", "1")
            for _ in range(4):
                table.put("a", "2")
            ended = gateway.join()
            assert isinstance(ended, InvalidArgument)
            assert "is at sequence 4; four bytes hold 3" in str(ended)
        with (
            pytest.raises(InvalidArgument, match="four bytes hold 3"),
            RunningGateway(shared.url, table=table_name, short_sequences=True),
        ):
            pass
        with RunningGateway(shared.url, table=table_name, three_frames=True):
            table.put("a", "3")


def test_a_sequence_is_never_cut():
    frames = chp.message(b"/a", chp.SHORT_SEQUENCE_MAX, b"u", b"p", b"v")
    assert chp.shape(three_frames=False, short_sequences=True)(frames) == [b"/a", b"\x7f\xff\xff\xff", b"v"]
    with pytest.raises(ValueError, match="needs more than 4 bytes"):
        chp.shape(three_frames=True, short_sequences=True)(chp.message(b"/a", 2**31, b"", b"", b"v"))


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


def test_changes_of_javas_client_of_model_six_are_made(gateway, table, wait_until):
    with JavaModelSix([gateway.port]) as clone:
        clone.set_until_heard(b"a", b"1")
    wait_until(lambda: table.get("client/a") == b"1")


def test_changes_of_pythons_client_of_model_six_are_made(gateway, table, wait_until):
    with PythonModelSix([gateway.port], zmq.PUSH) as clone:
        clone.set(b"4711", b"1", ttl=30)
        wait_until(lambda: table.get("-/4711") == b"1")


def test_a_client_without_a_clock_gets_what_it_missed_while_its_gateway_was_away(shared, client, table_name):
    port = free_port_run()
    with client.table(client.create_topic(table_name, kind="table", partitions=1).name) as table:
        with RunningGateway(shared.url, table=table_name, port=port):
            clone = ModelFive(port)
            table.put("client/before", "1")
            clone.follow_until(lambda values: b"/client/before" in values)
        table.put_many({"client/before": "2", "client/meanwhile": "1"})
        table.delete("client/meanwhile")
        with clone, RunningGateway(shared.url, table=table_name, port=port, silent_s=1.0):
            table.put("client/after", "1")
            clone.follow_until(lambda values: b"/client/after" in values)
            assert clone.values == {b"/client/before": b"2", b"/client/after": b"1"}


@pytest.mark.long
@pytest.mark.parametrize("away_s", [0.0, 1.0, 4.0])
def test_a_client_of_model_six_turns_when_its_gateway_was_away_for_a_moment(shared, client, table_name, away_s):
    port = free_port_run()
    with client.table(client.create_topic(table_name, kind="table", partitions=1).name) as table:
        gateway = RunningGateway(shared.url, table=table_name, port=port)
        with ModelSix([port]) as clone:
            with gateway:
                clone.set_until_heard(b"a", b"1")
            table.put_many({f"client/{number}": "x" for number in range(bounds.REPLAYED_MAX + 1_000)})
            until = time.monotonic() + away_s
            clone.run_until(lambda _: time.monotonic() > until)
            with RunningGateway(shared.url, table=table_name, port=port, silent_s=bounds.SILENT_S):
                table.put("client/after", "1")
                clone.run_until(lambda clone: b"/client/after" in clone.values)
                assert len(clone.values) == bounds.REPLAYED_MAX + 1_002
                assert clone.turns


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
