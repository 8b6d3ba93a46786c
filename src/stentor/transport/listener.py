"""Listening sockets."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING, Any

from stentor import limits
from stentor.errors import ConnectionFailed, InvalidArgument

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


async def listen(
    loop: asyncio.AbstractEventLoop, factory: Callable[[], Any], host: str, port: int
) -> tuple[asyncio.AbstractServer, str, int]:
    """Start to accept connections: (server, host, actual port)."""
    try:
        server = await loop.create_server(factory, host, port, backlog=limits.LISTEN_BACKLOG, reuse_address=True)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConnectionFailed(
                f"Port {port} on {host} is in use.",
                hint=f"Another broker may be running. Choose another port with --port, for example --port {port + 10}.",
                operation="listen",
                object=f"{host}:{port}",
            ) from error
        raise InvalidArgument(
            f"Cannot listen on {host}:{port}: {error.strerror or error}.",
            hint="Check the host and the port; ports below 1024 need privileges.",
            operation="listen",
            object=f"{host}:{port}",
        ) from error
    for listening in server.sockets:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return server, host, server.sockets[0].getsockname()[1]
