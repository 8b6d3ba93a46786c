"""A ZeroMQ gateway: one process, a client of the brokers, with a table and topics for ZeroMQ clients."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Self

import msgspec

from stentor import limits
from stentor.client.async_client import AsyncClient, connect_async
from stentor.core.names import check_topic_name
from stentor.errors import InvalidArgument, StentorError
from stentor.gateways.zmq import bounds
from stentor.gateways.zmq.clone import CloneServer
from stentor.gateways.zmq.guard import SharedRoom
from stentor.gateways.zmq.sockets import new_context, resolve
from stentor.gateways.zmq.statistics import GatewayStatistics
from stentor.gateways.zmq.topics import TopicServer
from stentor.transport.address import PORT_MAX

if TYPE_CHECKING:
    from collections.abc import Coroutine

logger = logging.getLogger(__name__)

PORTS = 5
"""Three for a table, two for topics."""


class GatewayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway serves, and where."""

    url: str | None = None  # of the brokers
    host: str = "127.0.0.1"  # to listen on
    port: int  # the first of its ports
    table: str = ""  # for Clone clients; empty: none
    topics: list[str] = []  # for SUB and PUSH
    three_frames: bool = False  # as the Guide's models 1 to 4 have it
    short_sequences: bool = False  # three frames, and sequences of four bytes: as its Python clients of these have it
    timeout: float = limits.DEFAULT_TIMEOUT_S
    silent_s: float = bounds.SILENT_S  # before it publishes; tests have no clients of an earlier gateway

    def check(self) -> None:
        """Say what is wrong with them."""
        if not self.table and not self.topics:
            raise InvalidArgument(
                "A ZeroMQ gateway needs a table or a topic to serve.",
                hint="Name one: stentor gateway zmq --table or --topic, stentor serve --zmq-table or --zmq-topics.",
            )
        if not 0 < self.port <= PORT_MAX - PORTS + 1:
            raise InvalidArgument(
                f"{self.port} is no port for a ZeroMQ gateway, which takes {PORTS} from there on.",
                hint="Choose one such as 5556.",
            )
        for name in (*self.topics, *([self.table] if self.table else ())):
            check_topic_name(name)


class ZmqGateway:
    """A running gateway. Use as an async context manager, and wait with `run()`."""

    def __init__(self, options: GatewayOptions) -> None:
        options.check()
        self._options = options
        self._counts = GatewayStatistics()
        self._client: AsyncClient | None = None
        self._context = new_context()
        self._room = SharedRoom()
        self._servers: list[CloneServer | TopicServer] = []

    async def __aenter__(self) -> Self:
        options = self._options
        try:
            host = await resolve(options.host)
            client = self._client = await connect_async(
                options.url, name=f"zmq gateway on port {options.port}", timeout=options.timeout
            )
            if options.table:
                clone = CloneServer(
                    client,
                    self._context,
                    options.table,
                    self._counts,
                    three_frames=options.three_frames,
                    short_sequences=options.short_sequences,
                    silent_s=options.silent_s,
                    room=self._room,
                )
                self._servers.append(clone)
                await clone.start(host, options.port)
            if options.topics:
                topics = TopicServer(client, self._context, options.topics, self._counts, room=self._room)
                self._servers.append(topics)
                await topics.start(host, options.port + 3)
        except BaseException:
            await self._close()
            raise
        return self

    async def run(self) -> None:
        """Serve until cancelled, or until something ends that cannot go on; that is raised."""
        work: list[Coroutine[None, None, None]] = [each for server in self._servers for each in server.work()]
        tasks = [asyncio.ensure_future(each) for each in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def statistics(self) -> GatewayStatistics:
        """Counts since the gateway started."""
        return msgspec.structs.replace(self._counts)

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def _close(self) -> None:
        for server in self._servers:
            try:
                await server.close()
            except StentorError as error:
                logger.warning("the gateway did not close in order: %s", error)
        self._context.destroy(linger=0)
        if self._client is not None:
            await self._client.close()
