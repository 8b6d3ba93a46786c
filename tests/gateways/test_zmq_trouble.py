"""What a gateway does when its brokers, its table or its clients are not as they should be."""

import asyncio
import socket

import pytest
import zmq
from tests.gateways.conftest import RunningGateway, free_port_run

from stentor.errors import ConnectionFailed, InvalidArgument, TopicNotFound
from stentor.gateways.zmq import chp
from stentor.gateways.zmq.collector import Collector
from stentor.gateways.zmq.statistics import GatewayStatistics
from stentor.testing import broker

SILENCE_MS = 2_500


def wait_for_silence(client):
    while client.subscriber.poll(SILENCE_MS):
        client.hear()


def test_a_gateway_that_is_cut_off_gives_no_hugz_until_it_is_back():
    with broker() as local, RunningGateway(local.url, table="config") as gateway, gateway.chp(b"/a/") as client:
        assert client.hear().key == b"/a/"
        local.stop()
        wait_for_silence(client)
        local.start()
        assert client.hear().key == b"/a/"
        client.until_connected()


def test_a_gateway_ends_when_its_table_is_deleted(shared, client, table_name):
    with RunningGateway(shared.url, table=table_name) as gateway:
        client.delete_topic(table_name)
        assert isinstance(gateway.join(), TopicNotFound)


def test_a_table_of_several_partitions_is_refused(shared, client, table_name):
    client.create_topic(table_name, kind="table", partitions=2)
    with pytest.raises(InvalidArgument, match="has 2 partitions"), RunningGateway(shared.url, table=table_name):
        pass


def test_a_topic_that_is_no_table_is_refused(shared, client, table_name):
    client.create_topic(table_name)
    with pytest.raises(InvalidArgument, match="no table"), RunningGateway(shared.url, table=table_name):
        pass


@pytest.mark.parametrize("offset", range(5))
def test_a_port_that_is_in_use_is_named(shared, table_name, offset):
    port = free_port_run()
    running = RunningGateway(shared.url, port=port, table=table_name, topics=["orders"])
    with (
        socket.create_server(("127.0.0.1", port + offset)),
        pytest.raises(ConnectionFailed, match=f":{port + offset}: the port is in use"),
        running,
    ):
        pass


@pytest.mark.parametrize(
    "options",
    [{}, {"table": "no table"}, {"topics": ["a..b"]}, {"table": "config", "port": 65_532}],
    ids=["nothing", "table", "topic", "port"],
)
def test_what_cannot_be_served_is_refused(shared, options):
    with pytest.raises(InvalidArgument), RunningGateway(shared.url, **options):
        pass


GARBAGE = {
    "nothing": b"",
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "the beginning of a greeting": b"\xff" + bytes(8),
    "an old version": b"\xff" + bytes(8) + b"\x7f\x01\x01" + bytes(100),
    "a greeting and noise": b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48) + b"\x07" * 500,
}


@pytest.mark.parametrize("said", GARBAGE.values(), ids=GARBAGE)
def test_strangers_on_the_collectors_port_disturb_nobody(gateway, said):
    with socket.create_connection(("127.0.0.1", gateway.port + 2)) as stranger, gateway.chp() as client:
        stranger.sendall(said)
        client.until_connected()


def test_a_socket_of_another_kind_is_refused_on_the_collectors_port(gateway, wait_until):
    with zmq.Context() as context, context.socket(zmq.DEALER) as wrong:
        wrong.linger = 0
        wrong.connect(f"tcp://127.0.0.1:{gateway.port + 2}")
        wait_until(lambda: gateway.counts.bad_frames)


def test_a_subscriber_that_takes_nothing_holds_up_nobody(gateway, table):
    with gateway.chp() as lazy, gateway.chp() as client:
        lazy.until_connected()
        client.until_connected()
        for start in range(0, 40_000, 1_000):
            table.put_many({f"k/{number}": b"v" * 200 for number in range(start, start + 1_000)})
            heard = {client.hear_change().key for _ in range(1_000)}
            assert len(heard - {b"/hello"}) >= 999


def test_a_client_that_leaves_in_the_middle_of_its_snapshot_disturbs_nobody(gateway, table, wait_until):
    for part in range(4):
        table.put_many({f"k/{part}/{number}": b"v" * 2_000 for number in range(5_000)})
    with gateway.chp() as gone:
        gone.snapshot.rcvhwm = 1
        gone.snapshot.send_multipart([b"ICANHAZ?", b""])
        gone.snapshot.recv_multipart()
    with gateway.chp() as client:
        assert len(client.icanhaz()[0]) == 20_000
    wait_until(lambda: not gateway.gateway._servers[0]._snapshots._sending)


def test_a_gateway_can_listen_on_a_name(shared, table_name):
    with (
        RunningGateway(shared.url, table=table_name, host="localhost") as gateway,
        gateway.chp(host="localhost") as client,
    ):
        client.until_connected()


def test_a_host_that_nobody_has_is_named(shared, table_name):
    running = RunningGateway(shared.url, table=table_name, host="no.such.host.invalid")
    with pytest.raises(InvalidArgument, match=r"cannot listen on no\.such\.host\.invalid"), running:
        pass


class RefusingCopy:
    """A table that takes no key called bad."""

    name, failure = "config", None

    def __init__(self):
        self.entries = {}
        self.made = []

    def check(self):
        pass

    async def change(self, rows, conditions, deadline, more_headers):
        if "bad" in rows:
            raise InvalidArgument("No key is called bad.")
        self.made.append(list(rows))


def test_one_refused_change_does_not_take_others_with_it():
    async def use():
        copy, counts = RefusingCopy(), GatewayStatistics()
        collector = Collector(copy, counts)
        await collector._make([chp.parse_kvset([key, bytes(8), b"v"]) for key in (b"/a", b"/bad", b"/b")])
        return copy.made, counts.changes, counts.changes_lost

    assert asyncio.run(use()) == ([["a"], ["b"]], 2, 1)
