"""Bounds what a ZeroMQ peer may send before libzmq keeps it: frames and bytes of a message, and subscriptions (S7).

libzmq bounds a frame, and the messages that wait. It does not bound the frames of one message, which it gathers until
the last is there, nor what a peer subscribes to: each byte of a prefix takes some sixty of a tree. So the ports of a
gateway are relays, whose guards read the frames of ZMTP 3 as they pass:

    greeting, 64 bytes │ flags │ length, 1 or 8 bytes │ body │ flags │ length │ body …
                          └ 1: another frame of the message follows; 2: the length has 8 bytes; 4: a command

A body is not kept, but for a subscription: a message that begins with a byte 1 (0 takes it back), or a command
SUBSCRIBE (CANCEL). libzmq takes every frame of a subscriber's message for a subscription of its own, and gathers
frames of a command like those of a message. Subscriptions and commands have one frame, and more are refused.
"""

from __future__ import annotations

import struct
from typing import Final

from stentor.gateways.zmq import bounds

GREETING_BYTES: Final = 64
_SIGNATURE: Final = 0xFF  # the greeting's first byte
_VERSION_PLACE: Final = 10
_VERSION: Final = 3
_MORE, _LONG, _COMMAND = 1, 2, 4
_LENGTH: Final = struct.Struct(">Q")
_SUBSCRIBE: Final = b"\x09SUBSCRIBE"
_CANCEL: Final = b"\x06CANCEL"


class NotUnderstood(Exception):  # noqa: N818 - what a client is, and no failure of ours
    """The peer cannot be relayed; says why."""


class SharedRoom:
    """What all peers of one gateway together may have it keep."""

    def __init__(self) -> None:
        self.unfinished = 0  # bytes of messages whose last frame is not there
        self.subscribed = 0  # bytes of prefixes


class PeerGuard:
    """Follows what one peer sends, in pieces of any size. NotUnderstood says that it is to be closed."""

    def __init__(self, room: SharedRoom, *, subscribes: bool = False, greeted: bool = False) -> None:
        self._room = room
        self._subscribes = subscribes  # its messages are subscriptions: our socket publishes
        self._greeting_left = 0 if greeted else GREETING_BYTES
        self._header = bytearray()
        self._flags = 0
        self._body_left = 0  # of the frame that is passing
        self._kept: bytearray | None = None  # its body, if that is looked at
        self._frames = self._bytes = 0  # of the message that is passing
        self._prefixes: set[bytes] = set()
        self._prefix_bytes = 0
        self.greeted = greeted
        """Whether the peer has said a frame: its READY, to begin with."""

    def passes(self, data: bytes) -> None:
        """Note what is about to be passed on."""
        place = self._pass_greeting(data) if self._greeting_left else 0
        size = len(data)
        while place < size:
            if self._body_left:
                taken = min(self._body_left, size - place)
                if self._kept is not None:
                    self._kept += data[place : place + taken]
                place += taken
                self._body_left -= taken
                if not self._body_left:
                    self._end_frame()
                continue
            self._header.append(data[place])
            place += 1
            if len(self._header) == (9 if self._header[0] & _LONG else 2):
                self._begin_frame()

    def _pass_greeting(self, data: bytes) -> int:
        begin = GREETING_BYTES - self._greeting_left
        taken = min(self._greeting_left, len(data))
        if begin == 0 and data[0] != _SIGNATURE:
            raise NotUnderstood("it does not speak ZeroMQ")
        if begin <= _VERSION_PLACE < begin + taken and data[_VERSION_PLACE - begin] < _VERSION:
            raise NotUnderstood("it speaks a version of ZeroMQ before 4.0")
        self._greeting_left -= taken
        return taken

    def _begin_frame(self) -> None:
        header, self._header = self._header, bytearray()
        self._flags = header[0]
        size = _LENGTH.unpack_from(header, 1)[0] if self._flags & _LONG else header[1]
        if self._flags & _MORE and (self._subscribes or self._flags & _COMMAND):
            raise NotUnderstood("a subscription or command of it has several frames")
        if self._flags & _COMMAND:
            if size > bounds.COMMAND_BYTES_MAX:
                raise NotUnderstood(f"a command of it has {size} bytes; the limit is {bounds.COMMAND_BYTES_MAX}")
        else:
            self._count(size)
        self._body_left = size
        self._kept = bytearray() if self._subscribes else None
        if not size:
            self._end_frame()

    def _count(self, size: int) -> None:
        """One more frame of a message, which libzmq keeps until the last one is there."""
        self._frames += 1
        self._bytes += size
        self._room.unfinished += size
        if self._frames > bounds.MESSAGE_FRAMES_MAX:
            raise NotUnderstood(f"a message of it has more than {bounds.MESSAGE_FRAMES_MAX} frames")
        most = bounds.COMMAND_BYTES_MAX if self._subscribes else bounds.MESSAGE_BYTES_MAX
        if self._bytes > most:
            raise NotUnderstood(f"a message of it has more than {most} bytes")
        if self._room.unfinished > bounds.UNFINISHED_BYTES_MAX and self._bytes > bounds.UNFINISHED_BYTES_FREE:
            raise NotUnderstood("too many large messages are on their way in at once")

    def _end_frame(self) -> None:
        self.greeted = True
        if self._kept is not None:
            self._note_subscription(bytes(self._kept))
            self._kept = None
        if not self._flags & (_MORE | _COMMAND):
            self._room.unfinished -= self._bytes
            self._frames = self._bytes = 0

    def _note_subscription(self, body: bytes) -> None:
        if not self._flags & _COMMAND:
            begins, prefix = body[:1] == b"\x01", body[1:]
            known = body[:1] in (b"\x00", b"\x01")
        else:
            begins = body.startswith(_SUBSCRIBE)
            known = begins or body.startswith(_CANCEL)
            prefix = body[len(_SUBSCRIBE if begins else _CANCEL) :]
        if not known or begins == (prefix in self._prefixes):
            return
        size = len(prefix) if begins else -len(prefix)
        (self._prefixes.add if begins else self._prefixes.discard)(prefix)
        self._prefix_bytes += size
        self._room.subscribed += size
        if not begins:
            return
        if (
            len(self._prefixes) > bounds.SUBSCRIPTIONS_PER_PEER_MAX
            or self._prefix_bytes > bounds.SUBSCRIPTION_BYTES_PER_PEER_MAX
        ):
            raise NotUnderstood(
                f"it subscribes to {len(self._prefixes)} prefixes of {self._prefix_bytes} bytes; the limits are"
                f" {bounds.SUBSCRIPTIONS_PER_PEER_MAX} and {bounds.SUBSCRIPTION_BYTES_PER_PEER_MAX}"
            )
        if (
            self._room.subscribed > bounds.SUBSCRIPTION_BYTES_MAX
            and self._prefix_bytes > bounds.SUBSCRIPTION_BYTES_FREE
        ):
            raise NotUnderstood("all subscribers together ask for too many prefixes")

    def close(self) -> None:
        """Give back what the peer used."""
        self._room.unfinished -= self._bytes
        self._room.subscribed -= self._prefix_bytes
        self._bytes = self._prefix_bytes = 0
        self._prefixes.clear()
