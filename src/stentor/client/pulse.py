"""Whether the broker at the other end of a link is still there: pinged when it is quiet, left when it stays so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor import limits
from stentor.wire.frames import Kind

if TYPE_CHECKING:
    import asyncio

    from stentor.client.link import BrokerLink


class Pulse:
    """When a link was last heard, and when it was asked."""

    def __init__(self, link: BrokerLink, loop: asyncio.AbstractEventLoop) -> None:
        self._link = link
        self._loop = loop
        self._seen_bytes = 0
        self._heard_at = loop.time()
        self.asked_at: float | None = None  # when it was pinged and has said nothing since
        self._heartbeat: asyncio.TimerHandle | None = None

    def beat(self) -> None:
        """Ping a quiet broker; give up on a silent one."""
        now, connection = self._loop.time(), self._link.connection
        if connection.bytes_in != self._seen_bytes:
            self._seen_bytes, self._heard_at = connection.bytes_in, now
        if now - self._heard_at > limits.SILENCE_S:
            self._link.give_up(f"nothing was heard for {limits.SILENCE_S:g} s")
            return
        connection.send(Kind.PING, 0)
        self._heartbeat = self._loop.call_later(limits.HEARTBEAT_S, self.beat)

    def excuse(self, seconds: float) -> None:
        """So much of its silence was the client's own."""
        self._heard_at += seconds
        if self.asked_at is not None:
            self.asked_at += seconds

    def look(self, *, wanted: bool, impatient: bool) -> None:
        """Called often where there are other brokers: ping one that is quiet, leave one that stays so."""
        now, connection = self._loop.time(), self._link.connection
        if connection.bytes_in != self._seen_bytes:
            self._seen_bytes, self._heard_at, self.asked_at = connection.bytes_in, now, None
        elif not impatient:
            self.asked_at = None
        elif self.asked_at is not None:
            if now - self.asked_at > limits.LINK_SILENCE_S - limits.LINK_WATCH_S:
                self._link.give_up(f"nothing was heard for {now - self._heard_at:.1f} s")
        elif now - self._heard_at >= (limits.LINK_WATCH_S if wanted else limits.LINK_IDLE_S):
            self.asked_at = now
            connection.send(Kind.PING, 0)

    def stop(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
