"""Records of every kind that a log may hold: good ones, ones that make no sense, and ones that nobody can read.

All of them have checksums that hold: they are what a head took that looked at less, or what an older version wrote.
A record is made from a source of chance alone, and from where the log ends.
"""

from __future__ import annotations

import types
import typing
from typing import TYPE_CHECKING, Any, Union

import msgspec
from crc32c import crc32c
from tests.hostile.fuzz import INTERESTING_64, mutate

from stentor.core.cursors import Forgotten, Moved
from stentor.core.dedupe import Dedupe
from stentor.core.groups import GroupStep
from stentor.core.horizon import HORIZON
from stentor.core.queue_records import QueueStep
from stentor.core.transactions import GroupTransaction, TransactionDone
from stentor.wire import (
    arrow_body,
    batch,
    cursor_records,
    group_records,
    queue_rows,
    sparse,
    table_rows,
    transaction_records,
)
from stentor.wire.header import (
    CONDITIONAL,
    CONTROL,
    ENCODING_ARROW,
    ENCODING_ROWS,
    HAS_HEADERS,
    HEADER_BYTES,
    REFUSED,
    TIMED,
    pack,
    unpack,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

NOW_US = 1_700_000_000_000_000
NAMES = ("a", "b", "config/limits/rate", "", "ü" * 7)
IDS = tuple(bytes([each]) * 16 for each in range(4))

# --- values ---------------------------------------------------------------------------------------


def number(chance: random.Random, end: int) -> int:
    """Mostly one that means something: an offset of the log, a partition, a member's number."""
    if chance.random() < 0.05:
        return chance.choice(INTERESTING_64)
    return chance.choice((chance.randrange(4), chance.randrange(end + 2), max(0, end - chance.randrange(8))))


def value_of(chance: random.Random, kind: Any, end: int) -> Any:
    """A value of a type, as the fields of records have."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return value_of(chance, chance.choice(parts), end)
    if origin in (list, frozenset):
        return origin(value_of(chance, parts[0], end) for _ in range(chance.randrange(4)))
    if origin is tuple:
        if parts[-1] is Ellipsis:
            return tuple(value_of(chance, parts[0], end) for _ in range(chance.randrange(4)))
        return tuple(value_of(chance, part, end) for part in parts)
    if origin is dict:
        return {value_of(chance, parts[0], end): value_of(chance, parts[1], end) for _ in range(chance.randrange(4))}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return struct_of(chance, kind, end)
    plain: dict[Any, Callable[[], Any]] = {
        int: lambda: number(chance, end),
        str: lambda: chance.choice(NAMES),
        bytes: lambda: chance.choice((*IDS, b"", chance.randbytes(3))),
        bool: lambda: chance.random() < 0.5,
        types.NoneType: lambda: None,
    }
    return plain[kind]()


def struct_of(chance: random.Random, kind: type[msgspec.Struct], end: int) -> Any:
    """A record of a kind; fields that have defaults keep them half of the time."""
    hints = typing.get_type_hints(kind)
    required = len(kind.__struct_fields__) - len(kind.__struct_defaults__)
    return kind(
        **{
            name: value_of(chance, hints[name], end)
            for place, name in enumerate(kind.__struct_fields__)
            if place < required or chance.random() < 0.5
        }
    )


# --- batches --------------------------------------------------------------------------------------


class Records:
    """Makes the batches of one log, one after the other."""

    def __init__(self, chance: random.Random, kind: str, topic_id: int, partition: int) -> None:
        self.chance, self.place = chance, {"topic_id": topic_id, "partition": partition}
        self._make: Callable[[int], bytearray] = {
            "messages": self._messages,
            "compacted": self._rows,
            "table": self._rows,
            "queue": self._jobs,
            "ordered queue": self._jobs,
            "internal": self._internal,
        }[kind]
        self._sequence = self._committed = 0

    def next(self, end: int, committed: int) -> bytearray:
        """The next batch of a log that ends here; stamped by nobody."""
        self._committed = committed
        data = self._make(end)
        is_horizon = unpack(data).control and unpack(data).generation == HORIZON
        return data if is_horizon or self.chance.random() < 0.6 else self._spoilt(data)

    def _spoilt(self, data: bytearray) -> bytearray:
        """A batch with a change of its body, or of what its header says of that; with the checksums of that."""
        chance = self.chance
        header, body = unpack(data), bytearray(data[HEADER_BYTES:])
        if chance.random() < 0.7:
            for _ in range(chance.randrange(1, 4)):
                mutate(chance, body)
        if chance.random() < 0.4:
            bit = chance.choice((HAS_HEADERS, TIMED, CONDITIONAL, REFUSED, CONTROL, ENCODING_ARROW ^ ENCODING_ROWS))
            header = msgspec.structs.replace(header, attributes=header.attributes ^ bit)
            if header.control and header.generation == HORIZON:  # heads alone say how far a log may be compacted (C23)
                header = msgspec.structs.replace(header, generation=77)
        if chance.random() < 0.2:
            header = msgspec.structs.replace(header, count=chance.randrange(header.span + 1))
        length = HEADER_BYTES + len(body)
        header = msgspec.structs.replace(header, length=length, body_checksum=crc32c(bytes(body)))
        return bytearray(pack(header)) + body

    def _whole(self, encoded: batch.Encoded, attributes: int = 0) -> bytearray:
        encoded = msgspec.structs.replace(encoded, attributes=encoded.attributes | attributes)
        producer = self.chance.choice((0, 5, 6))
        header = batch.address(
            encoded, **self.place, producer_id=producer, generation=self.chance.randrange(3), sequence=self._sequence
        )
        self._sequence += 1
        return header + bytes(encoded.body)

    def _encoded(self, headers: list[Any] | None, keys: list[Any] | None = None) -> batch.Encoded:
        """Messages in any encoding."""
        chance = self.chance
        count = chance.choice((1, 1, 2, 5, 20)) if headers is None else len(headers)
        keys = keys or [chance.choice((None, b"k", b"app/%d" % chance.randrange(9))) for _ in range(count)]
        values = [chance.choice((None, b"", chance.randbytes(20))) for _ in range(count)]
        times = [NOW_US + chance.randrange(100) for _ in range(count)]
        if chance.random() < 0.2:
            table = arrow_body.record_batch(times, keys, values, headers)
            named = 0 if headers is None else HAS_HEADERS
            return batch._encoded(
                bytes(arrow_body.encode(table)), count, ENCODING_ARROW | named, min(times), max(times)
            )
        return batch.encode(times, keys, values, headers, compression=chance.choice(("", "", "lz4", "zstd")))

    def _messages(self, _: int) -> bytearray:
        many = [[("n", b"x")] * self.chance.choice((1, 3, 1_500))] if self.chance.random() < 0.1 else None
        return self._whole(self._encoded(many))

    def _rows(self, end: int) -> bytearray:
        chance = self.chance
        if chance.random() < 0.02:
            return self._horizon()
        if chance.random() < 0.5:
            return self._messages(end)
        headers: list[Any] = []
        for _ in range(chance.choice((1, 2, 5))):
            terms = []
            if chance.random() < 0.5:
                terms.append(table_rows.condition(chance.choice((-1, 0, number(chance, end) % (1 << 62)))))
            if chance.random() < 0.5:
                ttl = chance.choice((1, 1_000_000, 1 << 40, 1 << 63))
                terms += table_rows.lease(ttl, chance.choice((b"", *IDS)), chance.choice((b"", *IDS)))
            if chance.random() < 0.1:
                terms.append((table_rows.WHY, table_rows.EXPIRED))
            if chance.random() < 0.1:
                terms.append((chance.choice((table_rows.TTL, table_rows.SESSION, table_rows.HOLDER)), b"short"))
            headers.append(terms or None)
        keys = [chance.choice((b"", b"k", b"\xff", b"app/%d" % chance.randrange(9))) for _ in headers]
        return self._whole(self._encoded(headers, keys), chance.choice((0, TIMED, CONDITIONAL, TIMED | CONDITIONAL)))

    def _horizon(self) -> bytearray:
        """As of here: heads alone write it, and it names only what is committed."""
        until = self.chance.randrange(self._committed + 1)
        return sparse.control(HORIZON, Dedupe().snapshot(), **self.place, value=until)

    def _jobs(self, end: int) -> bytearray:
        chance = self.chance
        if chance.random() < 0.4:
            steps = [value_of(chance, QueueStep, end) for _ in range(chance.choice((1, 1, 3)))]
            return queue_rows.encode_steps(steps, **self.place)
        if chance.random() < 0.4:
            return self._messages(end)
        headers = []
        for _ in range(chance.choice((1, 2, 5))):
            terms = queue_rows.headers_of(
                delay_us=chance.choice((0, 1, 1 << 40)),
                priority=chance.randrange(10),
                ttl_us=chance.choice((0, 1, 1 << 40)),
                unique=chance.choice((b"", b"u", *IDS)),
                unique_us=chance.choice((1, 1 << 40)),
            )
            if chance.random() < 0.2:
                terms.append((queue_rows.ORIGIN, number(chance, end).to_bytes(8, "little")))
            if chance.random() < 0.1:
                terms.append((chance.choice((queue_rows.DELAY, queue_rows.TTL, queue_rows.UNIQUE)), b""))
            headers.append(terms or None)
        return self._whole(self._encoded(headers), chance.choice((0, TIMED, TIMED, TIMED | CONDITIONAL)))

    def _internal(self, end: int) -> bytearray:
        """Of cursors, groups and transactions, which share a log."""
        chance = self.chance
        kind = chance.choice((Moved, Moved, Forgotten, GroupStep, GroupStep, GroupTransaction, TransactionDone))
        record = struct_of(chance, kind, end)
        write: Any = {
            Moved: cursor_records.encode,
            Forgotten: cursor_records.encode,
            GroupStep: group_records.encode,
            GroupTransaction: transaction_records.encode,
            TransactionDone: transaction_records.encode,
        }[kind]
        return write(record, NOW_US, **self.place)  # type: ignore[no-any-return]
