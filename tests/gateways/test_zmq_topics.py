"""Topics for plain ZeroMQ sockets, and what the page about ZeroMQ tells people to type."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import zmq
from tests.gateways.conftest import RunningGateway

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "gateways" / "zeromq.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def sockets():
    with zmq.Context() as context:
        made = []

        def make(kind, port):
            socket = context.socket(kind)
            socket.linger = 0
            socket.rcvtimeo = socket.sndtimeo = 15_000
            socket.connect(f"tcp://127.0.0.1:{port}")
            made.append(socket)
            return socket

        yield make
        for socket in made:
            socket.close()


@pytest.fixture
def served(shared):
    with RunningGateway(shared.url, topics=["orders", "prices"]) as gateway:
        yield gateway


def subscribed(sockets, client, gateway, prefix):
    """A SUB socket whose subscription has arrived."""
    socket = sockets(zmq.SUB, gateway.port + 3)
    socket.subscribe(prefix)
    while not socket.poll(50):
        client.publish("orders", "are you there?")
    while socket.poll(200):
        socket.recv_multipart()
    return socket


def test_a_sub_socket_gets_what_is_published(served, client, sockets):
    socket = subscribed(sockets, client, served, b"orders")
    client.publish("prices", "not for this one")
    receipt = client.publish("orders", "two apples", key="42")
    topic, key, value, position = socket.recv_multipart()
    assert (topic, key, value) == (b"orders", b"42", b"two apples")
    client.publish("orders", "three")
    with client.subscribe("orders", start=position.decode()) as subscription:
        assert subscription.get(timeout=10).offset == receipt.offset + 1


def test_a_push_socket_publishes(served, client, sockets):
    with client.subscribe(["orders", "prices"]) as subscription:
        pusher = sockets(zmq.PUSH, served.port + 4)
        pusher.send_multipart([b"orders", b"42", b"with a key"])
        pusher.send_multipart([b"orders", b"", b"without"])
        pusher.send_multipart([b"prices", b"two frames"])
        got = [subscription.get(timeout=10) for _ in range(3)]
    found = {(message.topic, message.key, message.value) for message in got}
    assert found == {
        ("orders", b"42", b"with a key"),
        ("orders", None, b"without"),
        ("prices", None, b"two frames"),
    }


def test_what_no_topic_takes_is_counted_and_dropped(served, client, sockets, wait_until):
    pusher = sockets(zmq.PUSH, served.port + 4)
    for frames in ([b"orders"], [b"elsewhere", b"", b"x"], [b"orders", b"k", b"v", b"more"], [b""]):
        pusher.send_multipart(frames)
    pusher.send_multipart([b"orders", b"", b"good"])
    wait_until(lambda: served.counts.messages_in == 1)
    assert served.counts.bad_frames == 4
    assert "elsewhere" not in {topic.name for topic in client.topics()}


@pytest.mark.parametrize(("code", "prints"), BLOCKS, ids=["table", "topics"])
def test_the_page_does_what_it_says(shared, table_name, code, prints):
    with RunningGateway(shared.url, table=table_name, topics=["orders"]) as gateway:
        code = re.sub(r"\b55(5|6)(\d)\b", lambda found: str(int(found[0]) - 5556 + gateway.port), code)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (done.stdout, done.stderr) == (prints, "")
