"""A batch: the fixed header and one body, made once by the producer and never re-encoded.

Producers call `build`. The head of a chain calls `validate` before it takes a batch from a client.
Readers call `record_batch` (Arrow) or `columns` (Python values); both check the body's checksum.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

import msgspec
from crc32c import crc32c

from stentor import limits
from stentor.errors import CorruptData, InvalidArgument, LimitExceeded
from stentor.wire import arrow_message, bodies, deltas, rows
from stentor.wire.arrow_message import COMPRESSIONS
from stentor.wire.header import (
    COMPRESSION_SHIFT,
    ENCODING_ARROW,
    ENCODING_ROWS,
    HAS_HEADERS,
    HEADER_BYTES,
    KNOWN_ATTRIBUTES,
    SCHEMA_SHIFT,
    BatchHeader,
    check_body,
    pack_sealed,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stentor.wire.header import Buffer
    from stentor.wire.rows import Columns, Headers


class Encoded(msgspec.Struct, frozen=True, gc=False):
    """Messages encoded as a body, not yet addressed to a partition."""

    body: bytes | memoryview  # the encoded messages
    body_checksum: int  # CRC32C of the body
    count: int  # how many messages
    attributes: int  # see the header's layout
    first_timestamp_us: int  # the smallest
    last_timestamp_us: int  # the largest


def encode(
    timestamps: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[Headers | None] | None = None,
    *,
    compression: str = "",
) -> Encoded:
    """Encode messages by the encoding that is cheaper for their number."""
    if len(values) <= limits.ROWS_ENCODING_MESSAGES_MAX and not compression:
        body: bytes | memoryview = rows.encode(timestamps, keys, values, headers)
        attributes = ENCODING_ROWS
    else:
        body, _ = bodies.encode(timestamps, keys, values, headers, compression)
        attributes = ENCODING_ARROW | COMPRESSIONS.index(compression) << COMPRESSION_SHIFT
    if headers is not None:
        attributes |= HAS_HEADERS
    return _encoded(body, len(values), attributes, min(timestamps), max(timestamps))


def encode_at(
    timestamp_us: int, keys: Sequence[bytes | None], values: Sequence[bytes | None], *, compression: str = ""
) -> Encoded:
    """Encode messages without headers that share one timestamp: the producers' fast path."""
    count = len(values)
    if count <= limits.ROWS_ENCODING_MESSAGES_MAX and not compression:
        body: bytes | memoryview = rows.encode([timestamp_us] * count, keys, values, None)
        attributes = ENCODING_ROWS
        if len(body) > limits.MESSAGE_KEY_BYTES_MAX:
            _check_keys(keys)
    else:
        body, key_bytes = bodies.encode(array("q", (timestamp_us,)) * count, keys, values, None, compression)
        if key_bytes > limits.MESSAGE_KEY_BYTES_MAX:
            _check_keys(keys)
        attributes = ENCODING_ARROW | COMPRESSIONS.index(compression) << COMPRESSION_SHIFT
    return _encoded(body, count, attributes, timestamp_us, timestamp_us)


def encode_arrow(batch: Any, *, compression: str = "", schema_id: int = 0) -> Encoded:
    """Encode a record batch that already has the columns of a batch."""
    arrow_body = bodies.arrow("Arrow")
    attributes = ENCODING_ARROW | COMPRESSIONS.index(compression) << COMPRESSION_SHIFT
    attributes |= schema_id << SCHEMA_SHIFT
    if batch.column(3).null_count != batch.num_rows:
        attributes |= HAS_HEADERS
    first, last = arrow_body.time_range(batch)
    if first < 0 or last > _EPOCH_MAX_US:
        raise InvalidArgument("A timestamp is out of range.", hint="Use times from 1970 to 9999.")
    return _encoded(arrow_body.encode(batch, compression), batch.num_rows, attributes, first, last)


def _check_keys(keys: Sequence[bytes | None]) -> None:
    """Only called when the keys of a batch together are longer than one may be."""
    check_key_bytes(max(len(key or b"") for key in keys))


def _encoded(body: bytes | memoryview, count: int, attributes: int, first: int, last: int) -> Encoded:
    if len(body) + HEADER_BYTES > limits.BATCH_BYTES_MAX:
        raise LimitExceeded(
            f"A batch of {count} messages takes {len(body) + HEADER_BYTES} bytes; the limit is"
            f" {limits.BATCH_BYTES_MAX}.",
            hint="Send smaller messages, or fewer of them in one batch.",
        )
    return Encoded(body, crc32c(body), count, attributes, first, last)


