"""What strangers can write: names, log lines, files that they could read."""

import asyncio
import logging
import re
import stat
from pathlib import Path

import pytest

from stentor import limits
from stentor.self_metrics import METRICS_TOPIC, MetricsPublisher
from stentor.testing import broker
from stentor.transport.sparing import SparingLog
from stentor.wire.frames import Kind

FORGED = "me\n2026-01-01 ERROR all is lost\x1b[2J\u202e"


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage() for record in caplog.records if record.name.startswith("stentor.broker")]


def test_a_client_s_name_writes_no_log_lines_and_moves_no_cursor(local, raw, lines, wait_until):
    connection = raw(local.url).greet(name=FORGED, library=FORGED)
    connection.send(Kind.WELCOME)
    connection.refusal()
    refused = wait_until(lambda: [line for line in lines() if "refused" in line], "the refusal is logged")
    assert all(line.isprintable() for line in refused)
    assert "all is lost" in refused[0]


def test_clients_are_listed_under_names_that_can_be_printed(local, client, raw):
    raw(local.url).greet(name=FORGED, library="\0" * limits.CLIENT_NAME_CHARACTERS_MAX)
    found = next(info for info in client.clients() if info.name.startswith("me"))
    assert found.name.isprintable()
    assert found.library.isprintable()
    assert len(found.library) <= limits.CLIENT_NAME_CHARACTERS_MAX


def test_a_greeting_that_is_refused_writes_no_log_lines_either(local, raw, lines, wait_until):
    connection = raw(local.url)
    connection.send(Kind.HELLO, 0, b"\x81\xb1version_min\n\x1b[2Jx\xa1\n")
    connection.refusal()
    wait_until(lambda: any("refused" in line for line in lines()), "the refusal is logged")
    assert all(line.isprintable() for line in lines())


def test_a_flood_of_refusals_costs_few_log_lines(local, raw, lines, wait_until):
    floods = 5 * limits.STRANGER_LOG_LINES_PER_S
    for _ in range(floods):
        connection = raw(local.url)
        connection.send_bytes(b"GET / HTTP/1.1\r\n\r\n")
        connection.refusal()
    told = wait_until(lambda: [line for line in lines() if "more like this" in line], "what was left out is told")
    refused = sum("refused" in line for line in lines())
    left_out = sum(int(re.search(r"(\d+) more", line)[1]) for line in told)
    assert refused + left_out <= floods
    assert refused < floods


def test_a_sparing_log_says_how_much_it_left_out(caplog):
    caplog.set_level(logging.INFO)
    now = [100.0]
    log = SparingLog(logging.getLogger("stentor.test"), lambda: now[0])
    for number in range(limits.STRANGER_LOG_LINES_PER_S + 7):
        log.info("stranger %d\n", number)
    assert len(caplog.records) == limits.STRANGER_LOG_LINES_PER_S
    assert caplog.messages[0] == "stranger 0\\n"
    log.tick()
    assert len(caplog.records) == limits.STRANGER_LOG_LINES_PER_S
    now[0] += 1
    log.tick()
    assert caplog.messages[-1] == "... and 7 more like this"
    log.tick()
    assert len(caplog.records) == limits.STRANGER_LOG_LINES_PER_S + 1


# --- files --------------------------------------------------------------------------------------


def open_to_others(path: Path) -> list[Path]:
    return [each for each in (path, *path.rglob("*")) if stat.S_IMODE(each.stat().st_mode) & 0o077]


def test_what_a_broker_stores_is_for_its_user_alone(tmp_path):
    with broker(tmp_path / "data", segment_bytes=limits.SEGMENT_BYTES_MIN) as local, local.client() as client:
        for _ in range(10):
            client.publish("t", b"x" * 50_000)
        client.delete_topic("t")
        assert open_to_others(tmp_path / "data") == []
    assert open_to_others(tmp_path / "data") == []


def test_a_directory_that_was_open_to_others_is_closed_at_the_start(tmp_path):
    data = tmp_path / "data"
    with broker(data) as local, local.client() as client:
        client.publish("t", b"x")
    for folder in (data, data / "partitions"):
        folder.chmod(0o755)
    with broker(data):
        assert stat.S_IMODE(data.stat().st_mode) == 0o700
        assert stat.S_IMODE((data / "partitions").stat().st_mode) == 0o700


# --- _metrics -----------------------------------------------------------------------------------


@pytest.fixture
def publisher(local, monkeypatch):
    """A broker that tells its statistics often, also when nothing changes."""
    monkeypatch.setattr(limits, "METRICS_QUIET_S", 0.0)
    inner = local.inner

    async def start():
        return MetricsPublisher(inner, 0.05)

    started = asyncio.run_coroutine_threadsafe(start(), inner.loop).result(10)
    yield started
    asyncio.run_coroutine_threadsafe(started.stop(), inner.loop).result(10)


@pytest.mark.parametrize("value", [b"not JSON", b"[]", b"{}", b'{"published_at_us": "x"}', b"\xff", None])
def test_what_others_publish_to_metrics_does_not_stop_the_latency_figure(local, client, publisher, wait_until, value):
    wait_until(lambda: publisher._latencies_us, "records come back")
    client.publish(METRICS_TOPIC, value, key=local.inner.broker_id.encode())
    client.publish(METRICS_TOPIC, b'{"published_at_us": 1}', key=local.inner.broker_id.encode())
    publisher._latencies_us.clear()
    wait_until(lambda: len(publisher._latencies_us) >= 3, "records still come back")
    assert max(publisher._latencies_us) < 60_000_000


def test_metrics_that_were_deleted_come_back_with_their_retention(local, client, publisher, wait_until):
    def settings():
        found = client.topics(METRICS_TOPIC)
        return found and found[0].settings

    wait_until(settings, "the topic is there")
    for _ in range(3):
        client.delete_topic(METRICS_TOPIC)
        found = wait_until(settings, "the topic is there again")
        assert found.retention_age_s == limits.METRICS_RETENTION_S
        publisher._latencies_us.clear()
        wait_until(lambda: publisher._latencies_us, "records come back again")


def test_a_reader_that_comes_first_makes_metrics_with_their_retention(client):
    client.subscribe(METRICS_TOPIC).close()
    assert client.describe_topic(METRICS_TOPIC).settings.retention_age_s == limits.METRICS_RETENTION_S
