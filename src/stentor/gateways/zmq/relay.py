"""The ports of a gateway: each leads its clients to a socket of ZeroMQ, past a guard (`guard`).

The collector's is one port for two kinds of sockets: what a client publishes changes with, PUB or PUSH.

RFC 12 has clients publish changes with a PUB socket, and so does the Guide's C client of model 6; its models 3 to 5 and
the Python client of model 6 push them. A SUB socket takes no PUSH peer and a PULL socket no PUB peer, and both cannot
listen on one port. But every connection of ZMTP 3 says what it is, in its first command:

    peer    ──► greeting, 64 bytes ──► READY command: … Socket-Type PUSH …
    socket  ──► greeting, 64 bytes ──► READY …

So the relay connects each peer to the SUB socket, passes the greetings on, reads the peer's READY, and stays or changes
to the PULL socket, where it says the same again. From then on it passes bytes on, and ZeroMQ does the rest.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from stentor.gateways.zmq import bounds
from stentor.gateways.zmq.guard import NotUnderstood, PeerGuard
from stentor.gateways.zmq.sockets import cannot_listen

if TYPE_CHECKING:
    from stentor.gateways.zmq.guard import SharedRoom
    from stentor.gateways.zmq.statistics import GatewayStatistics

logger = logging.getLogger(__name__)

_GREETING_BYTES: Final = 64
_SIGNATURE_BYTES: Final = 12  # ends with the version
_VERSION: Final = 3
_COMMAND: Final = 0x04
_TYPE: Final = b"\x0bSocket-Type\x00\x00\x00"  # length and name of the property, three bytes of the value's length

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class GuardedPort:
    """Listens for clients, and leads all of them to one socket of ZeroMQ."""

    def __init__(self, path: str, counts: GatewayStatistics, room: SharedRoom, *, subscribes: bool = False) -> None:
        self._first = path
        self._counts = counts
        self._room = room
        self._subscribes = subscribes
        self._server: asyncio.Server | None = None
        self._relaying: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> None:
        """Listen."""
        try:
            self._server = await asyncio.start_server(self._accept, host, port, limit=bounds.RELAY_BYTES)
        except OSError as error:
            raise cannot_listen(f"tcp://{host}:{port}", error.errno, error.strerror or str(error)) from error

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._relaying) >= bounds.CONNECTIONS_PER_PORT_MAX:
            writer.close()
            return
        self._relaying.add(task)
        try:
            await self._relay((reader, writer))
        except NotUnderstood as wrong:
            self._counts.bad_frames += 1
            logger.info("a connection was closed: %s", wrong)
        except (OSError, EOFError, TimeoutError, asyncio.CancelledError):
            pass  # the client went away, or we go
        finally:
            self._relaying.discard(task)
            writer.close()

    async def _relay(self, peer: Streams) -> None:
        guard = PeerGuard(self._room, subscribes=self._subscribes)
        inner: Streams | None = None
        try:
            inner = await asyncio.open_unix_connection(self._first)
            await _pass_on(peer, inner, guard)
        finally:
            guard.close()
            if inner is not None:
                inner[1].close()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = list(self._relaying)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class CollectorRelay(GuardedPort):
    """Listens for clients, and leads each to the socket that takes its kind."""

    def __init__(self, sub_path: str, pull_path: str, counts: GatewayStatistics, room: SharedRoom) -> None:
        super().__init__(sub_path, counts, room)
        self._paths = {b"PUB": sub_path, b"XPUB": sub_path, b"PUSH": pull_path}

    async def _relay(self, peer: Streams) -> None:
        inner: Streams | None = None
        try:
            async with asyncio.timeout(bounds.HANDSHAKE_S):
                inner = await asyncio.open_unix_connection(self._first)
                greeting = await self._greet(peer, inner)
                kind, ready = await _ready(peer[0])
                path = self._paths.get(kind)
                if path is None:
                    raise NotUnderstood(f"its socket is {kind[:20]!r}, not PUB or PUSH")
                if path != self._first:
                    inner[1].close()
                    inner = await asyncio.open_unix_connection(path)
                    inner[1].write(greeting)
                    await inner[0].readexactly(_GREETING_BYTES)
            inner[1].write(ready)
            await _pass_on(peer, inner, PeerGuard(self._room, greeted=True))
        finally:
            if inner is not None:
                inner[1].close()

    async def _greet(self, peer: Streams, inner: Streams) -> bytes:
        """Pass the greetings on; the peer's. Either side waits for the other's version before it says the rest."""
        begin = await peer[0].readexactly(1)
        if begin != b"\xff":
            raise NotUnderstood("it does not speak ZeroMQ")
        answer = asyncio.ensure_future(_copy(inner[0], peer[1], _GREETING_BYTES))
        try:
            inner[1].write(begin)
            signature = await _copy(peer[0], inner[1], _SIGNATURE_BYTES - 1)
            if signature[9] < _VERSION:
                raise NotUnderstood("it speaks a version of ZeroMQ before 4.0")
            rest = await _copy(peer[0], inner[1], _GREETING_BYTES - _SIGNATURE_BYTES)
            await answer
        finally:
            answer.cancel()
        return begin + signature + rest


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: int) -> bytes:
    """Pass on so many bytes, each as soon as it is there."""
    passed = b""
    while len(passed) < count:
        piece = await reader.read(count - len(passed))
        if not piece:
            raise EOFError
        writer.write(piece)
        passed += piece
    return passed


async def _ready(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """What kind of socket a peer is, and the command that says so."""
    flags, length = await reader.readexactly(2)
    body = await reader.readexactly(length)
    if flags != _COMMAND or not body.startswith(b"\x05READY"):
        raise NotUnderstood("it asks for security, which the gateway does not have")
    _, found, rest = body.partition(_TYPE)
    if not found or not rest:
        raise NotUnderstood("it does not say what its socket is")
    return rest[1 : 1 + rest[0]], bytes((flags, length)) + body


async def _pass_on(peer: Streams, inner: Streams, guard: PeerGuard) -> None:
    """Until either side ends. Who sends faster than the other takes waits."""
    into = asyncio.ensure_future(_take_in(peer[0], inner[1], guard))
    directions = [into, asyncio.ensure_future(_pump(inner[0], peer[1]))]
    if not guard.greeted:
        directions.append(asyncio.ensure_future(_until_greeted(guard)))
    try:
        done, _ = await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        for direction in done:
            direction.result()
    finally:
        for direction in directions:
            direction.cancel()
        await asyncio.gather(*directions, return_exceptions=True)
        guard.close()


async def _take_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, guard: PeerGuard) -> None:
    while piece := await reader.read(bounds.RELAY_BYTES):
        guard.passes(piece)
        writer.write(piece)
        await writer.drain()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(bounds.RELAY_BYTES):
        writer.write(piece)
        await writer.drain()


async def _until_greeted(guard: PeerGuard) -> None:
    """End a connection that does not say what it is."""
    await asyncio.sleep(bounds.HANDSHAKE_S)
    if not guard.greeted:
        raise NotUnderstood("it has not said what it is")
    await asyncio.Event().wait()
