"""The Arrow body of a batch, read and written in plain Python: for those who have no pyarrow, or have not loaded it.

The layout is Arrow's own (see `arrow_message`), and `arrow_body` reads and writes the same. Buffers follow each other,
each padded to 8 bytes. A column of bytes is three of them: which are not null, one bit each, or nothing if none is;
where each begins, and the last ends; all of them in a row.

Compressed bodies are left to pyarrow.
"""

from __future__ import annotations

import struct
from array import array
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Final, cast

from stentor.errors import CorruptData, InvalidArgument
from stentor.wire import arrow_message

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stentor.wire.arrow_message import Contents
    from stentor.wire.rows import Columns, Headers

_PADDING: Final = tuple(bytes(-size % 8) for size in range(8))
_NO_BYTES: Final = bytes(4)  # where the elements of an empty column begin: its one offset

# The buffers of a body, by the first one of each column; see arrow_message for their order.
_TIMES, _KEYS, _VALUES, _LISTS, _NAMES, _CONTENTS = 0, 2, 5, 8, 11, 14


def encode(
    timestamps: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[Headers | None] | None,
) -> tuple[bytes, int]:
    """Messages as an uncompressed body, and how many bytes their keys have."""
    count = len(values)
    times = timestamps if isinstance(timestamps, array) else array("q", timestamps)
    key_nulls, *key_buffers = _binary(keys, "key")
    value_nulls, *value_buffers = _binary(values, "value")
    header_nodes, header_buffers = _headers(headers, count)
    nodes = [count, 0, count, key_nulls, count, value_nulls, *header_nodes]
    body = _message(nodes, [b"", times.tobytes(), *key_buffers, *value_buffers, *header_buffers])
    return body, len(key_buffers[-1])


def _message(nodes: list[int], buffers: list[bytes]) -> bytes:
    places: list[int] = []
    parts = [b""]  # the metadata, which is known at the end
    end = 0
    for buffer in buffers:
        size = len(buffer)
        places += end, size
        parts += buffer, _PADDING[size & 7]
        end += size + (-size & 7)
    parts[0] = arrow_message.write(nodes, places, end)
    return b"".join(parts)


def _binary(column: Sequence[bytes | None], what: str) -> tuple[int, bytes, bytes, bytes]:
    """How many nulls a column has, and its buffers."""
    count = len(column)
    nulls, validity, filled = 0, b"", cast("Sequence[bytes]", column)
    if count and column[0] is None and (nulls := column.count(None)) == count:
        return nulls, bytes(count + 7 >> 3), bytes(4 * count + 4), b""
    try:
        data = b"".join(filled)
    except TypeError:  # the cheapest way to find out that some are null
        nulls, validity = column.count(None), _bits(value is not None for value in column)
        filled = [b"" if value is None else value for value in column]
        data = _joined(filled, what)
    ends = array("i", accumulate(map(len, filled), initial=0))
    if ends[-1] != len(data):
        raise InvalidArgument(f"Every {what} must be bytes, str or None.")  # a view whose elements are not bytes
    return nulls, validity, ends.tobytes(), data


def _joined(column: Sequence[bytes], what: str) -> bytes:
    try:
        return b"".join(column)
    except TypeError as error:
        raise InvalidArgument(f"Every {what} must be bytes, str or None: {error}.") from error


def _bits(present: Iterable[bool]) -> bytes:
    """One bit each, the first one lowest."""
    digits = "".join(["1" if one else "0" for one in present])
    return int(digits[::-1], 2).to_bytes(len(digits) + 7 >> 3, "little")


def _headers(headers: Sequence[Headers | None] | None, count: int) -> tuple[list[int], list[bytes]]:
    """Nodes and buffers of the list, of the pairs in it, and of their keys and values."""
    if headers is None:
        return [count, count, 0, 0, 0, 0, 0, 0], [
            bytes(count + 7 >> 3),
            bytes(4 * count + 4),
            b"",
            b"",
            _NO_BYTES,
            b"",
            b"",
            _NO_BYTES,
            b"",
        ]
    nulls = headers.count(None)
    validity = _bits(pairs is not None for pairs in headers) if nulls else b""
    ends = array("i", accumulate((len(pairs or ()) for pairs in headers), initial=0))
    flat = list(chain.from_iterable(pairs for pairs in headers if pairs))
    name_nulls, *names = _binary([name.encode() for name, _ in flat], "header's key")
    content_nulls, *contents = _binary([content for _, content in flat], "header")
    size = len(flat)
    return [count, nulls, size, 0, size, name_nulls, size, content_nulls], [
        validity,
        ends.tobytes(),
        b"",
        *names,
        *contents,
    ]


def columns(body: memoryview, contents: Contents) -> Columns:
    """Messages of an uncompressed body of any origin; damage and hostility are CorruptData."""
    reader = _Reader(body, contents)
    return reader.times(), reader.binary(_KEYS, *reader.keys), reader.binary(_VALUES, *reader.values), reader.headers()


