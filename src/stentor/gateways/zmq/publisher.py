"""The publisher's port: changes and signs of life for subscribers.

A subscriber filters by the beginning of the first frame. So HUGZ, whose first frame is "HUGZ", reaches nobody who
subscribed to a subtree alone, and such a client would take the silence for a dead server. The socket is an XPUB, which
tells what its subscribers asked for, and each of these prefixes gets signs of life with itself as the key. Their
sequence is 0, so clients discard them as they discard HUGZ.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import zmq

from stentor.gateways.zmq import bounds, chp
from stentor.gateways.zmq.sockets import bind, send_now

if TYPE_CHECKING:
    from collections.abc import Callable

    from zmq.asyncio import Context

    from stentor.gateways.zmq.statistics import GatewayStatistics

logger = logging.getLogger(__name__)


class ClonePublisher:
    """KVPUB and HUGZ."""

    def __init__(
        self,
        context: Context,
        endpoint: str,
        counts: GatewayStatistics,
        shape: Callable[[chp.Frames], chp.Frames],
    ) -> None:
        self._socket = bind(context, zmq.XPUB, endpoint)
        self._counts = counts
        self._shape = shape
        self._prefixes: set[bytes] = set()

    def publish(self, frames: chp.Frames) -> None:
        """To all who subscribed to it."""
        send_now(self._socket, self._shape(frames))

    def give_hugz(self) -> None:
        """A sign of life for every subscriber."""
        for key in (chp.HUGZ, *hugz_keys(self._prefixes)):
            self.publish(chp.message(key, 0, b"", b"", b""))
        self._counts.hugz += 1

    async def follow_subscriptions(self) -> None:
        """Learn which prefixes there are, for ever."""
        while True:
            self._note(await self._socket.recv_multipart())

    def _note(self, frames: list[bytes]) -> None:
        kind, prefix = frames[0][:1], frames[0][1:]
        if kind == b"\x00":
            self._prefixes.discard(prefix)
        elif kind != b"\x01":
            self._counts.bad_frames += 1
        elif len(self._prefixes) < bounds.HUGZ_PREFIXES_MAX:
            self._prefixes.add(prefix)
        else:
            logger.warning("a subscription gets no HUGZ: there are %d prefixes already", bounds.HUGZ_PREFIXES_MAX)

    def close(self) -> None:
        self._socket.close()


def hugz_keys(prefixes: set[bytes]) -> list[bytes]:
    """Keys with which signs of life reach everybody who does not get "HUGZ": a longer prefix reaches shorter ones."""
    ordered = sorted(prefix for prefix in prefixes if not chp.HUGZ.startswith(prefix))
    following = [*ordered, b""][1:]
    return [prefix for prefix, after in zip(ordered, following, strict=True) if not after.startswith(prefix)]
