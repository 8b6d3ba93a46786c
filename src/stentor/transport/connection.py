"""A framed connection: bytes in, frames out, for brokers and clients alike.

Reading. The socket fills one reused buffer (`asyncio.BufferedProtocol`); whole frames are handed to
the owner as views into it, and the remainder is moved to its front. Fresh buffers per read would
double the kernel time by page faults. The buffer starts small, grows to full size when a peer
sends at speed, and to one frame for a large frame. Who may send only small frames keeps a small buffer.

A broker's connections borrow what is larger from one budget (`budget.py`) and give it back when they are quiet. A
client's connections grow as they need to.

A broker's connections also share the time of its loop (`turns.py`): when a slice is over and whole frames are left, the
connection is parked, and not read from, until its next slice. A client's connections handle each read to its end.

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
from stentor.transport.budget import ReceiveBudget, borrowed_buffer
from stentor.wire import frames

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stentor.transport.turns import Turns

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
        budget: ReceiveBudget | None = None,
        turns: Turns | None = None,
    ) -> None:
        self.owner = owner
        self._turns = turns
        self._parked = False  # waits for its next slice
        self._set_aside = False  # parked, and its owner wants nothing of it now
        self._was_full = False  # when the slices of this read began
        self._last_kind = 0  # of frame, in the last slice
        self.used_s = 0.0  # of the loop, by the count of `turns`
        self.name = ""  # whose it is, for people
        self._full_bytes = buffer_bytes  # of the read buffer, for a peer at full speed
        self._budget = budget
        self._borrowed = False
        self._transport: Any = None
        self._view = memoryview(bytearray(limits.READ_BUFFER_IDLE_BYTES))
        self._size = limits.READ_BUFFER_IDLE_BYTES
        self._filled = 0
        self._rested_bytes = 0  # received when this was last asked to rest
        self._paused = False  # by the owner
        self._starved = False  # waits for a larger buffer
        self.favoured = False  # another broker: has a reserved part of the budget
        self._wanted = frames.HEADER_BYTES  # how many bytes make the next step possible
        self.body_bytes_max = body_bytes_max
        self.writable = True
        self.closed = False
        self.left = False  # the other side closed it
        self.bytes_in = 0
        self.bytes_out = 0
        self.frames_in = 0

    # --- what the loop calls --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.set_write_buffer_limits(high=limits.WRITE_BUFFER_BYTES_MAX, low=_WRITE_LOW_BYTES)
        self.owner.connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.bytes_in += nbytes
        self._filled += nbytes
        if self._filled < self._wanted:
            if self._filled == self._size:
                self._grow()
            return
        if self._turns is None:
            self._handle()
        else:
            self._turns.arrived(self)

    def _handle(self) -> None:
        """Hand over frames to the end of the read, or of the slice."""
        error: StentorError | None = None
        try:
            self._parse()
        except StentorError as known:
            error = known
        except struct.error:  # an owner unpacked a body that was not as long as its kind must be
            error = ProtocolError("A frame's body has the wrong size.")
        finally:
            self.owner.read_finished()  # also for the frames before a bad one
        if error is not None:
            self.owner.refused(error)

    def eof_received(self) -> bool:
        self.left = True
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.left = self.left or (isinstance(error, ConnectionError) and not self.closed)
        self.closed = True
        if self._budget is not None:
            self._release()
        self.owner.disconnected(error)

    def pause_writing(self) -> None:
        self.writable = False
        self.owner.writable_changed(False)  # noqa: FBT003

    def resume_writing(self) -> None:
        self.writable = True
        self.owner.writable_changed(True)  # noqa: FBT003

    # --- frames ---------------------------------------------------------------------------------

    def _parse(self) -> None:
        """Hand over every whole frame, or those that a slice has time for; then move the remainder to the front."""
        view, filled, position = self._view, self._filled, 0
        turns = self._turns
        parked = False
        header_bytes, unpack = frames.HEADER_BYTES, frames.HEADER.unpack_from
        received = self.owner.frame_received
        wanted, kind = header_bytes, 0
        while filled - position >= header_bytes:
            length, kind, flags, reserved, correlation = unpack(view, position)
            if length > self.body_bytes_max or kind not in frames.KINDS or reserved:
                self._refuse(length, kind)
            if filled - position - header_bytes < length:
                wanted = header_bytes + length
                break
            if position and turns is not None and turns.now() >= turns.until:
                parked = True
                break
            start = position + header_bytes
            position = start + length
            self.frames_in += 1
            received(kind, flags, correlation, view[start:position])
            if self.closed:
                return
        self._last_kind = kind
        was_full = self._was_full or filled == self._size
        if position:
            remainder = filled - position
            if remainder:
                view[:remainder] = view[position:filled]
            self._filled = remainder
        self._wanted = wanted
        self._parked, self._was_full = parked, parked and was_full
        if not parked:
            self._fit(was_full=was_full)

    def _refuse(self, length: int, kind: int) -> None:
        if kind not in frames.KINDS:
            raise ProtocolError(
                f"A frame of unknown kind {kind} arrived.",
                hint="Check that the other side speaks the Stentor protocol.",
            )
        if length > self.body_bytes_max:
            raise LimitExceeded(f"A frame announces {length} bytes; the limit is {self.body_bytes_max}.")
        raise ProtocolError("A frame's reserved bytes are not zero.")

    # --- turns ----------------------------------------------------------------------------------

    def take_turn(self) -> bool:
        """Handle frames for a slice; return whether whole ones are left that the owner lets through."""
        was_parked = self._parked
        if was_parked and self._paused:
            self._set_aside = True
            return False
        self._handle()
        if was_parked and not self._parked:
            self._read_or_not()
        return self._parked

    def park(self) -> None:
        """Read no more until the next slice."""
        self._parked = True
        self._read_or_not()

    def whose(self) -> str:
        """Return whose connection this is, for people."""
        kind = frames.Kind(self._last_kind).name if self._last_kind in frames.KINDS else "nothing yet"
        return f"{self.name or 'a stranger'} at {self.address} ({kind})"

    # --- the buffer -----------------------------------------------------------------------------

    def _fit(self, *, was_full: bool) -> None:
        """After a read: full size for a peer at full speed, back to it after a larger frame, room for the next one."""
        if self._size > self._full_bytes >= self._wanted:
            self._borrow(self._full_bytes)  # less than before, which there is always room for
        if self._borrowed and self._budget is not None and self._budget.contended:
            self._give_back()
        if was_full or self._filled == self._size or (self._borrowed and self._wanted > self._size):
            self._grow()

    def _grow(self) -> None:
        """Full size if there is room; and room for the frame that has begun, or a wait for it.

        Who is lent a large buffer asks for a larger one before it is full: what waits holds as little as it can.
        """
        if self._wanted <= self._full_bytes <= self.body_bytes_max and self._size < self._full_bytes:
            self._borrow(self._full_bytes)
        if self._filled < self._size and (self._wanted <= self._size or not self._borrowed):
            return
        if self._borrow(self._wanted):
            return
        assert self._budget is not None
        self._give_back(whatever_comes=True)
        self._starved = True
        self._read_or_not()
        self._budget.wait(self, self._wanted)

    def _borrow(self, size: int) -> bool:
        if self._budget is None:
            # As fast as the bytes arrive: nobody else bounds what is announced.
            size = min(size, max(2 * self._size, self._full_bytes))
            self._replace(memoryview(bytearray(size)))
            return True
        if size <= limits.READ_BUFFER_IDLE_BYTES + frames.HEADER_BYTES:
            self._replace(memoryview(bytearray(size)))  # the largest frame of a stranger
            return True
        if not self._budget.lend(self, size):
            return False
        self._borrowed = True
        self._replace(memoryview(borrowed_buffer(size)))
        return True

    def _give_back(self, *, whatever_comes: bool = False) -> None:
        """Back to the small buffer, if the next frame fits into it; or at least what was received of it."""
        small = limits.READ_BUFFER_IDLE_BYTES
        if self._filled >= small or not self._borrowed or self._budget is None:
            return
        if self._wanted > small and not whatever_comes:
            return
        self._borrowed = False
        self._replace(memoryview(bytearray(small)))
        self._budget.give_back(self)

    def _replace(self, view: memoryview) -> None:
        view[: self._filled] = self._view[: self._filled]
        self._view, self._size = view, len(view)

    def room_given(self, size: int) -> None:
        """The budget has lent what this connection waited for."""
        self._borrowed, self._starved = True, False
        self._replace(memoryview(borrowed_buffer(size)))
        self._read_or_not()

    def too_slow(self) -> None:
        """The budget wants back what an unfinished frame holds."""
        error = LimitExceeded(
            f"A frame of {self._wanted} bytes arrives too slowly, while other connections wait for memory.",
            hint="Send it again, or send smaller batches.",
        )
        self.owner.refused(error)
        self._release()

    def rest(self) -> None:
        """Called now and then: who received nothing since the last time needs no large buffer."""
        if self._borrowed and self.bytes_in == self._rested_bytes:
            self._give_back()
        self._rested_bytes = self.bytes_in

    def _release(self) -> None:
        """The end: what was borrowed goes back. Nothing is read any more."""
        self._starved = True
        self._view, self._size, self._filled = memoryview(bytearray(1)), 1, 0
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        if self._budget is not None:
            self._borrowed = False
            self._budget.give_back(self)

    @property
    def unfinished(self) -> bool:
        """Whether the other side lets a frame wait for its end, and not this one."""
        return self._filled > 0 and not self._paused and not self._starved and not self._parked

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
        self._paused = True
        self._read_or_not()

    def resume_reading(self) -> None:
        self._paused = False
        if self._set_aside and self._turns is not None:
            self._set_aside = False
            self._turns.wait(self)
        else:
            self._read_or_not()

    def _read_or_not(self) -> None:
        if self._transport is None or self.closed:
            return
        if self._paused or self._starved or self._parked:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    @property
    def starved(self) -> bool:
        """Whether it is not read from for lack of memory, or of time."""
        return self._starved or self._parked

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