def address(
    encoded: Encoded, *, topic_id: int, partition: int, producer_id: int, generation: int, sequence: int
) -> bytearray:
    """The header that sends an encoded body to a partition; offset, epoch and time are the head's."""
    return pack_sealed(
        HEADER_BYTES + len(encoded.body),
        encoded.body_checksum,
        topic_id,
        partition,
        encoded.count,
        0,
        0,
        encoded.attributes,
        encoded.first_timestamp_us,
        encoded.last_timestamp_us,
        0,
        producer_id,
        generation,
        encoded.count,
        sequence,
    )


_EPOCH_MAX_US: Final = 253_402_300_799_999_999  # the end of year 9999: what datetime can show


def validate(buffer: Buffer, header: BatchHeader) -> None:
    """Judge a whole batch from a client, before it gets an offset (S2)."""
    if header.length != len(buffer):
        raise CorruptData(f"A batch claims {header.length} bytes in a frame of {len(buffer)}.")
    if not 0 < header.count <= limits.BATCH_MESSAGES_MAX or header.span != header.count:
        raise CorruptData(f"A batch claims {header.count} messages over {header.span} offsets.")
    if header.attributes & ~KNOWN_ATTRIBUTES:
        raise CorruptData(f"A batch has unknown attributes {header.attributes:#x}.")
    if not 0 <= header.first_timestamp_us <= header.last_timestamp_us <= _EPOCH_MAX_US:
        raise CorruptData("A batch's time range is impossible.")
    check_body(buffer, 0, header)
    body = memoryview(buffer)[HEADER_BYTES:]
    if header.encoding == ENCODING_ROWS:
        _validate_rows(body, header)
    elif header.encoding == ENCODING_ARROW:
        _validate_arrow(body, header)
    else:
        raise CorruptData(f"A batch has the unknown encoding {header.encoding}.")


def _validate_rows(body: memoryview, header: BatchHeader) -> None:
    if header.count > limits.ROWS_ENCODING_MESSAGES_MAX or header.compression:
        raise CorruptData(f"{header.count} packed rows; the limit is {limits.ROWS_ENCODING_MESSAGES_MAX}.")
    if (
        header.count == 1
        and len(body) <= limits.MESSAGE_KEY_BYTES_MAX
        and header.first_timestamp_us == header.last_timestamp_us
        and rows.is_plain(body, header.first_timestamp_us)
    ):
        return
    timestamps, keys, values, headers = rows.decode(body, header.count)
    if len(body) > limits.MESSAGE_KEY_BYTES_MAX:
        check_key_bytes(max(len(key or b"") for key in keys))
        check_value_bytes(max(len(value or b"") for value in values))
    for pairs in headers or ():
        if pairs:
            check_headers(len(pairs), header_bytes(pairs))
    if min(timestamps) != header.first_timestamp_us or max(timestamps) != header.last_timestamp_us:
        raise CorruptData("A batch's time range is not that of its messages.")
    if (headers is not None) and not header.attributes & HAS_HEADERS:
        raise CorruptData("A batch hides its messages' headers.")


def _validate_arrow(body: memoryview, header: BatchHeader) -> None:
    if header.compression >= len(COMPRESSIONS):
        raise CorruptData(f"A batch has the unknown compression {header.compression}.")
    arrow_body = bodies.arrow()
    batch = arrow_body.decode(body, header.count, header.compression)
    check_key_bytes(arrow_body.longest(batch, "key", limits.MESSAGE_KEY_BYTES_MAX))
    check_value_bytes(arrow_body.longest(batch, "value", limits.MESSAGE_VALUE_BYTES_MAX))
    if arrow_body.time_range(batch) != (header.first_timestamp_us, header.last_timestamp_us):
        raise CorruptData("A batch's time range is not that of its messages.")
    headers = batch.column(3)
    if header.attributes & HAS_HEADERS:
        values = headers.values
        if values.null_count or values.field(0).null_count:
            raise CorruptData("A message's header has no key.")
        check_headers(*arrow_body.most_headers(batch))
    elif headers.null_count != header.count:
        raise CorruptData("A batch hides its messages' headers.")


def record_batch(buffer: Buffer, position: int, header: BatchHeader) -> Any:
    """The messages at `position` as an Arrow record batch, whatever their encoding."""
    arrow_body = bodies.arrow("Arrow")
    body = _rows(buffer, position, header)
    if header.encoding == ENCODING_ROWS:
        return arrow_body.record_batch(*rows.decode(body, header.count))
    return arrow_body.decode(body, header.count)


def columns(buffer: Buffer, position: int, header: BatchHeader) -> Columns:
    """The messages at `position` as lists of Python values, whatever their encoding."""
    check_body(buffer, position, header)
    return body_columns(header, memoryview(buffer)[position + HEADER_BYTES : position + header.length])


def first_at(buffer: Buffer, position: int, header: BatchHeader, timestamp_us: int) -> int:
    """Return which message of the batch at `position` is the first that is not older; -1: there is none."""
    body = _rows(buffer, position, header)
    if header.encoding == ENCODING_ROWS:
        times = enumerate(rows.decode(body, header.count)[0])
        return next((index for index, time_us in times if time_us >= timestamp_us), -1)
    arrow_body = bodies.arrow()
    found: int = arrow_body.first_at(arrow_body.decode(body, header.count), timestamp_us)
    return found


