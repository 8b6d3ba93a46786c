"""Topics for plain ZeroMQ clients, on two ports.

    SUB  ◄── P + 3   topic | key | value | position     each message that is published from now on
    PUSH ──► P + 4   topic | key | value                 or topic | value; no key is an empty frame

A position is the text from which a Stentor client reads on after that message: who missed some gets them from there.
"""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING

import zmq

from stentor.errors import StentorError
from stentor.gateways.zmq.relay import GuardedPort
from stentor.gateways.zmq.sockets import bind, send_now
from stentor.transport.socket_folder import make_socket_folder

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from zmq.asyncio import Context, Socket

    from stentor.client.async_client import AsyncClient
    from stentor.client.message import Receipt
    from stentor.client.producer import AsyncProducer
    from stentor.client.subscription import AsyncSubscription
    from stentor.gateways.zmq.guard import SharedRoom
    from stentor.gateways.zmq.statistics import GatewayStatistics

logger = logging.getLogger(__name__)


class TopicServer:
    """Some topics on two ports."""

    def __init__(
        self, client: AsyncClient, context: Context, topics: list[str], counts: GatewayStatistics, *, room: SharedRoom
    ) -> None:
        self._client = client
        self._context = context
        self._topics = topics
        self._counts = counts
        self._producers: dict[bytes, AsyncProducer] = {}
        self._subscription: AsyncSubscription | None = None
        self._sockets: list[Socket] = []
        self._ports: list[GuardedPort] = []
        self._room = room
        self._directory = ""

    async def start(self, host: str, port: int) -> None:
        """Open the topics, then the ports."""
        for topic in self._topics:
            self._producers[topic.encode()] = await self._client.producer(topic)
        self._subscription = await self._client.subscribe(self._topics, start="latest")
        self._directory = str(make_socket_folder("stentor-zmq-"))
        for number, (kind, name) in enumerate(((zmq.PUB, "pub"), (zmq.PULL, "pull"))):
            path = f"{self._directory}/{name}"
            self._sockets.append(bind(self._context, kind, f"ipc://{path}"))
            relay = GuardedPort(path, self._counts, self._room, subscribes=kind == zmq.PUB)
            self._ports.append(relay)
            await relay.start(host, port + number)

    def work(self) -> list[Coroutine[None, None, None]]:
        """What runs until the gateway ends."""
        out, into = self._sockets
        return [self._publish(out), self._take(into)]

    async def _publish(self, socket: Socket) -> None:
        assert self._subscription is not None
        async for message in self._subscription:
            position = str(message.position).encode()
            send_now(socket, [message.topic.encode(), message.key or b"", message.value or b"", position])
            self._counts.messages_out += 1

    async def _take(self, socket: Socket) -> None:
        """Who pushes faster than the brokers take waits: his socket blocks when its own queue is full."""
        while True:
            frames = await socket.recv_multipart()
            producer = self._producers.get(frames[0])
            if producer is None or len(frames) not in (2, 3):
                self._counts.bad_frames += 1
                logger.info("a message of %d frames for %r was dropped", len(frames), frames[0][:40])
                continue
            key = frames[1] if len(frames) == 3 else b""
            try:
                await producer.send(frames[-1], key=key or None, on_delivery=self._delivered)
            except StentorError as error:
                self._lost(error)

    def _delivered(self, receipt: Receipt | None, error: StentorError | None) -> None:
        if error is not None:
            self._lost(error)
        elif receipt is not None:
            self._counts.messages_in += 1

    def _lost(self, error: StentorError) -> None:
        self._counts.messages_lost += 1
        logger.warning("a message was not published: %s", error)

    async def close(self) -> None:
        """Close the ports; what was taken is published first."""
        for each in self._ports:
            await each.close()
        for socket in self._sockets:
            socket.close()
        for producer in self._producers.values():
            try:
                await producer.close()
            except StentorError as error:
                logger.warning("messages were not published: %s", error)
        if self._subscription is not None:
            await self._subscription.close()
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)
