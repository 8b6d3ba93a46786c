"""Jobs of queues: messages like all others, and perhaps terms, in headers of the message.

    header `stentor-delay`       ├ time u64 ┤   microseconds after it is appended, the job is due
    header `stentor-at`          ├ time u64 ┤   the job is due then, in microseconds since 1970
    header `stentor-priority`    ├ u8 ┤         0 to 9, the most urgent
    header `stentor-ttl`         ├ time u64 ┤   microseconds after which a job that nobody began is dead
    header `stentor-unique`      1 to 256 bytes a name that no other job may have
    header `stentor-unique-for`  ├ time u64 ┤   for so many microseconds
    header `stentor-origin`      ├ offset u64 ┤ by the head: the same job, which was at this offset of the partition

A batch with terms has the attribute TIMED, so that brokers look for them only there; one with unique names is
CONDITIONAL, too. The steps of the head (`core.queue_records`) are a list in MessagePack, in a control batch.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from stentor import limits
from stentor.core.queue_records import DELAY_S_MAX, PRIORITY_MAX, QUEUE, JobTerms, QueueStep
from stentor.errors import CorruptData, InvalidArgument, LimitExceeded
from stentor.wire import arrow_message, batch, sparse
from stentor.wire.header import CONDITIONAL, ENCODING_ARROW, HAS_HEADERS, TIMED, BatchHeader

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

    from stentor.core.records import Batch
    from stentor.wire.batch import Encoded
    from stentor.wire.rows import Columns, Headers

DELAY: Final = "stentor-delay"
AT: Final = "stentor-at"
PRIORITY: Final = "stentor-priority"
TTL: Final = "stentor-ttl"
UNIQUE: Final = "stentor-unique"
UNIQUE_FOR: Final = "stentor-unique-for"
ORIGIN: Final = "stentor-origin"

DEAD_PREFIX: Final = "stentor-dead-"
"""How the headers begin that a dead letter has beside its own."""

UNIQUE_BYTES_MAX: Final = 256

BATCH_JOBS_MIN: Final = 2_000
"""A batch of a queue may hold this many jobs, however well it is compressed: as many as a producer puts into one. Of
more, each takes at least a byte of the batch. A broker keeps up to nine bytes for every job, and two kilobytes can hold
a million messages that all say nothing."""

BATCH_TERMS_MAX: Final = 1_000
"""Jobs of a batch with terms, as many as `put_many` puts into one. Each is an object in every broker of the chain, and
takes about 30 µs of each loop if it has a unique name."""

BATCH_HEADERS_MAX: Final = 4_000
"""Jobs of a batch with headers, which the head looks for terms; it is twice what a producer puts into one by itself."""

BATCH_KEYS_MAX: Final = 20_000
"""Jobs of a batch where jobs of one key are done in order: every broker of the chain makes a hash of each key."""

Found = TypeVar("Found")

_NONE: Final = JobTerms()
_SMALLEST: Final = "zstd"
_TIME: Final = struct.Struct("<Q")
_TIME_US_MAX: Final = DELAY_S_MAX * 1_000_000
_AT_US_MAX: Final = 253_402_300_799_999_999
_SIZES: Final = {DELAY: 8, AT: 8, PRIORITY: 1, TTL: 8, UNIQUE: 0, UNIQUE_FOR: 8, ORIGIN: 8}
"""Of the headers' values; 0: any."""

# Made here, under the import lock: logs are opened in several threads.
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[QueueStep])
_parts = msgspec.msgpack.Decoder(list[msgspec.Raw])
_one = msgspec.msgpack.Decoder(QueueStep)
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)
"""What msgspec raises because of bytes. Memory that is missing and disks that fail are no fault of theirs."""


def encode_steps(steps: Sequence[QueueStep], *, topic_id: int, partition: int) -> bytearray:
    """A whole control batch, for the head to stamp."""
    return sparse.control(QUEUE, _encoder.encode(steps), topic_id=topic_id, partition=partition)


def read_steps(body: bytes | memoryview) -> list[QueueStep]:
    """The steps of a control batch."""
    try:
        return _decoder.decode(body)
    except _UNREADABLE as error:
        raise CorruptData(f"The steps of a queue cannot be read: {error}.") from error


def known_steps(body: bytes | memoryview) -> list[QueueStep | None]:
    """The steps of a control batch that is in a log; None for each that cannot be read (C33)."""
    with suppress(CorruptData):
        return list(read_steps(body))
    try:
        parts = _parts.decode(body)
    except _UNREADABLE:
        return [None]
    return list(map(_known_step, parts))


