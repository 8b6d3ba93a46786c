"""Messages as `subscribe` and `read` print them.

    value   the value and a newline; bytes as they are, except that a terminal is spared control characters
    raw     the value's bytes and nothing else
    json    one object per line; bytes that are not UTF-8 become {"base64": "..."}
    table   one aligned line per message, made for reading

`json` is also what `stentor publish --json` reads, so topics can be copied through a pipe.
"""

from __future__ import annotations

import base64
import binascii
import re
import shutil
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor import Message

    Format = Callable[[Message], bytes]

NAMES: Final = ("value", "raw", "json", "table")

NULL: Final = "(null)"
_encode_json: Final = msgspec.json.Encoder().encode
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_CONTROL_IN_LINES: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_TABLE: Final = "{:<24}  {:<24}  {:>9}  {:>10}  {:<16}  {}"
_VALUE_WIDTH_MIN: Final = 20


def choose(name: str, *, with_key: bool) -> Format:
    """The function that turns a message into the bytes to print."""
    if name not in NAMES:
        raise InvalidArgument(f"--format {name!r} is unknown.", hint=f"Use one of {', '.join(NAMES)}.")
    if name == "json":
        return _json
    if name == "table":
        return _table
    if name == "raw":
        return _raw
    if sys.stdout.isatty():
        return lambda message: _for_terminal(message, with_key=with_key)
    return _keyed_value if with_key else _value


def heading(name: str) -> bytes:
    """What stands above the first message."""
    if name != "table":
        return b""
    return _TABLE.format("TIME", "TOPIC", "PARTITION", "OFFSET", "KEY", "VALUE").encode() + b"\n"


def _value(message: Message) -> bytes:
    return (message.value or b"") + b"\n"


def _keyed_value(message: Message) -> bytes:
    return b"%b\t%b\n" % (message.key or b"", message.value or b"")


def _raw(message: Message) -> bytes:
    return message.value or b""


def _for_terminal(message: Message, *, with_key: bool) -> bytes:
    line = _keyed_value(message) if with_key else _value(message)
    return _spared(line)


def _spared(line: bytes) -> bytes:
    return _CONTROL_IN_LINES.sub(_escape, line.decode("utf-8", "backslashreplace")).encode()


def as_line(value: bytes) -> bytes:
    """A value by itself and a newline; a terminal is spared control characters."""
    line = value + b"\n"
    return _spared(line) if sys.stdout.isatty() else line


def _json(message: Message) -> bytes:
    return _encode_json(as_object(message)) + b"\n"


def as_object(message: Message) -> dict[str, Any]:
    """A message as JSON has it; headers are pairs, because a name may repeat."""
    return {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp,
        "key": to_json(message.key),
        "value": to_json(message.value),
        "headers": [[name, to_json(value)] for name, value in message.headers],
    }


def to_json(data: bytes | None) -> str | dict[str, str] | None:
    """Bytes as text where they are text, otherwise marked as base64, so that nothing is lost."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def from_json(value: Any) -> bytes | None:
    """The way back: text as UTF-8, marked bytes as bytes, anything else as the JSON it is. ValueError: bad base64."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"}:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise ValueError(f"bad base64: {error}") from error
    return msgspec.json.encode(value)


def _table(message: Message) -> bytes:
    line = _TABLE.format(
        show_time(message.timestamp),
        message.topic,
        message.partition,
        message.offset,
        printable(message.key, 16) if message.key is not None else "-",
        "",
    )
    room = max(_VALUE_WIDTH_MIN, shutil.get_terminal_size((160, 24)).columns - len(line))
    return (line + printable(message.value, room)).rstrip().encode() + b"\n"


def printable(data: bytes | None, width: int) -> str:
    """Any bytes on one line of at most so many characters, without control characters."""
    if data is None:
        return NULL
    # One character is at most four bytes; what cannot be shown need not be decoded.
    text = _CONTROL.sub(_escape, data[: 4 * width + 4].decode("utf-8", "backslashreplace"))
    return text if len(text) <= width else text[: width - 1] + "…"


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    return {"\n": "\\n", "\r": "\\r"}.get(character, f"\\x{ord(character):02x}")


def show_time(moment: datetime) -> str:
    """A moment in UTC, in the form that positions accept."""
    return moment.astimezone(UTC).isoformat("T", "milliseconds").replace("+00:00", "Z")