def _rows(buffer: Buffer, position: int, header: BatchHeader) -> memoryview:
    """The checked body of the batch at `position`, without what says the offsets of its rows."""
    check_body(buffer, position, header)
    return deltas.rows(header, memoryview(buffer)[position + HEADER_BYTES : position + header.length])


def body_columns(header: BatchHeader, body: bytes | memoryview) -> Columns:
    """The messages of a body that was checked before, as lists of Python values."""
    plain = deltas.rows(header, memoryview(body))
    if header.encoding == ENCODING_ROWS:
        return rows.decode(plain, header.count)
    return bodies.columns(plain, header.count)


def header_count(header: BatchHeader, body: bytes | memoryview) -> int:
    """How many headers the messages of a checked body have together; 0 for packed rows, which are few."""
    if header.encoding == ENCODING_ROWS or not header.attributes & HAS_HEADERS:
        return 0
    return arrow_message.header_count(deltas.rows(header, memoryview(body)), header.count)


def expanded_bytes(header: BatchHeader, body: memoryview) -> int:
    """How many bytes a body says that it expands to. CorruptData if it cannot be read."""
    return arrow_message.expanded_bytes(body, header.count) if header.encoding == ENCODING_ARROW else len(body)


def has_keys(header: BatchHeader, body: bytes | memoryview) -> bool:
    """Whether every message of a checked body has a key that is not empty."""
    plain = deltas.rows(header, memoryview(body))
    if header.encoding == ENCODING_ROWS:
        return all(rows.decode(plain, header.count)[1])
    return bool(bodies.arrow().has_keys(bodies.arrow().decode(plain, header.count)))


# --- what one message may hold -----------------------------------------------------------------
#
# The head asks the same of every encoding (C34): whatever it takes can be written again as any other encoding, alone.


def check_message(key: bytes | None, value: bytes | None) -> None:
    """Refuse, on the producer's side, what no head takes."""
    if value is not None:
        check_value_bytes(len(value))
    if key is not None and len(key) > limits.MESSAGE_KEY_BYTES_MAX:
        raise InvalidArgument(
            f"A key has {len(key)} bytes; the limit is {limits.MESSAGE_KEY_BYTES_MAX}.",
            hint="Use a short key, for example a hash of the long one.",
        )


def check_key_bytes(size: int) -> None:
    """Raise LimitExceeded for a key of this size if it is too long."""
    if size > limits.MESSAGE_KEY_BYTES_MAX:
        raise LimitExceeded(
            f"A key has {size} bytes; the limit is {limits.MESSAGE_KEY_BYTES_MAX}.",
            hint="Use a short key, for example a hash of the long one.",
        )


def check_value_bytes(size: int) -> None:
    """Raise LimitExceeded for a value of this size if it is too large."""
    if size > limits.MESSAGE_VALUE_BYTES_MAX:
        raise LimitExceeded(
            f"A value has {size} bytes; the limit is {limits.MESSAGE_VALUE_BYTES_MAX}.",
            hint="Split it, or put it into an object store and publish its address.",
        )


def check_headers(count: int, size: int) -> None:
    """Raise LimitExceeded for a message with this many headers, of this many bytes together, if that is too much."""
    if count > limits.MESSAGE_HEADERS_MAX:
        raise LimitExceeded(
            f"A message has {count} headers; the limit is {limits.MESSAGE_HEADERS_MAX}.",
            hint="Put what they say into the message's value.",
        )
    if size > limits.MESSAGE_HEADERS_BYTES_MAX:
        raise LimitExceeded(
            f"A message's headers have {size} bytes; the limit is {limits.MESSAGE_HEADERS_BYTES_MAX}.",
            hint="Put large values into the message's value.",
        )


def header_bytes(pairs: Headers) -> int:
    """Return how many bytes the names and values of a message's headers have together."""
    return sum(len(name.encode()) + len(value or b"") for name, value in pairs)


def trim_headers(headers: Headers) -> None:
    """Drop the last headers of a message until a head takes it: what comes first matters most."""
    del headers[limits.MESSAGE_HEADERS_MAX :]
    size = header_bytes(headers)
    while size > limits.MESSAGE_HEADERS_BYTES_MAX:
        size -= header_bytes([headers.pop()])


def is_within_limits(key: bytes | None, value: bytes | None, headers: Headers | None) -> bool:
    """Return whether a head takes such a message. Logs may hold others, from before heads looked."""
    try:
        check_message(key, value)
        if headers:
            check_headers(len(headers), header_bytes(headers))
    except (LimitExceeded, InvalidArgument):
        return False
    return True
