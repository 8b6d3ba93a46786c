"""The attacks of `bench.attacks`: each is what one stranger does, with nothing but valid requests."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stentor import connect, limits
from stentor.wire import batch, frames, group_messages, messages, queue_messages, queue_rows, table_rows
from stentor.wire.frames import Kind
from stentor.wire.header import CONDITIONAL
from stentor.wire.queue_messages import FetchJobs

if TYPE_CHECKING:
    from collections.abc import Callable

FLOOD_S: Final = 6.0
NAMES_S: Final = 25.0  # to put them, and to measure a while before they end
LEASE_S: Final = 5


class Raw:
    """A connection without a client around it."""

    def __init__(self, address: str, name: str) -> None:
        host, _, port = address.rpartition("//")[2].rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=30.0)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        hello = messages.Hello(version_min=1, version_max=1, name=name, features=list(frames.FEATURES))
        self.send(frames.frame(Kind.HELLO, 0, messages.encode(hello)))
        while self.receive()[0] != Kind.WELCOME:
            pass

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> tuple[int, int]:
        """Kind and correlation of the next frame."""
        while len(self._received) < frames.HEADER_BYTES:
            self._more()
        length, kind, _, _, correlation = frames.HEADER.unpack_from(self._received)
        while len(self._received) < frames.HEADER_BYTES + length:
            self._more()
        self._received = self._received[frames.HEADER_BYTES + length :]
        return kind, correlation

    def _more(self) -> None:
        found = self.socket.recv(1 << 16)
        if not found:
            raise ConnectionError("the broker has closed the connection")
        self._received += found

    def read_all(self) -> Raw:
        """Read what comes and throw it away, in a thread."""

        def read() -> None:
            with suppress(OSError):
                while self._reader.recv(1 << 20):
                    pass

        self._reader = self.socket.dup()
        threading.Thread(target=read, daemon=True).start()
        return self

    def flood(self, data: bytes, bytes_per_s: float, seconds: float) -> int:
        """Send the same bytes again and again, at most this fast; return how many were taken."""
        began, sent = time.monotonic(), 0
        self.socket.settimeout(0.5)
        with suppress(OSError):
            while (passed := time.monotonic() - began) < seconds:
                if sent > bytes_per_s * passed:
                    time.sleep(0.001)
                    continue
                with suppress(TimeoutError):
                    sent += self.socket.send(data)
        return sent


@dataclass(frozen=True, slots=True)
class Attack:
    """What is done before, and the attack itself."""

    run: Callable[[str, Any], None]
    prepare: Callable[[str], Any] = lambda _: None
    after_s: float = 1.0  # work that outlives the attacker


def topic_id(address: str, name: str, **settings: Any) -> int:
    """Make a topic; return its id."""
    with connect(address, name="preparing", timeout=60.0) as client:
        client.create_topic(name, exist_ok=True, **settings)
        return int(client.describe_topic(name).id)


def publish_frame(topic: int, values: list[bytes], ack: int, keys: list[bytes] | None = None) -> bytes:
    """One batch of a producer that is not known."""
    encoded = batch.encode_at(time.time_ns() // 1000, keys or [None] * len(values), values)
    header = batch.address(encoded, topic_id=topic, partition=0, producer_id=0, generation=0, sequence=0)
    body = bytes(header) + bytes(encoded.body)
    return frames.frame(Kind.PUBLISH, 1, body, flags=ack)


# --- a fast sender (a read without a budget) ----------------------------------------------------


def small_publishes(address: str, topic: int) -> None:
    frame = publish_frame(topic, [b"x" * 20], frames.Ack.NONE)
    Raw(address, "fast").flood(frame * 4_000, 6e6, FLOOD_S)


def tiny_frames(address: str, _: Any) -> None:
    frame = frames.frame(Kind.CREDIT, 1, frames.CREDIT.pack(1))
    Raw(address, "fast").flood(frame * 10_000, 3e6, FLOOD_S)


def refused_frames(address: str, _: Any) -> None:
    """Frames of 40 bytes that are answered with an error each, which is read and thrown away."""
    frame = frames.frame(Kind.PUBLISH, 1, bytes(24), flags=1)
    Raw(address, "fast").read_all().flood(frame * 10_000, 3e6, FLOOD_S)


def requests(address: str, _: Any) -> None:
    """Requests on twenty connections, as many as there may be."""
    frame = frames.frame(Kind.REQUEST, 1, messages.encode(messages.ListTopics()))
    raws = [Raw(address, "asking").read_all() for _ in range(20)]
    ends = time.monotonic() + FLOOD_S
    while time.monotonic() < ends:
        for raw in raws:
            raw.flood(frame * 32, 1e9, 0.002)


# --- many streams -------------------------------------------------------------------------------

STREAMS: Final = 4_096  # of one connection, as many as there may be
STREAM_CONNECTIONS: Final = 25


def opening(topic: int, first: int, count: int) -> bytes:
    """Frames that open this many streams of a topic."""
    wish = messages.encode(messages.OpenStream(topic_id=topic, partition=0, start=0, credit=1_000_000))
    return b"".join(frames.frame(Kind.OPEN_STREAM, number, wish) for number in range(first, first + count))


def opens_and_closes(address: str, topic: int) -> None:
    """100,000 streams that are opened and closed at once."""
    wish = messages.encode(messages.OpenStream(topic_id=topic, partition=0, start=0, credit=1_000_000))
    pairs = (
        frames.frame(Kind.OPEN_STREAM, number, wish) + frames.frame(Kind.CLOSE_STREAM, number)
        for number in range(1, 100_001)
    )
    raw = Raw(address, "opening").read_all()
    raw.send(b"".join(pairs))
    time.sleep(2)


def one_message_to_many_streams(address: str, topic: int) -> None:
    """A message that 102,400 streams wait for, three times; then all of them end at once."""
    raws = [Raw(address, "waiting").read_all() for _ in range(STREAM_CONNECTIONS)]
    for raw in raws:
        raw.send(opening(topic, 1, STREAMS))
    with connect(address, name="publishing", timeout=60.0) as client:
        while client.statistics()["broker"]["streams"] < STREAMS * STREAM_CONNECTIONS:
            time.sleep(0.5)
        for _ in range(3):
            client.publish("target", b"x")
            time.sleep(3)
    for raw in raws:
        raw.socket.shutdown(socket.SHUT_RDWR)


# --- large batches ------------------------------------------------------------------------------


def rows_for_a_table(address: str, topic: int) -> None:
    """Batches of small rows, as large as a head takes them, one after the other."""
    most = getattr(limits, "TABLE_BATCH_ROWS_MAX", 160_000)
    keys: list[bytes] = [b"%d" % number for number in range(most)]
    frame = publish_frame(topic, [b"1"] * len(keys), frames.Ack.ALL, keys)
    Raw(address, "filling").read_all().flood(frame, 4e6, FLOOD_S)


def conditions_for_a_table(address: str, topic: int) -> None:
    """The same with conditions that do not hold."""
    most = getattr(limits, "TABLE_BATCH_TERMS_ROWS_MAX", 50_000)
    keys: list[bytes] = [b"%d" % number for number in range(most)]
    terms = [[table_rows.condition(table_rows.ABSENT)] for _ in keys]
    encoded = batch.encode([time.time_ns() // 1000] * most, keys, [b"1"] * most, terms)
    encoded = msgspec.structs.replace(encoded, attributes=encoded.attributes | CONDITIONAL)
    header = batch.address(encoded, topic_id=topic, partition=0, producer_id=0, generation=0, sequence=0)
    frame = frames.frame(Kind.PUBLISH, 1, bytes(header) + bytes(encoded.body), flags=frames.Ack.ALL)
    Raw(address, "filling").read_all().flood(frame, 4e6, FLOOD_S)


def large_batch_of_jobs(address: str) -> int:
    """A queue with one batch of 14 MB in it."""
    topic = topic_id(address, "jobs", kind="queue")
    raw = Raw(address, "filling")
    raw.send(publish_frame(topic, [b"x" * 80] * 150_000, frames.Ack.ALL))
    while raw.receive()[0] not in (Kind.PUBLISHED, Kind.ERROR):
        pass
    return topic


def fetches(address: str, topic: int) -> None:
    """Twenty requests at once for every thousandth job of it."""
    ranges = [number for first in range(0, 150_000, 1_000) for number in (first, 1)]
    asked = messages.encode(FetchJobs(topic_id=topic, partition=0, ranges=ranges))
    raw = Raw(address, "fetching")
    for _ in range(3):
        raw.send(b"".join(frames.frame(Kind.REQUEST, number, asked) for number in range(20)))
        for _ in range(20):
            while raw.receive()[0] not in (Kind.RESPONSE, Kind.ERROR):
                pass


# --- groups -------------------------------------------------------------------------------------


def colliding(count: int) -> dict[int, list[int]]:
    """Topics' ids and one partition each, as a member may say that it holds: the pairs all have one hash."""
    mask, prime_1, prime_2, prime_5 = 2**64 - 1, 11400714785074694791, 14029467366897019727, 2870177450012600261
    inverse_1, inverse_2, modulus = pow(prime_1, -1, 2**64), pow(prime_2, -1, 2**64), 2**61 - 1

    def rotated(value: int) -> int:
        return (value << 33 | value >> 31) & mask

    found: dict[int, list[int]] = {}
    second = 0
    while len(found) < count:
        second += 1
        before = (rotated(12345 * inverse_1 & mask) - second * prime_2) & mask
        first = (rotated(before * inverse_1 & mask) - prime_5) * inverse_2 & mask
        if first < modulus:
            found[first] = [second]
    return found


