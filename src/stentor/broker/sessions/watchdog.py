"""What the other side of a connection has done lately: sent, finished a frame, taken what it was sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor import limits
from stentor.errors import ConnectionFailed, ProtocolError

if TYPE_CHECKING:
    from stentor.errors import StentorError
    from stentor.transport.connection import Connection


class Watchdog:
    """Since when a connection is silent, stuck in a frame, or deaf."""

    def __init__(self, connection: Connection, now: float) -> None:
        self._connection = connection
        self._seen_bytes = 0
        self._seen_frames = 0
        self._seen_taken = 0  # bytes that the other side has taken from us
        self.started = now
        self.deaf_since = now  # when it last took something, or had taken everything
        self._silent_since = self._frame_since = now

    def excuse(self, now: float) -> None:
        """The broker itself stood still: what the other side did meanwhile is not known yet."""
        self.started = self.deaf_since = now
        self.read_on(now)

    def read_on(self, now: float) -> None:
        """It was not read from until now."""
        self._silent_since = self._frame_since = now

    def look(self, now: float, *, held: bool) -> None:
        """Called every second; `held`: this broker does not read from it."""
        connection = self._connection
        if connection.bytes_in != self._seen_bytes:
            self._seen_bytes, self._silent_since = connection.bytes_in, now
        if connection.frames_in != self._seen_frames or not connection.mid_frame:
            self._seen_frames, self._frame_since = connection.frames_in, now
        if held or connection.starved:
            self.read_on(now)  # the silence is our doing
        connection.rest()
        unsent = connection.unsent_bytes
        taken = connection.bytes_out - unsent
        if taken != self._seen_taken or not unsent:
            self._seen_taken, self.deaf_since = taken, now

    def why_deaf(self, now: float) -> str:
        """Why it is dropped without a word: it would not hear it."""
        if now - self.deaf_since > limits.SILENCE_S:
            return f"it has not read for {limits.SILENCE_S:g} s"
        if self._connection.unsent_bytes > limits.UNSENT_BYTES_MAX:
            return f"it does not read {self._connection.unsent_bytes} bytes"
        return ""

    def refusal(self, now: float, *, greeted: bool) -> StentorError | None:
        """Why it is told to go."""
        if not greeted and now - self.started > limits.HANDSHAKE_S:
            return ProtocolError(f"No greeting within {limits.HANDSHAKE_S:g} s.")
        if now - self._frame_since > limits.PARTIAL_FRAME_S:
            return ProtocolError(f"A frame did not arrive whole within {limits.PARTIAL_FRAME_S:g} s.")
        if now - self._silent_since > limits.SILENCE_S:
            # Who stood still is welcome again: its calls must not take it for their own fault.
            return ConnectionFailed(f"Nothing was heard for {limits.SILENCE_S:g} s.")
        return None
