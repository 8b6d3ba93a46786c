import asyncio
import json
import logging
import socket
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace

import pytest
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from stentor import limits
from stentor.errors import StorageError
from stentor.http import server as server_module
from stentor.http.metrics import render
from stentor.http.server import HttpServer, _Guests
from stentor.security.permissions import Permissions
from stentor.testing import broker
from stentor.wire.statistics import (
    BrokerCounts,
    BrokerStatistics,
    ChainStatistics,
    Health,
    PartitionStatistics,
    Problem,
)

WELL = Health()


def a_status(*, ready=True, stopping=False, confirmed=True, active="", health=WELL):
    return SimpleNamespace(
        ready=ready,
        stopping=stopping,
        confirmed=confirmed,
        active=active,
        info=lambda: SimpleNamespace(id="b0"),
        health=lambda: health,
    )


def ask(status, path, method="GET"):
    """What a broker in that state answers: (status code, body)."""

    async def serve():
        server = HttpServer(status, permissions=Permissions())
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


def test_what_is_wrong_is_a_warning_unless_clients_should_go_elsewhere():
    full = Problem("error", "disk", "The disk is full.", "")
    warned = {"ready": True, "warnings": ["The disk is full."]}
    assert ask(a_status(health=Health(problems=[full])), "/health/ready")[0] == 200
    assert json.loads(ask(a_status(health=Health(problems=[full])), "/health/ready")[1]) == warned
    code, body = ask(a_status(health=Health(unready="The disk is full.", problems=[full])), "/health/ready")
    assert (code, json.loads(body)) == (503, {"ready": False, "reason": "The disk is full."})


def test_a_broker_that_stands_by_is_ready_but_not_active():
    assert ask(a_status(active="b1"), "/health/ready")[0] == 200
    code, body = ask(a_status(active="b1"), "/health/active")
    assert code == 503
    assert "stands by for b1" in json.loads(body)["reason"]
    assert ask(a_status(active="b0"), "/health/active")[0] == 200


def test_a_real_broker_answers_all_of_them():
    with broker(http=True) as local:
        assert [fetch(local.http_url + path)[0] for path in PATHS] == [200, 200, 200]
        local.inner.parts.ground.standing.confirmed = False
        assert [fetch(local.http_url + path)[0] for path in PATHS] == [200, 503, 503]


def test_what_is_not_served_is_not_found():
    assert ask(a_status(), "/health/nothing")[0] == 404


# --- strangers ----------------------------------------------------------------------------------

OWN_NAMES = ["localhost", "LOCALHOST:7441", "127.0.0.1", "127.0.0.1:7441", "[::1]:7441", "10.1.2.3", "stentor.example"]
TELLING = ["/", "/metrics", "/statistics"]


def ask_as(local, path, host):
    request = urllib.request.Request(f"http://{local.inner.info().http_address}{path}", headers={"Host": host})
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
        host, _, port = local.inner.info().http_address.rpartition(":")
        for number in range(60):
            with socket.create_connection((host, int(port)), timeout=10) as stranger:
                stranger.sendall(garbage[number % 3])
                stranger.recv(1000)
        assert ask_as(local, "/statistics", "localhost") == 200
    about = [record for record in caplog.records if "http" in record.name]
    assert not any(record.exc_info for record in about)
    assert all(record.getMessage().isprintable() for record in about)
    assert len(about) < 40


LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


@LOOPS
def test_headers_that_come_drop_by_drop_are_closed_in_time(monkeypatch, loop):
    """A slow loris: each line resets nothing."""
    monkeypatch.setattr(limits, "HTTP_REQUEST_S", 0.5)
    monkeypatch.setattr(limits, "SWEEP_S", 0.1)

    async def drip():
        server = HttpServer(a_status(), permissions=Permissions())
        await server.start("127.0.0.1", 0)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET /health/live HTTP/1.1\r\n")
            closed = asyncio.ensure_future(reader.read())
            for _ in range(100):
                writer.write(b"X-Drop: 1\r\n")
                done, _ = await asyncio.wait({closed}, timeout=0.1)
                if done:
                    return True
        finally:
            writer.close()
            await server.stop()
        return False

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(drip())