def _known_step(part: msgspec.Raw) -> QueueStep | None:
    found: QueueStep | None = None
    with suppress(*_UNREADABLE):
        found = _one.decode(part)
    return found


# --- terms ----------------------------------------------------------------------------------------


def headers_of(
    *, delay_us: int = 0, at_us: int = 0, priority: int = 0, ttl_us: int = 0, unique: bytes = b"", unique_us: int = 0
) -> Headers:
    """The headers that say this of a job."""
    found: Headers = []
    for name, time_us in ((DELAY, delay_us), (AT, at_us), (TTL, ttl_us)):
        if time_us:
            found.append((name, _TIME.pack(time_us)))
    if priority:
        found.append((PRIORITY, bytes([priority])))
    if unique:
        found += [(UNIQUE, unique), (UNIQUE_FOR, _TIME.pack(unique_us))]
    return found


def with_terms(encoded: Encoded, *, unique: bool) -> Encoded:
    """An encoded batch that says that it has terms."""
    return msgspec.structs.replace(encoded, attributes=encoded.attributes | TIMED | (CONDITIONAL if unique else 0))


def moved(
    origin: int, timestamp_us: int, key: bytes | None, value: bytes | None, headers: Headers, *, compression: str = ""
) -> Encoded:
    """A job that is appended again."""
    named = [*own_headers(headers), (ORIGIN, _TIME.pack(origin))]
    return with_terms(batch.encode([timestamp_us], [key], [value], [named], compression=compression), unique=False)


def appended_again(
    header: BatchHeader, body: bytes | memoryview, wanted: Container[int], *, topic_id: int, partition: int
) -> tuple[list[bytearray], list[int]]:
    """Jobs of a batch as batches of their own, which say where they were; and the offsets of those that cannot be
    written again. What the head has taken once is compressed if it is too large otherwise (C34).
    """
    within = [offset for offset in range(header.base_offset, header.end_offset) if offset in wanted]
    rows = _readable(lambda: sparse.rows_of(header, body))
    if rows is None:
        return [], within
    found: list[bytearray] = []
    stuck: list[int] = []
    for offset, time_us, key, value, headers in zip(*rows, strict=True):
        if offset not in wanted:
            continue
        row = (offset, time_us, key, value, headers or [])
        encoded = _readable(partial(moved, *row)) or _readable(partial(moved, *row, compression=_SMALLEST))
        if encoded is None:
            stuck.append(offset)
        else:
            found.append(whole(encoded, topic_id=topic_id, partition=partition))
    return found, stuck


def own_headers(headers: Headers) -> Headers:
    """The headers of a job without what is for queues."""
    return [pair for pair in headers if pair[0] not in _SIZES and not pair[0].startswith(DEAD_PREFIX)]


def terms(header: Batch, body: bytes | memoryview) -> Iterator[tuple[int, JobTerms | None]]:
    """What the rows of a batch say: the numbers of those that say something. None for a row whose terms cannot be
    read: its job is one without terms. Of a batch that cannot be read, that is its first row (C33).
    """
    assert isinstance(header, BatchHeader)
    if not header.timed:
        return
    columns = _columns(header, body)
    if columns is None:
        yield 0, None
        return
    for index, named in enumerate(columns[3] or ()):
        if named is not None and (found := _known_terms(named)) is not _NONE:
            yield index, found


def hashes(header: Batch, body: bytes | memoryview) -> list[int] | None:
    """Of the keys of a batch's rows; 0: no key. None if they cannot be read."""
    assert isinstance(header, BatchHeader)
    columns = _columns(header, body)
    return None if columns is None else [0 if key is None else key_hash(key) for key in columns[1]]


def _columns(header: BatchHeader, body: bytes | memoryview) -> Columns | None:
    """The rows of a batch that is in a log; None if they cannot be read."""
    return _readable(lambda: batch.body_columns(header, body))


def _readable(read: Callable[[], Found]) -> Found | None:
    """What can be read or encoded; None if that cannot be, which bytes alone decide."""
    try:
        return read()
    except (CorruptData, LimitExceeded, InvalidArgument, ValueError, LookupError, struct.error) as error:
        if isinstance(error.__cause__, MemoryError):  # no fault of the bytes: other brokers can read them
            raise error.__cause__ from error
        return None


