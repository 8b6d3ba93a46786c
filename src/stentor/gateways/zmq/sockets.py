"""ZeroMQ sockets as the gateway uses them: bounded, and bound to an address or refused in one sentence."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING, Any

import zmq
import zmq.asyncio

from stentor import limits
from stentor.errors import ConnectionFailed, InvalidArgument
from stentor.gateways.zmq import bounds
from stentor.transport.address import Address

if TYPE_CHECKING:
    from zmq.asyncio import Context, Socket


def new_context() -> Context:
    """For all sockets of one gateway."""
    return zmq.asyncio.Context()


def bind(context: Context, kind: int, endpoint: str) -> Socket:
    """A socket that listens. What waits for a peer is bounded, and a peer that sends too much at once is cut off."""
    made = context.socket(kind)
    made.linger = 0
    made.sndhwm = made.rcvhwm = bounds.QUEUE_MESSAGES
    made.maxmsgsize = limits.MESSAGE_VALUE_BYTES_MAX
    made.ipv6 = True
    if kind == zmq.ROUTER:
        made.router_mandatory = True  # a full queue is waited for: a snapshot must not lack a key
    try:
        made.bind(endpoint)
    except zmq.ZMQError as error:
        made.close()
        raise cannot_listen(endpoint, error.errno, str(error)) from error
    return made


def cannot_listen(where: str, number: int | None, why: str) -> ConnectionFailed | InvalidArgument:
    """One sentence about an address that cannot be used."""
    if number == errno.EADDRINUSE:
        return ConnectionFailed(
            f"The ZeroMQ gateway cannot listen on {where}: the port is in use.",
            hint="Choose another one with --zmq-port. The gateway takes five ports from there on.",
            operation="listen",
            object=where,
        )
    return InvalidArgument(
        f"The ZeroMQ gateway cannot listen on {where}: {why}.",
        hint="Check the host and the port.",
        operation="listen",
        object=where,
    )


async def resolve(host: str) -> str:
    """The address of a host: ZeroMQ listens on addresses, not on names."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise cannot_listen(host, error.errno, error.strerror or str(error)) from error
    return str(found[0][4][0])


def tcp(host: str, port: int) -> str:
    """The endpoint of a host and a port."""
    return f"tcp://{Address(host, port)}"


def send_now(publisher: Socket, frames: list[bytes]) -> None:
    """Hand a message to a publisher's socket, which never waits: it drops what a slow subscriber has no room for."""
    sent: Any = publisher.send_multipart(frames, zmq.NOBLOCK)
    sent.result()
