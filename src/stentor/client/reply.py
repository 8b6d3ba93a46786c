"""A request as its handler sees it, and an answer as its caller does."""

from __future__ import annotations

import time

import msgspec

from stentor.client.convert import as_bytes, as_headers
from stentor.errors import InvalidArgument
from stentor.wire.rows import Headers


class Reply(msgspec.Struct, frozen=True):
    """The answer to a request, or a part of a streamed one. Handlers may return one, to give it headers."""

    value: bytes | str | None = None
    headers: Headers = []
    correlation: str = ""  # the same that the handler saw; for logs


class ServiceRequest:
    """What a handler gets: a request, and how long its caller waits."""

    __slots__ = ("_deadline", "cancelled", "correlation", "headers", "topic", "value")

    def __init__(self, topic: str, value: bytes | None, headers: Headers, correlation: str, left_s: float) -> None:
        self.topic = topic
        self.value = value
        self.headers = headers
        self.correlation = correlation  # the same that the caller sees; for logs
        self.cancelled = False  # nobody waits for the answer any more
        self._deadline = time.monotonic() + left_s

    def time_left(self) -> float:
        """How many seconds the caller still waits; 0 once it does not."""
        return max(0.0, self._deadline - time.monotonic())

    def __repr__(self) -> str:
        return f"ServiceRequest({self.topic} {self.correlation} value={(self.value or b'')[:40]!r})"


def shown(correlation: int) -> str:
    """A correlation as people see it."""
    return f"{correlation:016x}"


def answer_of(result: object, topic: str) -> tuple[bytes | None, Headers | None]:
    """Value and headers of what a handler returned or yielded."""
    if isinstance(result, Reply):
        return as_bytes(result.value, "answer"), as_headers(result.headers)
    if result is not None and not isinstance(result, bytes | str | bytearray | memoryview):
        raise InvalidArgument(
            f"The handler of {topic} returned {type(result).__name__}; an answer is bytes, text, None or a Reply.",
            hint="Encode it, for example with json.dumps.",
        )
    return as_bytes(result, "answer"), None
