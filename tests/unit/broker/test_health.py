"""What is wrong with a broker is told in every place where an operator looks, and told well again when it is over."""

import asyncio
import errno
import json
import logging
import os
import urllib.error
import urllib.request

import pytest

from stentor import limits
from stentor.broker.cluster import disk_health
from stentor.cli.checkup import check_connection
from stentor.cli.describe import describe
from stentor.errors import DeadlineExceeded
from stentor.storage import files
from stentor.testing import broker

MIB = 1024 * 1024


def fetch(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


class Seen:
    """A broker through an operator's eyes."""

    def __init__(self, local, capsys):
        self._local = local
        self._capsys = capsys

    def ready(self):
        code, body = fetch(f"{self._local.http_url}/health/ready")
        return code, json.loads(body)

    def live(self):
        return fetch(f"{self._local.http_url}/health/live")[0]

    def metric(self, name):
        lines = fetch(f"{self._local.http_url}/metrics")[1].splitlines()
        [line] = [line for line in lines if line.startswith(f"{name} ")]
        return float(line.split()[1])

    def health(self):
        """What `stentor describe` says."""
        self._capsys.readouterr()
        describe(url=self._local.url)
        [line] = [line for line in self._capsys.readouterr().out.splitlines() if line.startswith("health")]
        return line.removeprefix("health").strip(": ").strip()

    def findings(self):
        """What `stentor doctor` finds that is not in order."""
        return [found for found in check_connection(self._local.url, 10) if found.severity != "ok"]


@pytest.fixture
def small(tmpfs):
    """A broker on a file system of 12 MiB."""
    disk = tmpfs(12)
    with broker(disk / "data", disk_reserve_bytes=MIB, segment_bytes=MIB, http=True) as local:
        yield disk, local


def lines_about(caplog, text):
    return [record.levelname for record in caplog.records if text in record.getMessage()]


def publish_much(client):
    for _ in range(20):
        client.publish("t", bytes(MIB // 2), timeout=2)


def test_a_full_disk_of_a_single_broker_is_told_everywhere_until_there_is_room(small, capsys, caplog, wait_until):
    caplog.set_level(logging.INFO)
    disk, local = small
    seen = Seen(local, capsys)
    with local.client() as client:
        client.publish("t", b"before")
        assert seen.ready() == (200, {"ready": True})
        assert (seen.health(), seen.findings(), seen.metric("stentor_disk_writable")) == ("ok", [], 1)

        filler = disk / "filler"
        filler.write_bytes(bytes(11 * MIB - 300_000))
        with pytest.raises(DeadlineExceeded, match="in reserve"):
            publish_much(client)
        code, answer = wait_until(lambda: seen.ready() if seen.ready()[0] == 503 else None, "it is not ready")
        assert code == 503
        assert "is full" in answer["reason"]
        assert seen.live() == 200
        assert "is full" in seen.health()
        assert ("error", "disk") in [(found.severity, found.object) for found in seen.findings()]
        assert seen.metric("stentor_disk_writable") == 0
        assert next(iter(client.read("t"))).value == b"before", "reads go on"

        filler.unlink()
        wait_until(lambda: seen.ready() == (200, {"ready": True}), "it is ready again")
        wait_until(lambda: not seen.findings(), "doctor is content")
        assert (seen.health(), seen.metric("stentor_disk_writable")) == ("ok", 1)
    assert "ERROR" in lines_about(caplog, "is full")
    assert lines_about(caplog, "the disk takes writes again")


def test_a_disk_that_others_filled_is_found_before_anybody_publishes(tmpfs, capsys, monkeypatch, wait_until):
    monkeypatch.setattr(limits, "DISK_PROBE_ALONE_S", 0.05)
    disk = tmpfs(12)
    with broker(disk / "data", disk_reserve_bytes=MIB, http=True) as local:
        seen = Seen(local, capsys)
        (disk / "filler").write_bytes(bytes(11 * MIB))
        wait_until(lambda: seen.ready()[0] == 503, "it is found out")


def in_loop(local, work):
    async def run():
        work()

    asyncio.run_coroutine_threadsafe(run(), local.inner.loop).result(10)


def test_a_failed_log_is_told_everywhere_and_a_broker_whose_every_log_failed_is_not_ready(capsys, caplog, wait_until):
    caplog.set_level(logging.INFO)
    with broker(http=True) as local, local.client() as client:
        client.create_topic("a")
        client.create_topic("b")
        seen = Seen(local, capsys)
        first, second = local.inner.partitions.values()
        first.replica.failed = "the disk said no"
        wait_until(lambda: seen.metric("stentor_log_failed") == 1, "the metric tells it")
        code, answer = seen.ready()
        assert (code, answer["ready"]) == (200, True)
        assert "1 log has failed" in answer["warnings"][0]
        assert "damaged" in seen.health()
        assert any("the disk said no" in found.message for found in seen.findings())
        second.replica.failed = "the disk said no"
        wait_until(lambda: seen.ready()[0] == 503, "nothing can be taken any more")
        assert "Every log" in seen.ready()[1]["reason"]
        first.replica.failed = second.replica.failed = ""
        wait_until(lambda: seen.ready() == (200, {"ready": True}), "all is well")
        assert (seen.health(), seen.findings(), seen.metric("stentor_log_failed")) == ("ok", [], 0)
    assert lines_about(caplog, "1 log has failed") == ["ERROR"]
    assert lines_about(caplog, "no log is failed any more") == ["INFO"]


def test_a_short_chain_is_told_everywhere_and_one_below_its_minimum_is_worse(capsys, caplog, wait_until):
    caplog.set_level(logging.INFO)
    with broker(http=True) as local, local.client() as client:
        client.create_topic("a", replicas=1)
        seen = Seen(local, capsys)
        [partition] = local.inner.partitions.values()
        settings = partition.settings
        assert (seen.metric("stentor_chain_short"), seen.metric("stentor_chain_refusing")) == (0, 0)
        for wanted, needed, refusing in ((2, 1, 0), (3, 2, 1)):
            partition.settings = type(settings)(replicas=wanted, min_replicas=needed)
            wait_until(lambda refusing=refusing: seen.metric("stentor_chain_refusing") == refusing, "it is counted")
            wait_until(lambda: seen.metric("stentor_chain_short") == 1, "it is counted")
            code, answer = seen.ready()
            assert code == 200
            assert ("too few replicas" in " ".join(answer["warnings"])) == bool(refusing)
        partition.settings = settings
        wait_until(lambda: seen.ready() == (200, {"ready": True}), "all is well")
        assert (seen.health(), seen.findings()) == ("ok", [])
        assert (seen.metric("stentor_chain_short"), seen.metric("stentor_chain_refusing")) == (0, 0)
    assert lines_about(caplog, "fewer replicas than they should have") == ["WARNING"]
    assert lines_about(caplog, "every chain has all its replicas again") == ["INFO"]


def test_a_lost_coordination_store_is_a_warning_and_no_reason_to_go_elsewhere(capsys):
    with broker(http=True) as local:
        seen = Seen(local, capsys)
        assert seen.metric("stentor_store_reachable") == 1
        in_loop(local, lambda: local.inner.parts.cluster._note_store(*[False]))
        assert seen.metric("stentor_store_reachable") == 0
        code, answer = seen.ready()
        assert code == 200
        assert "coordination store" in answer["warnings"][0]
        assert "coordination store" in seen.health()
        assert [found.object for found in seen.findings()] == ["coordination store"]
        in_loop(local, lambda: local.inner.parts.cluster._note_store(*[True]))
        assert (seen.ready(), seen.findings()) == ((200, {"ready": True}), [])
        assert (seen.health(), seen.metric("stentor_store_reachable")) == ("ok", 1)


def test_a_single_broker_probes_its_disk_rarely_and_often_while_it_is_not_well(tmp_path):
    disk = disk_health.DiskHealth(tmp_path, 0, interval_s=5.0)
    assert disk.pause_s() == 5.0
    disk.found_full()
    assert disk.pause_s() < 1.0


def test_a_disk_that_is_late_is_told_from_one_that_is_full(tmp_path):
    disk = disk_health.DiskHealth(tmp_path, 0)
    late = int((limits.REPLICA_STALL_S + limits.DISK_PROBE_S) / limits.PEER_HEARTBEAT_S)
    assert all(disk.tick() for _ in range(20))
    assert (disk.stalls, disk.waits_us) == (False, 1_500_000)
    assert not all(disk.tick() for _ in range(late))
    assert disk.stalls
    waits_us = disk.waits_us
    disk._probes += 1
    assert disk.tick()
    assert (disk.stalls, disk.waits_us) == (False, waits_us), "as long as the last one took, until one is faster"
    disk._probes += 1
    disk.tick()
    assert disk.waits_us == 0
    disk.found_full()
    for _ in range(late + 5):
        disk.tick()
        disk.found_full()
    assert not disk.stalls


def no_descriptor(*_, **__):
    raise OSError(errno.EMFILE, "Too many open files")


def test_a_lack_of_descriptors_is_no_fault_of_the_disk(tmp_path, monkeypatch):
    """Neither of one that was opened in time nor of one that was not."""
    before, after = disk_health.DiskHealth(tmp_path, 0), disk_health.DiskHealth(tmp_path, 0)
    before._probe()
    monkeypatch.setattr(files.SPARE, "open", no_descriptor)
    written = (tmp_path / ".disk-probe").stat().st_mtime_ns
    for disk in (before, after):
        disk._probe()
        assert disk.why_not() == ""
    assert (tmp_path / ".disk-probe").stat().st_mtime_ns > written, "the disk was not tried"


def test_a_disk_that_failed_is_not_taken_for_well_when_there_is_no_descriptor(tmp_path, monkeypatch):
    disk = disk_health.DiskHealth(tmp_path, 0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error")))
        disk._probe()
    monkeypatch.setattr(files.SPARE, "open", no_descriptor)
    disk._probe()
    assert "Input/output error" in disk.why_not()


def test_a_probe_that_ends_after_its_broker_keeps_no_file_open(tmp_path):
    """A disk could not be unmounted, or mounted read-only, until the broker's process had ended."""
    disk = disk_health.DiskHealth(tmp_path, 0)
    disk.close()
    disk._probe()
    assert disk._file is None