def heartbeats(address: str, _: Any) -> None:
    """Twenty heartbeats of members that say they hold 3,500 partitions whose numbers they chose."""
    holding = colliding(3_500)
    raw = Raw(address, "beating").read_all()
    for turn in range(3):
        for number in range(20):
            beat = messages.GroupHeartbeat(
                group="chosen", member=f"m{number}", number=turn + 1, topics=["target"], holding=holding
            )
            raw.send(frames.frame(Kind.REQUEST, number, messages.encode(beat)))
        time.sleep(2)


def topics_of_groups(address: str) -> int:
    """A hundred topics."""
    with connect(address, name="preparing", timeout=60.0) as client:
        for number in range(100):
            client.create_topic(f"part.{number}.of.it")
    return 100


def patterns(address: str, topics: int) -> None:
    """A hundred members join a group with 64 patterns each, all different, which all are compared with all topics."""
    raw = Raw(address, "joining").read_all()
    for member in range(100):
        names = [f"*.{number}.*.{'*' if number % 2 else 'of'}" for number in range(32)]
        names += [f"part.{number}.*.x{member}" for number in range(32)]
        beat = messages.GroupHeartbeat(group="wide", member=f"m{member}", number=1, topics=names)
        raw.send(frames.frame(Kind.REQUEST, member, messages.encode(beat)))
    time.sleep(3)
    with connect(address, name="making", timeout=60.0) as client:
        for number in range(5):
            client.create_topic(f"part.{topics + number}.of.it")
            time.sleep(1)


