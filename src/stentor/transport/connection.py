"""A framed connection: bytes in, frames out, for brokers and clients alike.

Reading. The socket fills one reused buffer (`asyncio.BufferedProtocol`); whole frames are handed to
the owner as views into it, and the remainder is moved to its front. Fresh buffers per read would
double the kernel time by page faults. The buffer starts small, grows to full size when a peer
sends at speed, and doubles up to one frame for a large frame, only as fast as its bytes arrive.

Writing. `write` takes a list of buffers; nothing is copied here. When the socket is slow the owner
is told through `writable`, and holds back by itself.

A view handed to `frame_received` is valid until that call returns.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any, Protocol

from stentor import limits
from stentor.errors import LimitExceeded, ProtocolError, StentorError
from stentor.wire import frames

if TYPE_CHECKING:
    from collections.abc import Sequence

_WRITE_LOW_BYTES = limits.WRITE_BUFFER_BYTES_MAX // 4


class Owner(Protocol):
    """Who a connection reports to."""

    def connected(self, connection: Connection) -> None: ...
    def frame_received(self, kind: int, flags: int, correlation: int, body: memoryview) -> None: ...
    def read_finished(self) -> None: ...
    def writable_changed(self, writable: bool) -> None: ...
    def refused(self, error: StentorError) -> None: ...
    def disconnected(self, error: Exception | None) -> None: ...


class Connection(asyncio.BufferedProtocol):
    """One TCP connection that speaks frames."""

    def __init__(
        self,
        owner: Owner,
        *,
        body_bytes_max: int = limits.FRAME_BODY_BYTES_MAX,
        buffer_bytes: int = limits.READ_BUFFER_BYTES,
    ) -> None:
        self._owner = owner
        self._full_bytes = buffer_bytes  # of the read buffer, for a peer at full speed
        self._transport: Any = None
        self._buffer = bytearray(limits.READ_BUFFER_IDLE_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._wanted = frames.HEADER_BYTES  # how many bytes make the next step possible
        self.body_bytes_max = body_bytes_max
        self.writable = True
        self.closed = False
        self.bytes_in = 0
        self.bytes_out = 0
        self.frames_in = 0

    # --- what the loop calls --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.set_write_buffer_limits(high=limits.WRITE_BUFFER_BYTES_MAX, low=_WRITE_LOW_BYTES)
        self._owner.connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        if self._filled == len(self._buffer):
            self._grow()
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.bytes_in += nbytes
        self._filled += nbytes
        if self._filled < self._wanted:
            return
        error: StentorError | None = None
        try:
            self._parse()
        except StentorError as known:
            error = known
        except struct.error:  # an owner unpacked a body that was not as long as its kind must be
            error = ProtocolError("A frame's body has the wrong size.")
        finally:
            self._owner.read_finished()  # also for the frames before a bad one
        if error is not None:
            self._owner.refused(error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._owner.disconnected(error)

    def pause_writing(self) -> None:
        self.writable = False
        self._owner.writable_changed(False)  # noqa: FBT003

    def resume_writing(self) -> None:
        self.writable = True
        self._owner.writable_changed(True)  # noqa: FBT003

    # --- frames ---------------------------------------------------------------------------------

    def _parse(self) -> None:
        """Hand over every whole frame, then move the remainder to the front."""
        view, filled, position = self._view, self._filled, 0
        header_bytes, unpack = frames.HEADER_BYTES, frames.HEADER.unpack_from
        received = self._owner.frame_received
        wanted = header_bytes
        while filled - position >= header_bytes:
            length, kind, flags, reserved, correlation = unpack(view, position)
            if length > self.body_bytes_max or kind not in frames.KINDS or reserved:
                self._refuse(length, kind)
            if filled - position - header_bytes < length:
                wanted = header_bytes + length
                break
            start = position + header_bytes
            position = start + length
            self.frames_in += 1
            received(kind, flags, correlation, view[start:position])
            if self.closed:
                return
        was_full = filled == len(self._buffer)
        if position:
            remainder = filled - position
            if remainder:
                view[:remainder] = view[position:filled]
            self._filled = remainder
        self._wanted = wanted
        self._fit(was_full=was_full)

    def _refuse(self, length: int, kind: int) -> None:
        if kind not in frames.KINDS:
            raise ProtocolError(
                f"A frame of unknown kind {kind} arrived.",
                hint="Is the other side really speaking the Stentor protocol?",
            )
        if length > self.body_bytes_max:
            raise LimitExceeded(f"A frame announces {length} bytes; the limit is {self.body_bytes_max}.")
        raise ProtocolError("A frame's reserved bytes are not zero.")

    def _fit(self, *, was_full: bool) -> None:
        """Full size for a peer at full speed; back to it once a larger frame's bytes are gone."""
        size = len(self._buffer)
        if (was_full and size < self._full_bytes) or (size > self._full_bytes and self._wanted <= self._full_bytes):
            self._resize(self._full_bytes)

    def _grow(self) -> None:
        """The buffer is full: a peer at full speed, or a frame larger than the buffer."""
        if len(self._buffer) < self._full_bytes:
            self._resize(self._full_bytes)
        else:
            self._resize(min(2 * len(self._buffer), max(self._wanted, self._full_bytes)))

    def _resize(self, size: int) -> None:
        buffer = bytearray(size)
        buffer[: self._filled] = self._view[: self._filled]
        self._buffer = buffer
        self._view = memoryview(buffer)

    @property
    def mid_frame(self) -> bool:
        """Whether a frame has begun and not yet ended."""
        return self._filled > 0

    @property
    def unsent_bytes(self) -> int:
        """What was written and the socket has not taken yet."""
        return 0 if self._transport is None else int(self._transport.get_write_buffer_size())

    # --- what the owner calls -------------------------------------------------------------------

    def write(self, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        """Send buffers in order. They must not change until they are sent."""
        if self.closed or self._transport is None:
            return
        if len(buffers) == 1:
            self.bytes_out += len(buffers[0])
            self._transport.write(buffers[0])
            return
        self.bytes_out += sum(map(len, buffers))
        self._transport.writelines(buffers)

    def send(self, kind: int, correlation: int, body: bytes = b"", flags: int = 0) -> None:
        """Send one small frame."""
        self.write((frames.frame(kind, correlation, body, flags),))

    def pause_reading(self) -> None:
        if self._transport is not None and not self.closed:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self.closed:
            self._transport.resume_reading()

    @property
    def address(self) -> str:
        peer = self._transport.get_extra_info("peername") if self._transport is not None else None
        return f"{peer[0]}:{peer[1]}" if peer else "unknown"

    def close(self) -> None:
        """Close after what was written has been sent."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()
