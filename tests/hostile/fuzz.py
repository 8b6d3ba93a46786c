"""Mutated frames, batches and control messages through every decoder that hostile bytes can reach.

    python -m tests.hostile.fuzz --cases 1000000 --seed 1

A case is made from the seed and its number alone. The cases run in a child process, so that a crash of native
code is seen and named like any other finding. The only outcomes allowed are a result and a StentorError;
what the head of a chain accepts, every reader must be able to read; memory stays bounded. A finding prints
the one command that replays it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import mmap
import random
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
from crc32c import crc32c
from tests.alone import alone

from stentor import limits
from stentor.broker.catalogue import Catalogue
from stentor.broker.cluster.store_follower import FollowedStore
from stentor.broker.cluster.trust import Trust
from stentor.broker.environment import BrokerIdentity
from stentor.broker.failures import Failures
from stentor.broker.long_requests import LongRequests
from stentor.broker.loop_watch import LoopWatch
from stentor.broker.partitions.partition import Partition
from stentor.broker.partitions.replication import unpack_offer
from stentor.broker.partitions.serving import Serving
from stentor.broker.services.desk import ServiceDesk
from stentor.broker.services.directory import ServiceDirectory
from stentor.broker.sessions.client_session import ClientServices, ClientSession
from stentor.broker.sessions.inline_sync import InlineSync
from stentor.broker.sessions.newcomer import GreetingServices, Newcomer
from stentor.broker.sessions.peer_session import PeerServices
from stentor.broker.sessions.session import Session
from stentor.broker.slices import Slices
from stentor.broker.write_coalescing import WriteCoalescing
from stentor.client.decode import decode_messages, offset_batches
from stentor.core.slowness import SyncTimes
from stentor.core.standing import Standing
from stentor.errors import CorruptData, NotReady, StentorError
from stentor.security.permissions import ANYBODY, Permissions
from stentor.storage.model import LogSlice
from stentor.transport.budget import ReceiveBudget
from stentor.transport.turns import Turns
from stentor.wire import (
    arrow_body,
    arrow_message,
    asks,
    batch,
    deltas,
    frames,
    messages,
    peer,
    plain_body,
    runs,
    sparse,
)
from stentor.wire.frames import Kind
from stentor.wire.header import ENCODING_ARROW, HEADER_BYTES, check_header, seal, stamp, unpack
from stentor.wire.service_messages import Serve
from stentor.wire.statistics import LogStatistics

TOPIC_ID = 0xA11CE
NOW_US = 1_700_000_000_000_000
RESIDENT_BYTES_MAX = 512 << 20  # interpreter, Arrow, and a few expanded batches
ARROW_BYTES_MAX = 4 * limits.BATCH_EXPANDED_BYTES_MAX
ADDRESS_SPACE_BYTES_MAX = 8 << 30
INTERESTING = (0, 1, 2, 3, 7, 8, 15, 16, 17, 127, 128, 255, 256, 32767, 32768, 65535, 2**31 - 1, 2**31, 2**32 - 1)
INTERESTING_64 = (*INTERESTING, 2**40, 2**47, 2**62, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1)
SIZES = {1: "<B", 2: "<H", 4: "<I", 8: "<Q"}


class Finding(Exception):  # noqa: N818 - a finding is what it is
    """Something came out that must not."""


# --- mutations ----------------------------------------------------------------------------------


def put(data: bytearray, at: int, width: int, value: int) -> None:
    if 0 <= at <= len(data) - width:
        struct.pack_into(SIZES[width], data, at, value % (1 << (8 * width)))


def mutate(chance: random.Random, data: bytearray, start: int = 0, end: int | None = None) -> None:
    """Change a region in one of the ways in which bytes go wrong or are made to."""
    end = len(data) if end is None else min(end, len(data))
    if end <= start:
        data += chance.randbytes(chance.randrange(1, 9))
        return
    at = chance.randrange(start, end)
    match chance.randrange(8):
        case 0:
            data[at] ^= 1 << chance.randrange(8)
        case 1:
            data[at] = chance.randrange(256)
        case 2 | 3 | 4:
            width = chance.choice((2, 4, 8))
            put(data, at - (at - start) % width, width, chance.choice(INTERESTING_64))
        case 5:
            width = chance.choice((4, 8))
            place = at - (at - start) % width
            if place + width <= len(data):
                (old,) = struct.unpack_from(SIZES[width], data, place)
                put(data, place, width, old + chance.randrange(-9, 10))
        case 6:
            piece = data[at : at + chance.randrange(1, 17)]
            del data[at : at + chance.choice((0, len(piece)))]
            spot = chance.randrange(start, max(start + 1, min(end, len(data))))
            data[spot:spot] = piece
        case _:
            del data[at : at + chance.choice((1, 4, 8, 64, len(data)))]


# --- batches ------------------------------------------------------------------------------------


def columns_of(chance: random.Random, count: int, *, headers: bool) -> tuple[list[Any], ...]:
    def some(size: int) -> bytes | None:
        return None if chance.random() < 0.2 else chance.randbytes(chance.randrange(size))

    pairs = [
        None if chance.random() < 0.3 else [(f"h{i}é", some(9)) for i in range(chance.randrange(4))]
        for _ in range(count)
    ]
    return (
        [NOW_US + chance.randrange(1000) for _ in range(count)],
        [some(9) for _ in range(count)],
        [some(33) for _ in range(count)],
        pairs if headers else None,
    )


def valid_batches() -> list[bytes]:
    """Sealed batches of every encoding, with and without headers and nulls."""
    chance = random.Random(0)
    found = []
    for count in (1, 2, 16, 17, 40):
        for headers in (False, True):
            for compression in ("", "lz4", "zstd"):
                encoded = batch.encode(*columns_of(chance, count, headers=headers), compression=compression)
                found.append(address(encoded))
    plain = columns_of(chance, 500, headers=False)
    found.append(address(batch.encode(*plain)))
    return found


def sparse_batches() -> list[bytes]:
    """The same as a compaction or a filter leaves them."""
    chance = random.Random(1)
    found = []
    for data in valid_batches():
        header = unpack(data)
        wanted = {index for index in range(header.count) if chance.random() < 0.5}
        found.append(sparse.keep(header, data[HEADER_BYTES:], wanted))
    return found


def address(encoded: Any) -> bytes:
    header = batch.address(encoded, topic_id=TOPIC_ID, partition=0, producer_id=0, generation=0, sequence=0)
    return bytes(header) + bytes(encoded.body)


def foreign_bodies() -> list[bytes]:
    """Arrow messages that are not a record batch of the schema."""
    numbers = pa.array(range(17), pa.int64())
    words = pa.array([f"w{i}" for i in range(17)])
    shapes = [
        {"timestamp": numbers},
        {"timestamp": numbers, "key": words, "value": words, "headers": words},
        {"timestamp": words, "key": words, "value": words, "headers": words},
        {f"c{i}": numbers for i in range(40)},
        {"timestamp": numbers.cast(pa.timestamp("us")), "key": words.cast(pa.large_binary())},
        {"a": words.cast(pa.string_view()), "b": words.cast(pa.binary_view())},
        {"a": words.dictionary_encode(), "b": pa.nulls(17)},
    ]
    found = [bytes(pa.RecordBatch.from_pydict(shape).serialize()) for shape in shapes]
    found.append(bytes(arrow_body.SCHEMA.serialize()))
    sink = pa.BufferOutputStream()
    dictionary = pa.RecordBatch.from_pydict({"a": words.dictionary_encode()})
    with pa.ipc.new_stream(sink, dictionary.schema) as writer:
        writer.write_batch(dictionary)
    found.append(bytes(sink.getvalue()))
    tensor = pa.BufferOutputStream()
    pa.ipc.write_tensor(pa.Tensor.from_numpy(numbers.to_numpy()), tensor)
    found.append(bytes(tensor.getvalue()))
    return found


class BatchTarget:
    """A PUBLISH body, as the head judges it, and as a reader would read it."""

    name = "batches"

    def __init__(self) -> None:
        self.valid = [*valid_batches(), *sparse_batches()]
        self.foreign = foreign_bodies()

    def make(self, chance: random.Random) -> bytes:
        data = bytearray(chance.choice(self.valid))
        if chance.random() < 0.03:
            data[HEADER_BYTES:] = chance.choice(self.foreign)
        for _ in range(chance.choice((0, 1, 1, 1, 2, 3, 6))):
            self._mutate_body(chance, data)
        if chance.random() < 0.2:
            mutate(chance, data, 12, HEADER_BYTES)
        if chance.random() < 0.95:
            reseal(data)
        elif chance.random() < 0.5:
            mutate(chance, data)
        return bytes(data)

    def _mutate_body(self, chance: random.Random, data: bytearray) -> None:
        start = HEADER_BYTES
        if unpack(data).encoding == 1 and len(data) > start + 16 and chance.random() < 0.9:
            metadata = struct.unpack_from("<i", data, start + 4)[0]
            border = start + 8 + metadata
            if start < border < len(data):
                if chance.random() < 0.6:
                    mutate(chance, data, start + 8, border)
                else:
                    mutate(chance, data, border)
                return
        mutate(chance, data, start)

    def run(self, data: bytes) -> str:
        outcome = "accepted"
        buffer = bytearray(data)
        view = memoryview(buffer)
        try:
            header = check_header(view)
            batch.validate(view, header)
        except StentorError as error:
            outcome = error.code
        if outcome == "accepted":
            stamp(view, 0, base_offset=5, epoch=1, appended_at_us=NOW_US)
            try:
                read_everything(bytes(buffer), header.count)
            except Exception as error:
                raise Finding(f"the head accepted what a reader cannot read: {error!r}") from error
        else:
            with suppress(StentorError):
                read_everything(data, None)
        return outcome


def reseal(data: bytearray) -> None:
    """Checksums and length as a hostile producer would make them."""
    if len(data) >= HEADER_BYTES:
        put(data, 4, 4, len(data))
        put(data, 12, 4, crc32c(memoryview(data)[HEADER_BYTES:]))
        seal(memoryview(data), 0)


def read_everything(chunk: bytes, count: int | None) -> None:
    """What a consumer can do with a delivery: messages one by one, and Arrow."""
    read_run(chunk)
    read_plainly(chunk, count)
    seen = 0
    for run in decode_messages(chunk, "t", 0, 0, None):
        for message in run.messages:
            seen += 1
            if count is not None:
                message.timestamp  # noqa: B018 - reading it is the test
            for key, value in message.headers:
                if not isinstance(key, str) or not isinstance(value, bytes | None):
                    raise Finding(f"a header of {message} is ({key!r}, {value!r})")
    rows = 0
    for _, found in offset_batches(chunk, "t", 0, 0, None):
        # Whether times can be shown as dates is for the head to judge.
        (found if count is not None else found.select(["key", "value", "headers"])).to_pylist()
        rows += found.num_rows
    if count is not None and not seen == rows == count:
        raise Finding(f"{count} messages were accepted, {seen} and {rows} were read")


def read_plainly(chunk: bytes, count: int | None) -> None:
    """An Arrow body as clients without pyarrow read it: what the head accepted is the same to both."""
    header = check_header(chunk)
    body = deltas.rows(header, memoryview(chunk)[HEADER_BYTES : header.length])
    if header.encoding != ENCODING_ARROW or (contents := arrow_message.read(body, header.count)).compression:
        return
    times, *others = plain_body.columns(body, contents)
    if count is not None:
        wanted, *expected = arrow_body.columns(arrow_body.decode(body, count))
        if list(times) != list(wanted) or others != expected:
            raise Finding("pyarrow and plain Python read different messages from one body")


def read_run(chunk: bytes) -> None:
    """Packed rows as a reader decodes them among others: both ways of doing it agree."""
    run = runs.find(chunk, 0)
    if run is None:
        return
    found: list[Any] = []
    for decode in (runs.few, runs.many):
        try:
            batch_found = decode(chunk, run)
            batch_found.validate(full=True)
            found.append(batch_found)
        except CorruptData:
            found.append(None)
    if (found[0] is None) != (found[1] is None) or (found[0] is not None and not found[0].equals(found[1])):
        raise Finding(f"a run of packed rows is {found[0]} by values and {found[1]} by columns")


# --- control messages ---------------------------------------------------------------------------

CONTROL_TYPES = (
    messages.Request,
    messages.Response,
    messages.Hello,
    messages.Welcome,
    messages.Failure,
    messages.OpenStream,
    messages.StreamEnded,
    messages.RouteChange,
)


def valid_messages() -> list[bytes]:
    settings = messages.TopicSettings(partitions=3, retention_age_s=60)
    info = messages.BrokerInfo(id="b", cluster_id="c", version="1", address="h:1")
    route = messages.TopicRoute(
        name="t", id=1, settings=settings, partitions=[messages.PartitionRoute(epoch=1, chain=["b"])]
    )
    failure = messages.Failure(code="limit_exceeded", message="m", detail={"start": 1, "hint": "h", "self": 2})
    made = [
        messages.CreateTopic(name="t", settings={"partitions": 3, "flush": "always"}, exist_ok=True),
        messages.AlterTopic(name="t", changes={"flush": "interval", "retention_bytes": 5}),
        messages.RegisterSchema(name="t", columns=[{"name": "n", "type": "list", "columns": [{"name": "item"}]}]),
        messages.DeleteTopic(name="t"),
        messages.DescribeTopic(name="t"),
        messages.ListTopics(pattern="a.>"),
        messages.FindOffset(topic_id=TOPIC_ID, partition=0, timestamp_us=5),
        messages.FindOffset(topic_id=TOPIC_ID, partition=0, at="latest"),
        messages.WatchRoutes(),
        messages.ListClients(),
        messages.GetStatistics(),
        messages.ReportDamage(topic_id=TOPIC_ID, partition=0, offset=1),
        messages.UseProducer(token=bytes(32)),
        messages.Hello(version_min=1, version_max=1, name="n", library="l", features=["x"]),
        messages.Welcome(version=1, broker=info, features=["a"]),
        failure,
        messages.OpenStream(topic_id=TOPIC_ID, partition=0, start=0, credit=1000, end=5),
        messages.StreamEnded(next_offset=3, failure=failure),
        messages.RouteChange(version=2, topics=[route], removed=[3]),
        messages.RouteTable(version=2, brokers=[info], topics=[route]),
        messages.OffsetFound(offset=1, start=0, committed=2),
        messages.Done(),
    ]
    return [messages.encode(message) for message in made]


def wild(chance: random.Random, depth: int = 0) -> Any:
    """Any value that MessagePack can carry."""
    scalars = (
        None,
        chance.random() < 0.5,
        chance.choice(INTERESTING_64),
        -chance.choice(INTERESTING_64[:-3]),
        chance.choice((0.0, -1.5, float("inf"), float("nan"), 1e308)),
        chance.randbytes(chance.randrange(20)),
        chance.choice(("", "earliest", "x" * 300, "a.b", "\0", "é", ">", "always")),
        msgspec.msgpack.Ext(chance.randrange(-1, 128), chance.randbytes(8)),
    )
    if depth > 4 or chance.random() < 0.8:
        return chance.choice(scalars)
    if chance.random() < 0.5:
        return [wild(chance, depth + 1) for _ in range(chance.randrange(5))]
    return {str(wild(chance, 9)): wild(chance, depth + 1) for _ in range(chance.randrange(5))}


class MessageTarget:
    """A control message of either direction."""

    name = "messages"

    def __init__(self) -> None:
        self.valid = valid_messages()

    def make(self, chance: random.Random) -> bytes:
        data = bytearray(chance.choice(self.valid))
        style = chance.random()
        if style < 0.4:
            message = msgspec.msgpack.decode(data)
            for name in list(message):
                if chance.random() < 0.4:
                    message[name] = wild(chance)
            data = bytearray(msgspec.msgpack.encode(message))
        elif style < 0.45:
            data = bytearray(b"\x91" * chance.choice((10, 1_000, 100_000)))
        for _ in range(chance.choice((0, 1, 1, 2, 4))):
            mutate(chance, data)
        return bytes(data)

    def run(self, data: bytes) -> str:
        outcome = "protocol_error"
        for kind in CONTROL_TYPES:
            try:
                found = messages.decode(data, kind)
            except StentorError:
                continue
            outcome = "accepted"
            failure = found if isinstance(found, messages.Failure) else getattr(found, "failure", None)
            if failure is not None and not isinstance(messages.raised(failure), StentorError):
                raise Finding("a failure became something else")
        return outcome


# --- frames -------------------------------------------------------------------------------------


class StillClock:
    def now_us(self) -> int:
        return NOW_US

    def monotonic(self) -> float:
        return 1.0


class DoneTask:
    def __init__(self, work: Any) -> None:
        try:
            work.send(None)
        except StopIteration:
            return
        raise Finding("a request waited for something")

    def add_done_callback(self, done: Any) -> None:
        done(self)

    def cancel(self) -> None: ...


class TurnLoop:
    """A loop of which one turn is run at a time."""

    def __init__(self) -> None:
        self.soon: list[Any] = []

    def call_soon(self, work: Any) -> None:
        self.soon.append(work)

    def create_task(self, work: Any) -> DoneTask:
        return DoneTask(work)

    def turn(self) -> None:
        while self.soon:
            now, self.soon = self.soon, []
            for work in now:
                work()


class MemoryLog:
    """Keeps the ends, not the bytes."""

    in_memory = is_over_limit = False

    def __init__(self) -> None:
        self.start = self.end = self.synced_end = self.bytes = 0
        self.snapshot: Any = None
        self.damaged: list[Any] = []

    def append(self, chunk: bytes, headers: Any) -> None:
        (header,) = headers
        if header.base_offset != self.end or header.length != len(chunk):
            raise Finding("an append at the wrong place")
        self.end = header.end_offset

    def sync(self) -> int:
        self.synced_end = self.end
        return self.end

    def read(self, offset: int, limit: int, max_bytes: int) -> LogSlice:
        return LogSlice(b"", offset, offset)

    def search(self, *_: int) -> SimpleNamespace:
        return SimpleNamespace(found={}, go_on=lambda: True)

    def statistics(self) -> LogStatistics:
        raise NotImplementedError


class Threads:
    loop: Any = SimpleNamespace(call_later=lambda *_: SimpleNamespace(cancel=lambda: None))
    times = SyncTimes()

    def submit(self, work: Any, done: Any) -> None:
        done(work(), None)


class StubAdmission:
    """Everybody is let in."""

    def __init__(self) -> None:
        self.receiving = ReceiveBudget()
        self.session: Session | None = None

    def started(self, session: Session) -> None:
        self.session = session

    def became(self, newcomer: Session, session: Session) -> None:
        self.session = session

    def greeted(self, session: Session) -> None: ...
    def ended(self, session: Session) -> None: ...
    def note_refusal(self, text: str, *details: object) -> None: ...


class StubDesk:
    """Answers everything, and refuses one thing."""

    async def serve(self, client: Any, request: Any) -> Any:
        if isinstance(request, messages.CreateTopic):
            raise NotReady("Not now.")
        return messages.Done()


class StubBroker:
    """What sessions need of a broker: one partition, whose log keeps nothing."""

    def __init__(self) -> None:
        self.loop = TurnLoop()
        clock = StillClock()
        threads: Any = Threads()
        self.one = Partition(
            topic="t",
            topic_id=TOPIC_ID,
            index=0,
            settings=messages.TopicSettings(),
            log=MemoryLog(),  # type: ignore[arg-type]
            replica=alone(),
            clock=clock,
            syncs=threads,
            reads=threads,
        )
        self.admission = StubAdmission()
        identity, catalogue = BrokerIdentity(), Catalogue()
        identity.broker_id, identity.cluster_id, identity.alone = "b", "c", True
        nothing: Any = None
        self.failures = Failures(self.loop, clock.monotonic)  # type: ignore[arg-type]
        environment: Any = SimpleNamespace(clock=clock, failures=self.failures)
        serving = Serving(
            environment,
            identity,
            Standing(),
            catalogue=catalogue,
            store=nothing,
            partitions={(TOPIC_ID, 0): self.one},
            views=nothing,
            knows_expiry=lambda: True,
            knows_holders=lambda: True,
        )
        inline_sync = InlineSync(clock, WriteCoalescing(self.loop))  # type: ignore[arg-type]
        turns = Turns(self.loop, clock.monotonic)  # type: ignore[arg-type]
        watch = LoopWatch(self.loop, clock)  # type: ignore[arg-type]
        slices = Slices(self.loop, clock.monotonic, self.failures)  # type: ignore[arg-type]
        self.welcome = GreetingServices(
            identity=identity,
            trust=Trust(identity, followed=FollowedStore(nothing, catalogue, nothing, nothing), background=nothing),
            catalogue=catalogue,
            clock=clock,
            admission=self.admission,
            turns=turns,
            info=lambda _: messages.BrokerInfo(id="b", cluster_id="c", version="1", address="h:1"),
            look=lambda: None,
            clients=ClientServices(
                serving=serving,
                desk=StubDesk(),
                permissions=Permissions(),
                inline_sync=inline_sync,
                has_few_sessions=lambda: True,
                services=self._services(identity, clock, nothing),
                turns=turns,
                watch=watch,
                slices=slices,
                long_requests=LongRequests(self.loop, slices, watch),
            ),
            peers=PeerServices(
                heard=lambda _, body: peer.decode(body) and None,
                offered=lambda sender, body, _: unpack_offer(sender, body) and None,
                registered=lambda _: True,
                inline_sync=inline_sync,
            ),
            peer_arrived=lambda _: None,
        )

    def _services(self, identity: BrokerIdentity, clock: Any, nothing: Any) -> ServiceDesk:
        """A desk where somebody answers requests, who takes them and says nothing."""
        around: Any = SimpleNamespace(clock=clock, coalescing=None)
        peers: Any = SimpleNamespace(names=())
        directory = ServiceDirectory(around, identity, peers, nothing)
        desk = ServiceDesk(identity, clock, trust=nothing, permissions=Permissions(), directory=directory)
        responder: Any = SilentResponder()
        desk.serve(responder, Serve(topic="svc.fuzz", window=1))
        return desk


class SilentResponder:
    """A responder that takes everything."""

    principal = ANYBODY
    takes_more = True

    def pass_on(self, frame: bytes) -> None: ...


class FakeTransport:
    """Takes everything, keeps what a case wrote."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.closing = False

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1)

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, buffer: Any) -> None:
        self.out += buffer

    def writelines(self, buffers: Any) -> None:
        for buffer in buffers:
            self.out += buffer

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True


