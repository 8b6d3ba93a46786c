"""Where `publish` gets its messages from: lines or whole files, plain or JSON.

Lines are taken as they arrive, so that a pipe which trickles is published at once and a file which pours is
published in big steps. A line is never longer than a message may be: what a stranger pipes in cannot fill the
memory.
"""

from __future__ import annotations

import contextlib
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import msgspec

from stentor.cli.formats import from_json
from stentor.errors import InvalidArgument, LimitExceeded
from stentor.limits import MESSAGE_VALUE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stentor import Producer

CHUNK_BYTES: Final = 256 * 1024
"""One read: enough lines for a full batch, few enough that progress moves."""

LINE_BYTES_MAX: Final = 2 * MESSAGE_VALUE_BYTES_MAX
"""The longest line: a message of the greatest size as base64 in JSON fits."""

# What `stentor read --json` writes besides these is where the message was; it is not where it goes.
FIELDS: Final = frozenset({"value", "key", "headers", "timestamp"})
IGNORED_FIELDS: Final = frozenset({"topic", "partition", "offset"})


class Sending:
    """How every message of one call is published."""

    def __init__(
        self,
        *,
        topic: str,
        key: bytes | None,
        headers: list[tuple[str, bytes]],
        partition: int | None,
        as_json: bool,
        whole: bool,
    ) -> None:
        self.topic = topic
        self.key = key
        self.headers = headers
        self.partition = partition
        self.as_json = as_json
        self.whole = whole

    @property
    def is_plain(self) -> bool:
        """Nothing but values and one key: these can be handed over many at a time."""
        return not self.as_json and not self.headers

    def entry(self, data: bytes, place: str) -> dict[str, Any]:
        """One input as the arguments of a publish."""
        if not self.as_json:
            return {"value": data, "key": self.key, "headers": self.headers or None}
        entry = parse_entry(data, place)
        if entry["key"] is None:
            entry["key"] = self.key
        entry["headers"] = (entry["headers"] + self.headers) or None
        return entry


class PublishInput:
    """The inputs of one call, in order."""

    def __init__(self, sources: list[tuple[str, BinaryIO]], bytes_total: int | None, sending: Sending) -> None:
        self._sources = sources
        self._sending = sending
        self.bytes_total = bytes_total
        self.messages = 0
        self.bytes = 0

    @property
    def is_terminal(self) -> bool:
        return any(stream.isatty() for _, stream in self._sources)

    def send_through(self, producer: Producer) -> Iterator[tuple[int, int]]:
        """Send everything; after each step, how many messages and bytes that makes."""
        for name, stream in self._sources:
            line = 1
            for lines in self._whole(name, stream) if self._sending.whole else read_lines(name, stream):
                self._send(producer, lines, name, line)
                line += len(lines)
                self.messages += len(lines)
                self.bytes += sum(map(len, lines))
                yield self.messages, self.bytes

    def _whole(self, name: str, stream: BinaryIO) -> Iterator[list[bytes]]:
        yield [_read_whole(name, stream, LINE_BYTES_MAX if self._sending.as_json else MESSAGE_VALUE_BYTES_MAX)]

    def _send(self, producer: Producer, lines: list[bytes], name: str, first: int) -> None:
        sending = self._sending
        if sending.is_plain:
            keys = None if sending.key is None else [sending.key] * len(lines)
            producer.send_many(lines, keys, partition=sending.partition)
            return
        for number, line in enumerate(lines, first):
            entry = sending.entry(line, f"{name} line {number}")
            producer.send(**entry, partition=sending.partition)


@contextlib.contextmanager
def open_feed(files: list[Path], sending: Sending) -> Iterator[PublishInput]:
    """Open what is to be published; no files means standard input."""
    with open_sources(files, "Check --file.") as (sources, total):
        yield PublishInput(sources, total, sending)


@contextlib.contextmanager
def open_sources(files: list[Path], hint: str) -> Iterator[tuple[list[tuple[str, BinaryIO]], int | None]]:
    """Open files, or standard input without any; their names, and how many bytes they have if that is known."""
    with contextlib.ExitStack() as stack:
        sources: list[tuple[str, BinaryIO]] = []
        total: int | None = 0
        for path in files or [Path("-")]:
            if str(path) == "-":
                sources.append(("standard input", sys.stdin.buffer))
                total = None
                continue
            try:
                sources.append((str(path), stack.enter_context(path.open("rb"))))
                size = path.stat().st_size if path.is_file() else None
            except OSError as error:
                raise InvalidArgument(
                    f"{path} cannot be read: {error.strerror}.", hint=hint, object=str(path)
                ) from error
            total = None if total is None or size is None else total + size
        yield sources, total


def read_lines(name: str, stream: BinaryIO) -> Iterator[list[bytes]]:
    """Whole lines, as many at a time as are there."""
    rest = b""
    while chunk := stream.read1(CHUNK_BYTES):  # type: ignore[attr-defined]
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield lines
        _check_length(name, len(rest))
    if rest:
        yield [rest]


def _read_whole(name: str, stream: BinaryIO, bytes_max: int) -> bytes:
    data = stream.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise LimitExceeded(
            f"{name} has {_size(stream) or f'more than {bytes_max:,}'} bytes; one message has at most {bytes_max:,}.",
            hint="Publish it line by line without --whole, or store it elsewhere and publish its address.",
            operation="publish",
            object=name,
        )
    return data


def _size(stream: BinaryIO) -> str:
    """The size of what is a file; nothing of a pipe."""
    try:
        size = os.fstat(stream.fileno()).st_size
    except OSError:
        return ""
    return f"{size:,}" if size else ""


def _check_length(name: str, size: int) -> None:
    if size > LINE_BYTES_MAX:
        raise LimitExceeded(
            f"A line of {name} is longer than {LINE_BYTES_MAX} bytes.",
            hint="Put one message on each line, or store large content elsewhere and publish its address.",
            operation="publish",
            object=name,
        )


def parse_entry(data: bytes, place: str) -> dict[str, Any]:
    """One JSON object as the arguments of a publish."""
    try:
        found = msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _wrong(place, f"is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise _wrong(place, "is not a JSON object")
    unknown = set(found) - FIELDS - IGNORED_FIELDS
    if unknown or "value" not in found:
        what = f"has the unknown field {min(unknown)!r}" if unknown else "has no field 'value'"
        raise _wrong(place, what)
    return {
        "value": _decode(found["value"], place),
        "key": _decode(found.get("key"), place),
        "headers": _decode_headers(found.get("headers") or [], place),
        "timestamp": _decode_time(found.get("timestamp"), place),
    }


def _decode(value: Any, place: str) -> bytes | None:
    try:
        return from_json(value)
    except ValueError as error:
        raise _wrong(place, f"has {error}") from error


def _decode_headers(headers: Any, place: str) -> list[tuple[str, bytes | None]]:
    pairs = list(headers.items()) if isinstance(headers, dict) else headers
    if not isinstance(pairs, list) or not all(_is_pair(pair) for pair in pairs):
        raise _wrong(place, "has headers that are neither an object nor a list of [name, value]")
    return [(name, _decode(value, place)) for name, value in pairs]


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str)


def _decode_time(text: Any, place: str) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except (TypeError, ValueError) as error:
        raise _wrong(place, f"has a timestamp that is not ISO 8601: {text!r}") from error


def _wrong(place: str, what: str) -> InvalidArgument:
    return InvalidArgument(
        f"{place[0].upper()}{place[1:]} {what}.",
        hint='Write an object such as {"value": "hi", "key": "42", "headers": {"a": "b"}}.',
        operation="publish",
        object=place,
    )