async def held(server, path=b""):
    """A connection that stays, with or without a request on it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    if path:
        writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return reader, writer


async def crowded(crowd, path=b"", connections_max=8):
    """Fill a server with connections; return what health says then, and how many are left."""
    server = HttpServer(a_status(), permissions=Permissions(), connections_max=connections_max)
    await server.start("127.0.0.1", 0)
    guests = []
    try:
        guests = [await held(server, path) for _ in range(crowd)]
        if path == b"/health/live":
            for reader, _ in guests:
                with suppress(asyncio.IncompleteReadError, ConnectionError):
                    await reader.readuntil(b"\r\n\r\n")
        url = f"http://127.0.0.1:{server.port}/health/live"
        answers = [(await asyncio.to_thread(fetch, url, "GET"))[0] for _ in range(5)]
        return answers, len(server._guests._guests)
    finally:
        for _, writer in guests:
            writer.close()
        await server.stop()


@LOOPS
@pytest.mark.parametrize("path", [b"", b"/health/live"], ids=["that ask nothing", "that have been answered"])
def test_health_is_answered_beside_any_number_of_connections(loop, path):
    with asyncio.Runner(loop_factory=loop) as runner:
        answers, left = runner.run(crowded(30, path))
    assert answers == [200] * 5
    assert left <= 8


def test_who_waits_for_an_answer_stays_before_those_who_ask_nothing():
    class Guest:
        def __init__(self, host, asking):
            self.host, self.asking = host, asking
            self.transport = None

    async def run():
        guests = _Guests(3)
        first, asking, idle = Guest("a", 1), Guest("a", 1), Guest("a", 0)
        for one in (first, asking, idle, Guest("b", 0)):
            guests.arrived(one)
        left = [idle not in guests._guests]
        guests.arrived(Guest("b", 0))
        return [*left, first not in guests._guests, asking in guests._guests]

    assert asyncio.run(run()) == [True, True, True]


def test_a_scrape_lets_the_loop_look_at_others_between_slices():
    with broker(http=True) as local, local.client() as client:
        client.create_topic("t", partitions=8)
        inner, turns = local.inner, []

        async def scrape():
            partition = next(iter(inner.partitions.values()))
            inner.partitions.clear()
            inner.partitions.update(dict.fromkeys(range(5 * limits.STATISTICS_SLICE), partition))
            done = asyncio.ensure_future(inner.gather_statistics())
            shared = asyncio.ensure_future(inner.gather_statistics())
            while not done.done():
                turns.append(1)
                await asyncio.sleep(0)
            return len((await done).partitions), (await shared) is (await done)

        kept = dict(inner.partitions)
        try:
            counted = asyncio.run_coroutine_threadsafe(scrape(), inner.loop).result(20)
        finally:
            inner.partitions.clear()
            inner.partitions.update(kept)
        assert counted == (5 * limits.STATISTICS_SLICE, True)
        assert len(turns) >= 5


@pytest.mark.parametrize("path", ["/metrics", "/statistics", "/"])
def test_who_asks_while_statistics_are_written_shares_the_next_writing(path, monkeypatch):
    asked, gathered, writing, overlaps = threading.Semaphore(0), [], threading.Lock(), []
    all_asked = threading.Event()

    def counted(function):
        def write(*args):
            overlaps.append(not writing.acquire(blocking=False))
            assert all_asked.wait(20)
            try:
                return function(*args)
            finally:
                writing.release()

        return write

    for name in ("_text", "_json", "_page"):
        monkeypatch.setattr(server_module, name, counted(getattr(server_module, name)))
    written = HttpServer._written

    async def ask_for(self, write):
        asked.release()
        return await written(self, write)

    monkeypatch.setattr(HttpServer, "_written", ask_for)

    def wait_for_all():
        for _ in range(60):
            assert asked.acquire(timeout=20)
        all_asked.set()

    async def gather():
        gathered.append(None)
        return BrokerStatistics(broker=BrokerCounts(id="b0", uptime_s=len(gathered)), health=WELL)

    async def serve():
        status = a_status()
        status.gather_statistics = gather
        status.info = lambda: SimpleNamespace(id="b0", version="1", address="here")
        server = HttpServer(status, permissions=Permissions())
        await server.start("127.0.0.1", 0)
        loop = asyncio.get_running_loop()
        try:
            with ThreadPoolExecutor(61) as threads:
                url = f"http://127.0.0.1:{server.port}"
                asked = [loop.run_in_executor(threads, fetch, url + (path, "/metrics")[each % 2]) for each in range(60)]
                await loop.run_in_executor(threads, wait_for_all)
                return await asyncio.gather(*asked)
        finally:
            await server.stop()

    answers = asyncio.run(serve())
    assert {code for code, _ in answers} == {200}
    assert not any(overlaps)
    assert len(gathered) <= 3, "of 60: the first, and the next one of each path"
    assert len({body for _, body in answers}) <= len(gathered)


def test_statistics_that_cannot_be_gathered_are_gathered_again_for_the_next():
    async def fails():
        raise StorageError("The disk is gone.")

    async def serve():
        status = a_status()
        status.gather_statistics = fails
        server = HttpServer(status, permissions=Permissions())
        await server.start("127.0.0.1", 0)
        try:
            url = f"http://127.0.0.1:{server.port}/statistics"
            return [(await asyncio.to_thread(fetch, url))[0] for _ in range(2)]
        finally:
            await server.stop()

    assert asyncio.run(serve()) == [500, 500]


def test_large_answers_are_sent_in_slices_and_whole(monkeypatch):
    monkeypatch.setattr(server_module, "_SLICE_BYTES", 1_000)
    shown = BrokerStatistics(broker=BrokerCounts(id="b0"), health=WELL)

    async def gather():
        return shown

    async def serve():
        status = a_status()
        status.gather_statistics = gather
        server = HttpServer(status, permissions=Permissions())
        await server.start("127.0.0.1", 0)
        try:
            url = f"http://127.0.0.1:{server.port}/metrics"
            return [await asyncio.to_thread(fetch, url, method) for method in ("GET", "HEAD")]
        finally:
            await server.stop()

    body = render(shown)[0]
    assert len(body) > 2_000
    assert asyncio.run(serve()) == [(200, body), (200, b"")]


def test_labels_of_metrics_are_escaped_and_the_text_can_be_parsed():
    chain = ChainStatistics(replicas=1, replicas_wanted=3)
    row = PartitionStatistics(topic='a"b\\c', partition=3, messages_in=7, chain=chain)
    body, _ = render(BrokerStatistics(broker=BrokerCounts(refusals=2), partitions=[row]))
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    (sample,) = families["stentor_partition_messages_in"].samples
    assert (sample.labels, sample.value) == ({"topic": 'a"b\\c', "partition": "3"}, 7.0)
    assert families["stentor_partition_replicas_wanted"].samples[0].value == 3
    assert families["stentor_broker_refusals"].type == "counter"


def test_statistics_are_json_with_every_partition():
    with broker(http=True) as local, local.client() as client:
        client.create_topic("t", partitions=2 * limits.STATISTICS_SLICE + 5)
        code, body = fetch(f"{local.http_url}/statistics")
        assert code == 200
        found = json.loads(body)
        assert found["broker"]["partitions"] == len(found["partitions"]) == 2 * limits.STATISTICS_SLICE + 5
        assert b"<table>" in fetch(local.http_url)[1]
        assert fetch(f"{local.http_url}/metrics")[1].count(b"stentor_partition_epoch{") == len(found["partitions"])