def _known_terms(headers: Headers) -> JobTerms | None:
    """Terms of a row in a log: `_NONE` if there are none, None if they cannot be read."""
    try:
        return _terms(headers) or _NONE
    except InvalidArgument:
        return None


def key_hash(key: bytes) -> int:
    """Never 0."""
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little") or 1


def check(header: BatchHeader, body: memoryview, topic: str, *, ordered: bool = False) -> None:
    """Refuse what cannot be a job, before it gets an offset. `ordered`: jobs of one key are done in order."""
    if header.count > max(BATCH_JOBS_MIN, len(body)):
        raise LimitExceeded(
            f"A batch for queue {topic} has {header.count} jobs in {len(body)} bytes; the limit is"
            f" {max(BATCH_JOBS_MIN, len(body))}.",
            hint="Send fewer jobs in one batch, or do not compress it.",
            object=topic,
        )
    has_headers = bool(header.attributes & HAS_HEADERS)
    _check_work(header, body, topic, has_headers=has_headers, ordered=ordered)
    named = (each for each in batch.body_columns(header, body)[3] or () if each) if has_headers else ()
    found = [each for each in map(_terms, named) if each is not None]
    if any(each.origin >= 0 for each in found):
        raise InvalidArgument(f"The header {ORIGIN} is for the head of a queue alone.", object=topic)
    if bool(found) != header.timed or any(each.unique for each in found) != header.conditional:
        raise InvalidArgument(
            f"A batch for queue {topic} has terms of jobs and does not say so, or says so and has none.",
            hint=f"The headers {', '.join(_SIZES)} are for queues themselves: use client.queue({topic!r}).put().",
            object=topic,
        )


def _check_work(header: BatchHeader, body: memoryview, topic: str, *, has_headers: bool, ordered: bool) -> None:
    """Refuse what every broker of the chain would look at for too long at a time (C35)."""
    what, most = "jobs with keys", BATCH_KEYS_MAX if ordered else limits.BATCH_MESSAGES_MAX
    if has_headers:
        what, most = "jobs with headers", BATCH_HEADERS_MAX
    if header.timed:
        what, most = "jobs with terms", BATCH_TERMS_MAX
    found = header.count
    if has_headers and header.encoding == ENCODING_ARROW and found <= most:
        what, most = "headers", 2 * BATCH_HEADERS_MAX
        found = arrow_message.read(body, header.count).headers
    if found > most:
        raise LimitExceeded(
            f"A batch for queue {topic} has {found} {what}; the limit is {most}.",
            hint="Send fewer jobs in one batch.",
            object=topic,
        )


def _terms(headers: Headers) -> JobTerms | None:
    found: dict[str, bytes] = {}
    for name, value in headers:
        if name in _SIZES:
            if value is None or len(value) != (_SIZES[name] or len(value)) or not 0 < len(value) <= UNIQUE_BYTES_MAX:
                raise InvalidArgument(f"The header {name} of a job is malformed.")
            if name in found:
                raise InvalidArgument(f"A job has the header {name} twice.")
            found[name] = value
    if not found:
        return None
    times = {name: _TIME.unpack(value)[0] for name, value in found.items() if _SIZES[name] == _TIME.size}
    for name in (DELAY, TTL, UNIQUE_FOR):
        if times.get(name, 0) > _TIME_US_MAX:
            raise InvalidArgument(f"A job has the header {name} with the impossible time of {times[name]} µs.")
    if times.get(AT, 0) > _AT_US_MAX or times.get(ORIGIN, 0) > 2**62:
        raise InvalidArgument("A job is due at an impossible time, or was at an impossible offset.")
    priority = found.get(PRIORITY, b"\0")[0]
    if priority > PRIORITY_MAX:
        raise InvalidArgument(f"A job has priority {priority}; the highest is {PRIORITY_MAX}.")
    unique = found.get(UNIQUE, b"")
    return JobTerms(
        times.get(DELAY, 0),
        times.get(AT, 0),
        priority,
        times.get(TTL, 0),
        blake2b(unique, digest_size=16).digest() if unique else b"",
        times.get(UNIQUE_FOR, 0),
        times.get(ORIGIN, -1),
    )


def whole(encoded: Encoded, *, topic_id: int, partition: int) -> bytearray:
    """A batch by the head itself."""
    header = batch.address(encoded, topic_id=topic_id, partition=partition, producer_id=0, generation=0, sequence=0)
    return header + encoded.body
