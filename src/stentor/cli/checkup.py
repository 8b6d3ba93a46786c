"""What `stentor doctor` finds out about a connection and the broker at its other end."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Final

import msgspec

import stentor
from stentor.cli import options
from stentor.cli.failure import hint_of
from stentor.cli.health import broker_problems, lacking
from stentor.cli.quantities import plural, show_seconds
from stentor.client.url import parse_url
from stentor.errors import StentorError
from stentor.storage.model import Finding
from stentor.wire.statistics import from_map

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stentor import BrokerInfo, Client, TopicInfo

ROUND_TRIPS: Final = 5
SLOW_ROUND_TRIP_S: Final = 0.1
"""A round trip that a person would notice; across an ocean it is normal, in one room it is not."""


class _NotReady(msgspec.Struct, frozen=True):
    reason: str


def check_connection(url: str | None, timeout: float) -> list[Finding]:
    """Check every address of a URL by itself, so that one that works does not hide one that does not."""
    try:
        addresses = parse_url(url)
    except StentorError as error:
        where = "STENTOR_URL" if url is None else "--url" if "@" in url else url  # a password is not shown
        return [Finding("error", where, error.message, error.hint)]
    return [finding for address in addresses for finding in _check_address(address, timeout)]


def _check_address(address: str, timeout: float) -> Iterator[Finding]:
    stentor.connect  # noqa: B018 - loads the client, so that its import does not count as connecting
    started = time.perf_counter()
    try:
        with options.connect(address, timeout, "doctor") as client:
            spent_ms = 1000 * (time.perf_counter() - started)
            yield Finding("ok", address, f"Connected in {spent_ms:.1f} ms.")
            yield from _check_broker(client, address, timeout)
    except StentorError as error:
        yield Finding("error", address, error.message, hint_of(error))


def _check_broker(client: Client, address: str, timeout: float) -> Iterator[Finding]:
    broker = client.broker()
    yield _check_version(broker)
    yield _check_speed(client, address)
    statistics = from_map(client.statistics())
    numbers = statistics.broker
    uptime, connections = show_seconds(numbers.uptime_s), plural(numbers.connections, "connection")
    yield Finding("ok", f"broker {broker.id}", f"Up for {uptime}, {connections}.")
    for problem in broker_problems(statistics):
        yield Finding(problem.severity, problem.object, problem.message, problem.hint)
    yield from _check_topics(client.topics())
    yield _check_http(broker, timeout)


def _check_version(broker: BrokerInfo) -> Finding:
    ours = stentor.__version__
    if broker.version == ours:
        return Finding("ok", f"broker {broker.id}", f"Broker and client are both version {ours}.")
    return Finding(
        "warning",
        f"broker {broker.id}",
        f"The broker is version {broker.version}, this client {ours}.",
        "They work together. Use the same version where you can.",
    )


def _check_speed(client: Client, address: str) -> Finding:
    best = min(_round_trip_s(client) for _ in range(ROUND_TRIPS))
    text = f"A round trip takes {1000 * best:.2f} ms (best of {ROUND_TRIPS})."
    if best < SLOW_ROUND_TRIP_S:
        return Finding("ok", address, text)
    return Finding(
        "warning", address, text, "The broker is far away, the network is slow, or the broker is overloaded."
    )


def _round_trip_s(client: Client) -> float:
    started = time.perf_counter()
    client.topics("_doctor")
    return time.perf_counter() - started


def _check_topics(topics: list[TopicInfo]) -> Iterator[Finding]:
    healthy = True
    for topic in topics:
        for partition in topic.partitions:
            name = f"{topic.name}/{partition.partition}"
            if partition.failed:
                healthy = False
                hint = "The partition accepts no messages. Check the disk, then restart the broker."
                yield Finding("error", name, f"The log has failed: {partition.failed}", hint)
            for first, after in partition.damaged:
                healthy = False
                hint = "Readers get an error for these offsets only. Run `stentor doctor --data DIR` on the broker."
                yield Finding("error", name, f"Offsets {first} to {after - 1} are damaged.", hint)
            if short := lacking(partition, topic.settings):
                healthy = False
                hint = "Start the missing brokers, or wait until the new copies are complete."
                refuses = len(partition.chain) < topic.settings.replicas_needed
                yield Finding("error" if refuses else "warning", name, f"The chain has {short}.", hint)
    if healthy:
        partitions = sum(len(topic.partitions) for topic in topics)
        yield Finding("ok", "topics", f"{plural(len(topics), 'topic')}, {plural(partitions, 'partition')}, no damage.")


def _check_http(broker: BrokerInfo, timeout: float) -> Finding:
    """Load balancers ask this address whether the broker is ready."""
    if not broker.http_address:
        return Finding("ok", "http", "HTTP is off.")
    url = f"http://{broker.http_address}/health/ready"
    try:
        with urllib.request.urlopen(url, timeout=timeout):
            return Finding("ok", url, "The broker says that it is ready.")
    except urllib.error.HTTPError as error:
        with error:
            why = _reason(error.read())
        return Finding("warning", url, f"The broker says that it is not ready ({error.code}){why}", "Try again later.")
    except OSError as error:
        reason = getattr(error, "reason", error)
        hint = "The broker's HTTP port cannot be reached from here. Check the firewall, or ignore this."
        return Finding("warning", url, f"No answer: {reason}.", hint)


def _reason(body: bytes) -> str:
    """Why a broker is not ready, by its own word."""
    try:
        return f": {msgspec.json.decode(body, type=_NotReady).reason}"
    except msgspec.MsgspecError:
        return "."
