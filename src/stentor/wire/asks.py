"""Requests and answers as they travel: the bodies of ASK, REPLY and ASK_CREDIT.

    ASK      left (ms) │ credit │ correlation │ topic bytes │ headers bytes │ topic │ headers │ value
    REPLY    headers bytes │ headers │ value            or, with FAILED among the flags, a Failure

The same body goes from the caller to its broker and on to the responder, and that of an answer goes back as it is. A
broker reads the topic and the time that is left, and nothing else. Headers are a MessagePack list of pairs; without any
they take no bytes. The correlation in the body is for people and their logs; frames are matched by the frame's own
correlation id, which is another one on each connection.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import msgspec

from stentor.core import service_limits
from stentor.errors import LimitExceeded, ProtocolError
from stentor.wire.rows import Headers

# ASK: milliseconds left, credit in bytes (0: one answer is wanted, no stream), correlation, bytes of topic and headers.
ASK: Final = struct.Struct("<IIQHHI")

# REPLY: bytes of headers.
REPLY: Final = struct.Struct("<I")

# ASK_CREDIT: bytes that the caller has taken of a streamed answer.
ASK_CREDIT: Final = struct.Struct("<I")

_LEFT: Final = struct.Struct("<I")

MORE: Final = 1
"""Of a REPLY: a part of a streamed answer; others follow."""

FAILED: Final = 2
"""Of a REPLY: there is no answer; the body says why."""

NO_VALUE: Final = 4
"""Of an ASK or a REPLY: its value is none, which is not the same as an empty one."""

END: Final = 8
"""Of a REPLY: the streamed answer is complete; this frame has no part of it."""

_LEFT_MS_MAX: Final = int(service_limits.ASK_S_MAX * 1000)
_encode_headers: Final = msgspec.msgpack.Encoder().encode
_decode_headers: Final = msgspec.msgpack.Decoder(list[tuple[str, bytes | None]]).decode


class Ask(NamedTuple):
    """A request as its responder gets it."""

    topic: str
    left_s: float
    credit: int
    correlation: int
    headers: Headers
    value: bytes | None


def encode_ask(
    topic: bytes, value: bytes | None, headers: Headers | None, left_s: float, correlation: int, credit: int = 0
) -> bytes:
    """The body of an ASK."""
    packed = b"" if not headers else _encode_headers(headers)
    left_ms = min(_LEFT_MS_MAX, max(1, int(left_s * 1000)))
    body = ASK.pack(left_ms, credit, correlation, len(topic), 0, len(packed)) + topic + packed + (value or b"")
    return _checked(body, "A request")


def _checked(body: bytes, what: str) -> bytes:
    if len(body) > service_limits.ASK_BYTES_MAX:
        raise LimitExceeded(
            f"{what} has {len(body)} bytes; the limit is {service_limits.ASK_BYTES_MAX}.",
            hint="Put large data into a topic or an object store, and its place into the message.",
        )
    return body


def routed(body: memoryview) -> tuple[str, float]:
    """What a broker must know of an ASK: the topic, and the seconds left. A malformed one is a ProtocolError."""
    if len(body) < ASK.size:
        raise ProtocolError("A request is cut off.")
    left_ms, _, _, topic_bytes, reserved, headers_bytes = ASK.unpack_from(body)
    end = ASK.size + topic_bytes
    if end + headers_bytes > len(body) or reserved or left_ms > _LEFT_MS_MAX:
        raise ProtocolError("A request is not as long as its parts, or has a time that cannot be.")
    try:
        return str(body[ASK.size : end], "utf-8"), left_ms / 1000
    except UnicodeDecodeError as error:
        raise ProtocolError("The topic of a request is not UTF-8.") from error


def with_left(body: bytes, left_s: float) -> bytes:
    """The body of an ASK that has waited."""
    return _LEFT.pack(max(1, int(left_s * 1000))) + body[_LEFT.size :]


def decode_ask(body: memoryview, flags: int) -> Ask:
    """A request, at its responder."""
    topic, _ = routed(body)
    left_ms, credit, correlation, topic_bytes, _, headers_bytes = ASK.unpack_from(body)
    start = ASK.size + topic_bytes
    headers = _headers(body[start : start + headers_bytes])
    value = None if flags & NO_VALUE else bytes(body[start + headers_bytes :])
    return Ask(topic, left_ms / 1000, credit, correlation, headers, value)


def encode_reply(value: bytes | None, headers: Headers | None) -> bytes:
    """The body of a REPLY that did not fail."""
    if not headers:
        return _checked(REPLY.pack(0) + (value or b""), "An answer")
    packed = _encode_headers(headers)
    return _checked(REPLY.pack(len(packed)) + packed + (value or b""), "An answer")


def decode_reply(body: memoryview, flags: int) -> tuple[bytes | None, Headers]:
    """Value and headers of a REPLY that did not fail."""
    if len(body) < REPLY.size:
        raise ProtocolError("An answer is cut off.")
    (headers_bytes,) = REPLY.unpack_from(body)
    start = REPLY.size + headers_bytes
    if start > len(body):
        raise ProtocolError("An answer is not as long as its parts.")
    headers = _headers(body[REPLY.size : start]) if headers_bytes else []
    return None if flags & NO_VALUE else bytes(body[start:]), headers


def _headers(packed: memoryview) -> Headers:
    if not packed:
        return []
    try:
        return _decode_headers(packed)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ProtocolError(f"Headers could not be understood: {error}.") from error