class FrameTarget:
    """Frames into a real session of a broker, in pieces of any size."""

    name = "frames"

    def __init__(self) -> None:
        self.batches = BatchTarget()
        controls = valid_messages()
        hello = messages.encode(messages.Hello(version_min=1, version_max=1, name="fuzz"))
        wish = messages.encode(messages.OpenStream(topic_id=TOPIC_ID, partition=0, start=0, credit=1 << 20))
        self.hello = frames.frame(Kind.HELLO, 0, hello)
        self.valid = [
            self.hello,
            frames.frame(Kind.PING, 7),
            frames.frame(Kind.PONG, 7),
            frames.frame(Kind.GOODBYE, 0),
            frames.frame(Kind.OPEN_STREAM, 9, wish),
            frames.frame(Kind.CREDIT, 9, frames.CREDIT.pack(1 << 20)),
            frames.frame(Kind.CLOSE_STREAM, 9),
            frames.frame(Kind.DELIVER, 9, frames.DELIVERY.pack(1, 1, 0, 1)),
            frames.frame(Kind.ASK, 21, asks.encode_ask(b"svc.fuzz", b"value", [("a", b"b")], 1.0, 1, credit=9)),
            frames.frame(Kind.ASK, 22, asks.encode_ask(b"svc.fuzz", None, None, 1.0, 1), asks.NO_VALUE),
            frames.frame(Kind.ASK, 23, asks.encode_ask(b"svc.nobody", b"value", None, 1.0, 1)),
            frames.frame(Kind.REPLY, 1, asks.encode_reply(b"value", [("a", None)])),
            frames.frame(Kind.ASK_CREDIT, 21, asks.ASK_CREDIT.pack(9)),
            frames.frame(Kind.ASK_CANCEL, 22),
            frames.frame(Kind.TRANSACTION, 31, self._transaction()),
            *(frames.frame(Kind.REQUEST, 11, body) for body in controls),
        ]

    def _transaction(self) -> bytes:
        where = messages.group_messages.GroupPosition(topic_id=TOPIC_ID, partition=0, offset=1, since=(1, 1))
        asked = messages.group_messages.CommitTransaction(
            group="g", member="m", number=1, positions=[where], outputs=[("fuzz", bytes(self.batches.valid[0]))]
        )
        return messages.encode(asked)

    def make(self, chance: random.Random) -> bytes:
        data = bytearray()
        greeted = chance.random() < 0.9
        if greeted:
            data += self.hello
        start = len(data) if chance.random() < 0.9 else 0
        for _ in range(chance.randrange(1, 5)):
            if chance.random() < 0.5:
                body = self.batches.make(chance)
                data += frames.frame(Kind.PUBLISH, chance.randrange(1, 100), body, flags=chance.randrange(4))
            else:
                data += chance.choice(self.valid)
        for _ in range(chance.choice((0, 1, 1, 2, 3))):
            if chance.random() < 0.4 and len(data) >= start + 16:
                mutate(chance, data, start, start + 16)
            else:
                mutate(chance, data, start)
        return bytes(data)

    def run(self, data: bytes) -> str:
        chance = random.Random(len(data))
        transport, broker = FakeTransport(), StubBroker()
        asyncio._set_running_loop(broker.loop)  # type: ignore[arg-type]
        try:
            return self._run(data, chance, transport, broker)
        finally:
            asyncio._set_running_loop(None)

    def _run(self, data: bytes, chance: random.Random, transport: FakeTransport, broker: StubBroker) -> str:
        connection = Newcomer(broker.welcome, "").connection
        connection.connection_made(transport)  # type: ignore[arg-type]
        position = 0
        while position < len(data) and not transport.closing:
            room = connection.get_buffer(-1)
            step = min(len(room), len(data) - position, chance.choice((1, 7, 16, 200, 1 << 20)))
            room[:step] = data[position : position + step]
            position += step
            connection.buffer_updated(step)
            broker.loop.turn()
        outcome = last_word(bytes(transport.out), closed=transport.closing)
        connection.connection_lost(None)
        broker.loop.turn()
        session = broker.admission.session
        left = isinstance(session, ClientSession) and (session.streams or session.blocked)
        if left or broker.one.followers.streams or broker.one.followers._idle:
            raise Finding("a stream outlived its connection")
        broker.one.replica.check_invariants()
        if broker.one._requests._waiting:
            raise Finding("a publish was never answered")
        return outcome