# --- jobs (a turn of a queue's head, and what is applied) ----------------------------------------


def jobs_frame(topic: int, count: int, **terms: Any) -> bytes:
    """Jobs with terms in one batch, as a client puts them; `unique` is a prefix."""
    prefix = terms.pop("unique", None)
    named = [
        queue_rows.headers_of(**terms, **({} if prefix is None else {"unique": b"%s %d" % (prefix, each)}))
        for each in range(count)
    ]
    encoded = batch.encode([time.time_ns() // 1000] * count, [None] * count, [b"job"] * count, named)
    encoded = queue_rows.with_terms(encoded, unique=prefix is not None)
    body = bytes(queue_rows.whole(encoded, topic_id=topic, partition=0))
    return frames.frame(Kind.PUBLISH, 1, body, flags=frames.Ack.ALL)


def put_unique_names(address: str) -> tuple[int, float]:
    """100,000 jobs whose names end together; when they do."""
    topic = topic_id(address, "unique", kind="queue")
    raw, over = Raw(address, "preparing"), time.time() + NAMES_S
    for part in range(100):
        unique_us = int((over - time.time()) * 1e6)
        raw.send(jobs_frame(topic, 1_000, unique=b"%d" % part, unique_us=unique_us))
        while raw.receive()[0] not in (Kind.PUBLISHED, Kind.ERROR):
            pass
    return topic, over


def names_that_end(address: str, prepared: tuple[int, float]) -> None:
    topic, over = prepared
    time.sleep(max(0.0, over - time.time()) + 0.5)
    raw = Raw(address, "one more").read_all()
    for number in range(200):
        raw.send(jobs_frame(topic, 1, unique=b"more %d" % number, unique_us=10**9))
        time.sleep(0.01)


def jobs_with_terms(address: str, topic: int) -> None:
    Raw(address, "later").read_all().flood(jobs_frame(topic, 1_000, delay_us=10**9), 2e6, FLOOD_S)


def jobs_with_keys(address: str, topic: int) -> None:
    keys = [b"%d" % number for number in range(20_000)]
    frame = publish_frame(topic, [b""] * len(keys), frames.Ack.HEAD, keys)
    Raw(address, "in order").read_all().flood(frame, 3e6, FLOOD_S)


def put_for_consumers(address: str) -> int:
    topic = topic_id(address, "crowd", kind="queue", lease_s=LEASE_S)
    raw = Raw(address, "preparing")
    for _ in range(10):
        raw.send(publish_frame(topic, [b"job"] * 2_000, frames.Ack.ALL))
        while raw.receive()[0] != Kind.PUBLISHED:
            pass
    return topic


def consumers_that_vanish(address: str, topic: int) -> None:
    """2,000 consumers take ten jobs each, and are not heard of again."""
    raw = Raw(address, "crowd")

    def ask(requests: list[Any]) -> None:
        for number, request in enumerate(requests):
            raw.send(frames.frame(Kind.REQUEST, number, messages.encode(request)))
        for _ in requests:
            while raw.receive()[0] not in (Kind.RESPONSE, Kind.ERROR):
                pass

    for first in range(0, 2_000, 25):
        wheres = [
            {"topic_id": topic, "partition": 0, "holder": number.to_bytes(16)} for number in range(first, first + 25)
        ]
        ask([queue_messages.RenewJobs(**where) for where in wheres])
        ask([queue_messages.TakeJobs(**where, number=1, jobs_max=10, wait_ms=5_000) for where in wheres])


# --- few bytes that expand ----------------------------------------------------------------------


def rows_that_expand(address: str) -> int:
    """A table with six batches of two kilobytes, each of 31 rows with a header of a megabyte."""
    topic = topic_id(address, "expanding", kind="table")
    keys = [*(b"app/%d" % number for number in range(30)), b"other"]
    headers = [[("h", bytes(limits.MESSAGE_HEADERS_BYTES_MAX - 200))]] * len(keys)
    now_us = time.time_ns() // 1000
    encoded = batch.encode([now_us] * len(keys), keys, [b"v"] * len(keys), headers, compression="zstd")
    header = batch.address(encoded, topic_id=topic, partition=0, producer_id=0, generation=0, sequence=0)
    raw = Raw(address, "preparing")
    for _ in range(6):
        raw.send(frames.frame(Kind.PUBLISH, 1, bytes(header) + bytes(encoded.body), flags=frames.Ack.ALL))
        while raw.receive()[0] not in (Kind.PUBLISHED, Kind.ERROR):
            pass
    return topic


def subtrees_that_expand(address: str, topic: int) -> None:
    """Twenty streams of the part of it that is nearly all, on four connections."""
    wish = messages.encode(messages.OpenStream(topic_id=topic, partition=0, start=0, credit=1 << 20, subtree="app/"))
    for number in range(4):
        raw = Raw(address, f"watching {number}").read_all()
        raw.send(b"".join(frames.frame(Kind.OPEN_STREAM, stream, wish) for stream in range(5)))
    time.sleep(FLOOD_S)


# --- long requests (what walks over all that a broker has) ---------------------------------------

GROUPS: Final = 10_000
DELAYED_JOBS: Final = 400_000
REQUESTS: Final = 64  # at once on a connection, as many as there may be


def answered(raw: Raw, requests: list[Any]) -> None:
    """Send requests at once, and wait until all are answered."""
    raw.send(
        b"".join(frames.frame(Kind.REQUEST, number, messages.encode(each)) for number, each in enumerate(requests))
    )
    for _ in requests:
        while raw.receive()[0] not in (Kind.RESPONSE, Kind.ERROR):
            pass


def join_groups(raw: Raw) -> None:
    """Be the only member of very many groups."""
    for first in range(0, GROUPS, 50):
        answered(
            raw,
            [
                messages.GroupHeartbeat(
                    group=f"g{number}", member="m", number=1, topics=["target"], silence_ms=3_000_000
                )
                for number in range(first, first + 50)
            ],
        )


def many_groups(address: str) -> None:
    """Groups whose members are not heard of for long, and are members yet."""
    topic_id(address, "target")
    raw = Raw(address, "joining")
    join_groups(raw)
    raw.send(frames.frame(Kind.GOODBYE, 0))


def lists_of_groups(address: str, _: Any) -> None:
    raws = [Raw(address, "listing") for _ in range(3)]
    for request in (messages.ListGroups(), messages.DescribeTopic(name="target")):
        for raw in raws:
            raw.read_all().send(
                b"".join(frames.frame(Kind.REQUEST, number, messages.encode(request)) for number in range(REQUESTS))
            )
        time.sleep(4)


def closing_with_groups(address: str, _: Any) -> None:
    """A connection that speaks for 10,000 groups is made, and closed; then ten strangers', each with one."""
    raw = Raw(address, "joining")
    join_groups(raw)
    raw.socket.close()
    for number in range(10):
        raw = Raw(address, "stranger")
        answered(raw, [messages.GroupHeartbeat(group=f"s{number}", member="m", number=1, topics=["target"])])
        raw.socket.close()
    time.sleep(4)


def many_topics(address: str) -> None:
    """6,400 partitions."""
    with connect(address, name="preparing", timeout=60.0) as client:
        for number in range(6):
            client.create_topic(f"wide{number}", partitions=1_000)
        for number in range(400):
            client.create_topic(f"narrow{number}")


def lists_of_topics(address: str, _: Any) -> None:
    """64 lists, descriptions and route tables on each of three connections."""
    raws = [Raw(address, "listing").read_all() for _ in range(3)]
    for request in (
        messages.ListTopics(),
        messages.DescribeTopic(name="wide0"),
        messages.WatchRoutes(),
        messages.ListBrokers(),
    ):
        asked = messages.encode(request)
        for raw in raws:
            raw.send(b"".join(frames.frame(Kind.REQUEST, number, asked) for number in range(REQUESTS)))
        time.sleep(2)


def put_delayed(address: str) -> int:
    topic = topic_id(address, "delayed", kind="queue")
    raw, frame = Raw(address, "preparing"), jobs_frame(topic, 1_000, delay_us=10**10)
    for _ in range(0, DELAYED_JOBS, 10_000):
        raw.send(frame * 10)
        for _ in range(10):
            while raw.receive()[0] not in (Kind.PUBLISHED, Kind.ERROR):
                pass
    return topic


def descriptions_of_jobs(address: str, topic: int) -> None:
    raw = Raw(address, "describing")
    for _ in range(10):
        answered(raw, [queue_messages.DescribeQueue(topic_id=topic, partition=0, jobs_max=1_000)] * REQUESTS)


def transaction_topic(address: str) -> int:
    topic_id(address, "target")
    return topic_id(address, "outputs", partitions=256)


def transactions(address: str, topic: int) -> None:
    """Sixteen transactions of 256 outputs at once, as many rows in each as may be; then outputs for one partition."""
    raw = Raw(address, "joining")
    answered(raw, [messages.GroupHeartbeat(group="g", member="m", number=1, topics=["target"])])
    with connect(address, name="looking", timeout=60.0) as client:
        source = int(client.describe_topic("target").id)
    raw.read_all()
    for rows, partitions in ((3_900, range(256)), (1_000_000, [0] * 256)):
        encoded = empty_rows(rows)
        outputs = []
        for partition in partitions:
            header = batch.address(
                encoded, topic_id=topic, partition=partition, producer_id=7, generation=1, sequence=0
            )
            outputs.append(("outputs", bytes(header) + bytes(encoded.body)))
        position = group_messages.GroupPosition(topic_id=source, partition=0, since=(1, 1), offset=0)
        asked = group_messages.CommitTransaction(group="g", member="m", number=1, positions=[position], outputs=outputs)
        body = messages.encode(asked)
        raw.send(b"".join(frames.frame(Kind.TRANSACTION, number, body) for number in range(16)))
        time.sleep(4)


def empty_rows(count: int) -> batch.Encoded:
    """So many messages without a key or value, in a kilobyte or two."""
    from array import array

    import pyarrow as pa

    from stentor.wire import arrow_body

    nothing = pa.nulls(count, pa.binary())
    times = arrow_body.timestamps_array(array("q", [time.time_ns() // 1000]) * count)
    columns = [times, nothing, nothing, arrow_body.headers_array(None, count)]
    rows = pa.RecordBatch.from_arrays(columns, schema=arrow_body.SCHEMA)
    return batch.encode_arrow(rows, compression="zstd")


ATTACKS: Final[dict[str, Attack]] = {
    "small publishes at 6 MB/s": Attack(small_publishes, lambda address: topic_id(address, "target")),
    "tiny frames at 3 MB/s": Attack(tiny_frames),
    "refused frames at 3 MB/s": Attack(refused_frames),
    "requests on 20 connections": Attack(requests),
    "100,000 opens and closes": Attack(opens_and_closes, lambda address: topic_id(address, "target")),
    "a message to 102,400 streams": Attack(one_message_to_many_streams, lambda address: topic_id(address, "target")),
    "large changes of a table": Attack(rows_for_a_table, lambda address: topic_id(address, "rows", kind="table")),
    "conditions of a table": Attack(conditions_for_a_table, lambda address: topic_id(address, "rows", kind="table")),
    "20 fetches of a large batch": Attack(fetches, large_batch_of_jobs),
    "heartbeats with chosen numbers": Attack(heartbeats, lambda address: topic_id(address, "target")),
    "members with many patterns": Attack(patterns, topics_of_groups),
    "100,000 unique names that end": Attack(names_that_end, put_unique_names),
    "jobs with terms at 2 MB/s": Attack(jobs_with_terms, lambda address: topic_id(address, "late", kind="queue")),
    "jobs with keys at 3 MB/s": Attack(
        jobs_with_keys, lambda address: topic_id(address, "ordered", kind="queue", ordered_by="key")
    ),
    "subtrees of rows that expand": Attack(subtrees_that_expand, rows_that_expand),
    "lists of 10,000 groups": Attack(lists_of_groups, many_groups),
    "a connection of 10,000 groups": Attack(closing_with_groups, lambda address: topic_id(address, "target")),
    "lists of 6,400 partitions": Attack(lists_of_topics, many_topics),
    "descriptions of 400,000 jobs": Attack(descriptions_of_jobs, put_delayed),
    "transactions of 256 outputs": Attack(transactions, transaction_topic),
    "2,000 leases that end": Attack(consumers_that_vanish, put_for_consumers, after_s=LEASE_S + 4.0),
}