def plain_columns(body: memoryview, contents: Contents) -> tuple[list[bytes], list[bytes]] | None:
    """Keys and values of a body in which every message has both and no headers; None for any other body."""
    reader = _Reader(body, contents)
    if reader.keys[1] or reader.values[1] or reader.has_headers or contents.compression:
        return None
    reader.times()  # checked, as ever
    found = reader.binary(_KEYS, *reader.keys), reader.binary(_VALUES, *reader.values)
    return cast("tuple[list[bytes], list[bytes]]", found)


@lru_cache(maxsize=64)
def _element(size: int) -> struct.Struct:
    return struct.Struct(f"{size}s")


@lru_cache(maxsize=64)
def _even_ends(count: int, size: int) -> bytes:
    """The offsets of so many elements of one size. A body has both, so together they are no larger than it is."""
    return array("i", range(0, count * size + 1, size)).tobytes()


class _Reader:
    """Takes columns out of a body whose metadata is possible. What matters of the buffers is checked here."""

    def __init__(self, body: memoryview, contents: Contents) -> None:
        assert not contents.compression
        self._count, self._timeless, *nodes = contents.nodes
        self.keys, self.values = nodes[:2], nodes[2:4]  # their number, and that of nulls
        self._lists, self._pairs, self._names, self._contents = nodes[5], nodes[6:8], nodes[8:10], nodes[10:]
        self._places = contents.buffers
        self._data = body[contents.begin :]

    @property
    def has_headers(self) -> bool:
        return self._lists != self._count

    def _buffer(self, index: int, least: int, what: str) -> memoryview:
        offset, size = self._places[2 * index], self._places[2 * index + 1]
        if size < least:
            raise CorruptData(f"A batch body's {what} take {size} bytes; {least} are needed.")
        return self._data[offset : offset + size]

    def times(self) -> Sequence[int]:
        """A view on the body: most applications never look at them."""
        if self._timeless:
            raise CorruptData("A batch holds a message without a timestamp.")
        size = 8 * self._count
        return self._buffer(_TIMES + 1, size, "timestamps")[:size].cast("q")

    def binary(self, first: int, count: int, nulls: int) -> list[bytes | None]:
        """A column of bytes."""
        if nulls == count:
            return [None] * count
        found: list[bytes | None]
        size, rest = divmod(self._places[2 * (first + 2) + 1], count)
        if size and not (rest or nulls) and self._is_even(first + 1, count, size):
            return list(chain.from_iterable(_element(size).iter_unpack(self._buffer(first + 2, 0, "values"))))
        ends = self._ends(first + 1, count)
        data = bytes(self._buffer(first + 2, ends[-1], "values"))
        found = [data[begin:end] for begin, end in pairwise(ends)]
        if nulls:
            present = self._present(first, count, nulls)
            found = [value if there == "1" else None for value, there in zip(found, present, strict=True)]
        return found

    def _is_even(self, index: int, count: int, size: int) -> bool:
        """Whether all elements have this size: then they are taken out four times as fast."""
        ends = self._buffer(index, 4 * count + 4, "offsets")[: 4 * count + 4]
        return bytes(ends) == _even_ends(count, size)

    def _ends(self, index: int, count: int) -> list[int]:
        """Where each element begins, and the last one ends."""
        ends = self._buffer(index, 4 * count + 4, "offsets")[: 4 * count + 4].cast("i").tolist()
        if ends[0] < 0 or sorted(ends) != ends:
            raise CorruptData("A batch body's offsets are not in order.")
        return ends

    def _present(self, index: int, count: int, nulls: int) -> str:
        """A 1 for each element that is not null, else a 0."""
        bits = int.from_bytes(self._buffer(index, count + 7 >> 3, "validity bits")[: count + 7 >> 3], "little")
        bits &= (1 << count) - 1
        if bits.bit_count() != count - nulls:
            raise CorruptData(f"A batch body claims {nulls} nulls and has {count - bits.bit_count()}.")
        return f"{bits:0{count}b}"[::-1]

    def headers(self) -> list[Headers | None] | None:
        """Lists of pairs; None if no message has any."""
        count, nulls = self._count, self._lists
        if nulls == count:
            return None
        ends = self._ends(_LISTS + 1, count)
        if ends[-1] > self._pairs[0]:
            raise CorruptData(f"A batch body claims {self._pairs[0]} headers and has {ends[-1]}.")
        present = self._present(_LISTS, count, nulls) if nulls else "1" * count
        pairs = self._header_pairs()
        return [
            pairs[begin:end] if there == "1" else None
            for (begin, end), there in zip(pairwise(ends), present, strict=True)
        ]

    def _header_pairs(self) -> Headers:
        """Those of all messages, one after the other."""
        if self._pairs[1] or self._names[1]:
            raise CorruptData("A message's header has no key.")
        try:
            names = [(name or b"").decode() for name in self.binary(_NAMES, *self._names)]
        except UnicodeDecodeError as error:
            raise CorruptData("A header's key is not UTF-8.") from error
        return list(zip(names, self.binary(_CONTENTS, *self._contents), strict=True))
