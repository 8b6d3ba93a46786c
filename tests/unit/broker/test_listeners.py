"""Brokers in several networks: each client is told the addresses of the listener that it came in by."""

import socket

import pytest

from stentor import Client
from stentor.broker import load_config
from stentor.broker.listener_plans import ListenerPlan, plan_listeners
from stentor.errors import ConnectionFailed, InvalidArgument
from stentor.testing import broker

TWO = "internal=10.0.0.1:7440, public=0.0.0.0:7450"


def plans(**settings):
    return plan_listeners(load_config(settings))


def test_a_broker_that_says_nothing_has_one_listener():
    assert plans() == [ListenerPlan("default", "127.0.0.1", 7440)]
    assert plans(host="::1", port=1, advertised_address="b:2") == [ListenerPlan("default", "::1", 1, "b:2")]


def test_several_listeners_have_names_and_the_first_stays_first():
    assert plans(listeners=TWO, advertised_addresses="public=broker1.example:443") == [
        ListenerPlan("internal", "10.0.0.1", 7440),
        ListenerPlan("public", "0.0.0.0", 7450, "broker1.example:443"),
    ]
    assert plans(listeners="b=[::1]:1,a=h:2") == [ListenerPlan("b", "[::1]", 1), ListenerPlan("a", "h", 2)]


def test_flag_variable_and_file_say_it_alike(tmp_path):
    file = tmp_path / "stentor.toml"
    file.write_text('listeners = ["internal=10.0.0.1:7440", "public=0.0.0.0:7450"]\n')
    same = plans(listeners=TWO)
    assert plan_listeners(load_config({}, {}, file)) == same
    assert plan_listeners(load_config({}, {"STENTOR_LISTENERS": TWO})) == same


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"listeners": "10.0.0.1:7440"}, "name=host:port"),
        ({"listeners": "a=:7440"}, "name=host:port"),
        ({"listeners": "a=h:many"}, "name=host:port"),
        ({"listeners": "a=h:70000"}, "name=host:port"),
        ({"listeners": "A b=h:1"}, "name=host:port"),
        ({"listeners": "a=h:1,a=h:2"}, "twice"),
        ({"listeners": ",".join(f"n{number}=h:{number}" for number in range(9))}, "more than"),
        ({"listeners": TWO, "advertised_addresses": "other=h:1"}, "no listener"),
        ({"listeners": TWO, "advertised_addresses": "public=h:0"}, "no port"),
        ({"listeners": TWO, "advertised_address": "h:1"}, "advertised_addresses"),
        ({"advertised_addresses": "public=h:1"}, "needs listeners"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused_in_words(settings, word):
    with pytest.raises(InvalidArgument, match="setting of the broker is wrong") as caught:
        load_config(settings)
    assert word in caught.value.message


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_clients_are_told_the_address_of_their_own_listener():
    inner, outer = free_port(), free_port()
    settings = {
        "listeners": f"internal=127.0.0.1:{inner},public=127.0.0.1:{outer}",
        "advertised_addresses": f"public=localhost:{outer}",
    }
    with broker(**settings) as local:
        assert local.inner.address == f"127.0.0.1:{inner}"
        for port, address in ((inner, f"127.0.0.1:{inner}"), (outer, f"localhost:{outer}")):
            with Client(f"127.0.0.1:{port}") as client:
                assert client.broker().address == address
                assert [info.address for info in client._core.links.brokers.values()] == [address]
                client.publish("orders", address)
                local.inner.loop.call_soon_threadsafe(local.inner.parts.routes.brokers_changed)
                client.create_topic(f"t-{port}")  # asked after the change, so answered after it too
                assert [info.address for info in client._core.links.brokers.values()] == [address]


def test_a_listener_that_cannot_be_had_leaves_none_behind():
    inner = free_port()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        outer = taken.getsockname()[1]
        with pytest.raises(ConnectionFailed), broker(listeners=f"a=127.0.0.1:{inner},b=127.0.0.1:{outer}"):
            pass
    with socket.create_server(("127.0.0.1", inner)):
        pass
