import asyncio
import json
import logging
import socket
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest

from stentor.http.server import HttpServer
from stentor.testing import broker


def a_status(*, ready=True, stopping=False, confirmed=True, active=""):
    return SimpleNamespace(
        ready=ready,
        stopping=stopping,
        cluster=SimpleNamespace(confirmed=confirmed, active=active),
        info=lambda: SimpleNamespace(id="b0"),
    )


def ask(status, path, method="GET"):
    """What a broker in that state answers: (status code, body)."""

    async def serve():
        server = HttpServer(status)
        await server.start("127.0.0.1", 0)
        try:
            return await asyncio.to_thread(fetch, f"http://127.0.0.1:{server.port}{path}", method)
        finally:
            await server.stop()

    return asyncio.run(serve())


def fetch(url, method="GET"):
    request = urllib.request.Request(url, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()


PATHS = ["/health/live", "/health/ready", "/health/active"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_broker_at_work_is_well_in_every_sense(path, method):
    code, body = ask(a_status(), path, method)
    assert code == 200
    assert body == b"" if method == "HEAD" else json.loads(body) == {path.rpartition("/")[2]: True}


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"ready": False}, "This broker is starting."),
        ({"ready": False, "stopping": True}, "This broker is stopping."),
        ({"confirmed": False}, "This broker hears neither the controller nor a majority of the brokers."),
    ],
)
@pytest.mark.parametrize("what", ["ready", "active"])
def test_a_broker_that_clients_should_avoid_says_why(state, reason, what):
    code, body = ask(a_status(**state), f"/health/{what}")
    assert (code, json.loads(body)) == (503, {what: False, "reason": reason})
    assert ask(a_status(**state), f"/health/{what}", "HEAD") == (503, b"")
    assert ask(a_status(**state), "/health/live")[0] == 200


def test_a_broker_that_stands_by_is_ready_but_not_active():
    assert ask(a_status(active="b1"), "/health/ready")[0] == 200
    code, body = ask(a_status(active="b1"), "/health/active")
    assert code == 503
    assert "stands by for b1" in json.loads(body)["reason"]
    assert ask(a_status(active="b0"), "/health/active")[0] == 200


def test_a_real_broker_answers_all_of_them():
    with broker(http=True) as local:
        assert [fetch(local.http_url + path)[0] for path in PATHS] == [200, 200, 200]
        local.inner.cluster.confirmed = False
        assert [fetch(local.http_url + path)[0] for path in PATHS] == [200, 503, 503]


def test_what_is_not_served_is_not_found():
    assert ask(a_status(), "/health/nothing")[0] == 404


# --- strangers ----------------------------------------------------------------------------------

OWN_NAMES = ["localhost", "LOCALHOST:7441", "127.0.0.1", "127.0.0.1:7441", "[::1]:7441", "10.1.2.3", "stentor.example"]
TELLING = ["/", "/metrics", "/statistics"]


def ask_as(local, path, host):
    request = urllib.request.Request(f"http://{local.inner.http_address}{path}", headers={"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


@pytest.mark.parametrize("path", TELLING)
def test_only_names_of_the_broker_are_told_anything(path):
    with broker(
        http=True, advertised_address="stentor.example:7440", http_hosts="metrics.example, other.example"
    ) as local:
        for host in (*OWN_NAMES, "metrics.example:80", "other.example"):
            assert ask_as(local, path, host) == 200, host
        for host in ("evil.example", "evil.example:7441", "127.0.0.1.evil.example", "localhost.evil.example", "x"):
            assert ask_as(local, path, host) == 421, host
        assert ask_as(local, "/health/ready", "evil.example") == 200


def test_an_operator_may_allow_any_name():
    with broker(http=True, http_hosts="*") as local:
        assert ask_as(local, "/statistics", "evil.example") == 200


def test_what_is_not_http_costs_few_log_lines_and_no_traceback(caplog):
    caplog.set_level(logging.INFO)
    garbage = [
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET /\x1b[2J HTTP/9\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad\r\n\r\n",
    ]
    with broker(http=True) as local:
        host, _, port = local.inner.http_address.rpartition(":")
        for number in range(60):
            with socket.create_connection((host, int(port)), timeout=10) as stranger:
                stranger.sendall(garbage[number % 3])
                stranger.recv(1000)
        assert ask_as(local, "/statistics", "localhost") == 200
    about = [record for record in caplog.records if "http" in record.name]
    assert not any(record.exc_info for record in about)
    assert all(record.getMessage().isprintable() for record in about)
    assert len(about) < 40