def last_word(out: bytes, *, closed: bool) -> str:
    """What the broker said is whole frames; whoever was not let go with a goodbye was told why."""
    position = 0
    while position < len(out):
        length, kind, _, reserved, correlation = frames.HEADER.unpack_from(out, position)
        body = out[position + 16 : position + 16 + length]
        if kind not in frames.KINDS or reserved or len(body) != length:
            raise Finding("the broker broke its own protocol")
        if kind == Kind.ERROR:
            code = messages.decode(body, messages.Failure).code
            if code == "internal_error":
                raise Finding("an internal error")
            if closed and correlation == 0 and position + 16 + length == len(out):
                return f"refused {code}"
        position += 16 + length
    return "said goodbye" if closed else "still open"


# --- running ------------------------------------------------------------------------------------

TARGETS = (BatchTarget, FrameTarget, MessageTarget)
WEIGHTS = (2, 2, 1)


def case(targets: list[Any], seed: int, number: int) -> tuple[Any, bytes]:
    chance = random.Random(seed << 40 | number)
    target = chance.choices(targets, WEIGHTS)[0]
    return target, target.make(chance)


def work(seed: int, first: int, count: int, progress: Path) -> None:
    """The child: run the cases, note the number of each before it runs."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES_MAX, ADDRESS_SPACE_BYTES_MAX))
    targets = [make() for make in TARGETS]
    outcomes: Counter[str] = Counter()
    slowest = (0.0, 0)
    with progress.open("r+b") as file, mmap.mmap(file.fileno(), 8) as mark:
        for number in range(first, first + count):
            struct.pack_into("<Q", mark, 0, number)
            target, data = case(targets, seed, number)
            began = time.thread_time()
            try:
                outcome = target.run(data)
            except BaseException:  # noqa: BLE001 - whatever it is, it is a finding
                print(json.dumps({"number": number, "finding": traceback.format_exc()}), flush=True)
                raise SystemExit(3) from None
            took = time.thread_time() - began
            slowest = max(slowest, (took, number))
            outcomes[f"{target.name}: {outcome}"] += 1
    report = {
        "outcomes": outcomes,
        "resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "arrow_bytes": pa.default_memory_pool().max_memory(),
        "slowest_ms": slowest[0] * 1000,
        "slowest_case": slowest[1],
    }
    print(json.dumps(report), flush=True)


def replay_command(seed: int, number: int) -> str:
    return f"python -m tests.hostile.fuzz --seed {seed} --first {number} --cases 1"


def supervise(seed: int, first: int, count: int) -> int:
    """The parent: start the child, report what it found or how it died."""
    began = time.monotonic()
    with tempfile.NamedTemporaryFile() as progress:
        progress.write(bytes(8))
        progress.flush()
        child = [
            sys.executable,
            "-m",
            "tests.hostile.fuzz",
            "--seed",
            str(seed),
            "--first",
            str(first),
            "--cases",
            str(count),
        ]
        done = subprocess.run([*child, "--child", progress.name], stdout=subprocess.PIPE, check=False, text=True)
        (number,) = struct.unpack("<Q", Path(progress.name).read_bytes())
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        print(f"case {number} killed the process with {name}\n  {replay_command(seed, number)}")
        return 1
    report = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
    if "finding" in report:
        print(f"{report['finding']}\ncase {number}\n  {replay_command(seed, number)}")
        return 1
    if done.returncode:
        return done.returncode
    report |= {"seed": seed, "cases": count, "seconds": round(time.monotonic() - began, 1)}
    print_report(report)
    return 0 if report["resident_bytes"] <= RESIDENT_BYTES_MAX and report["arrow_bytes"] <= ARROW_BYTES_MAX else 1


def print_report(report: dict[str, Any]) -> None:
    for outcome, times in sorted(report["outcomes"].items()):
        print(f"  {times:>9,}  {outcome}")
    print(
        f"{report['cases']:,} cases of seed {report['seed']} in {report['seconds']} s;"
        f" peak memory {report['resident_bytes'] >> 20} MiB resident, {report['arrow_bytes'] >> 20} MiB in Arrow;"
        f" slowest case {report['slowest_case']}: {report['slowest_ms']:.1f} ms"
    )
    print(json.dumps(report))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        work(options.seed, options.first, options.cases, options.child)
        return 0
    return supervise(options.seed, options.first, options.cases)


if __name__ == "__main__":
    sys.exit(main())
