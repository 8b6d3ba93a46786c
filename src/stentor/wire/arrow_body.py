"""The Arrow body of a batch: one IPC record batch message of a fixed schema, without the schema.

The schema is the one Spark accepts without a cast, so a batch that a producer encodes is a table
slice everywhere else. What its metadata may say is checked by `arrow_message`, before pyarrow reads it.
"""

from __future__ import annotations

import array
import struct
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from stentor import limits
from stentor.errors import CorruptData, InvalidArgument
from stentor.wire.arrow_message import compressed, guard
from stentor.wire.pieces import PIECE, spans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stentor.wire.rows import Columns, Headers

HEADER_TYPE: Final = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]),
        nullable=False,
    )
)
SCHEMA: Final = pa.schema(
    [
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADER_TYPE),
    ]
)
_END_OF_STREAM_BYTES: Final = 8
_I64: Final = struct.Struct("<q")
_TIME_US_MAX: Final = 2**63 - 1

_NO_PAIRS: Final = pa.nulls(0, HEADER_TYPE.value_type)  # unlike `pa.array`, this does not load pandas


def load_all() -> None:
    """Load what pyarrow loads late. It takes a fifth of a second, which a broker spends before it serves anybody."""
    import pyarrow.compute  # noqa: F401 - heavy, and rarely needed elsewhere


def timestamps_array(timestamps: Sequence[int]) -> Any:
    """Microseconds as an Arrow column, without a loop."""
    packed = timestamps if isinstance(timestamps, array.array) else array.array("q", timestamps)
    return pa.Array.from_buffers(SCHEMA.field(0).type, len(packed), [None, pa.py_buffer(packed)])


def offset_array(offsets: Sequence[int]) -> Any:
    """Offsets as an Arrow column, the same way."""
    return pa.Array.from_buffers(pa.int64(), len(offsets), [None, pa.py_buffer(array.array("q", offsets))])


def headers_array(headers: Sequence[Headers | None] | None, count: int) -> Any:
    """Headers as an Arrow column."""
    return _no_headers(count) if headers is None else pa.array(headers, HEADER_TYPE)


@lru_cache(maxsize=64)
def _no_headers(count: int) -> Any:
    """As few bytes as can be. `pa.nulls` has offsets for keys and values that are not there, and they would be sent."""
    buffers = [pa.py_buffer(bytes(count + 7 >> 3)), pa.py_buffer(bytes(4 * count + 4))]
    return pa.Array.from_buffers(HEADER_TYPE, count, buffers, null_count=count, children=[_NO_PAIRS])


def record_batch(
    timestamps: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[Headers | None] | None,
) -> Any:
    """Columns of Python values as one Arrow record batch of the schema."""
    return pa.RecordBatch.from_arrays(
        [
            timestamps_array(timestamps),
            _binary(keys, "key"),
            _binary(values, "value"),
            headers_array(headers, len(values)),
        ],
        schema=SCHEMA,
    )


def _binary(values: Sequence[bytes | None], what: str) -> Any:
    try:
        if len(values) > PIECE:
            return pa.concat_arrays([pa.array(values[start:end], pa.binary()) for start, end in spans(len(values))])
        return pa.array(values, pa.binary())
    except (pa.ArrowException, TypeError) as error:
        raise InvalidArgument(f"Every {what} must be bytes, str or None: {_first_line(error)}.") from error


def encode(batch: Any, compression: str = "") -> memoryview:
    """Serialise a record batch of the schema."""
    if not compression:
        return memoryview(batch.serialize())
    stream = _stream([batch], compression)
    return stream[len(_stream([], compression)) - _END_OF_STREAM_BYTES : -_END_OF_STREAM_BYTES]


def _stream(batches: list[Any], compression: str) -> memoryview:
    """Pyarrow compresses only in streams: schema message, record batch messages, end marker."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return memoryview(sink.getvalue())


def decode(body: memoryview, count: int, compression: int | None = None) -> Any:
    """Read a body of any origin as a record batch; damage and hostility are CorruptData.

    A head also says which of COMPRESSIONS the batch's header names, and the body must be compressed so.
    """
    found = guard(body, count)
    if compression is not None and found != compression:
        raise CorruptData(
            f"A batch's body is {compressed(found)}; its header says that it is {compressed(compression)}."
        )
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(body), SCHEMA)
        batch.validate(full=True)
    except MemoryError:
        raise  # says nothing about the body: what it expands to was bounded before (C33)
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        raise CorruptData(f"A batch body is not a valid Arrow record batch: {_first_line(error)}.") from error
    if batch.num_rows != count:
        raise CorruptData(f"A batch claims {count} messages and holds {batch.num_rows}.")
    if batch.column(0).null_count:
        raise CorruptData("A batch holds a message without a timestamp.")
    return batch


def columns(batch: Any) -> Columns:
    """A record batch as lists of Python values."""
    headers = batch.column(3)
    return (
        times(batch),
        _listed(batch.column(1)),
        _listed(batch.column(2)),
        None if headers.null_count == len(headers) else header_lists(headers),
    )


def _listed(column: Any) -> list[Any]:
    """A column as a list, in pieces."""
    if len(column) <= PIECE:
        return column.to_pylist()  # type: ignore[no-any-return]
    found: list[Any] = []
    for start, end in spans(len(column)):
        found.extend(column.slice(start, end - start).to_pylist())
    return found


def times(batch: Any) -> Sequence[int]:
    """Timestamps as a view on Arrow's own memory: most applications never look at them."""
    return _raw_times(batch.column(0)).cast("q")


def _raw_times(column: Any) -> memoryview:
    # The buffer may be longer than its column, by any number of bytes.
    return memoryview(column.buffers()[1])[8 * column.offset : 8 * (column.offset + len(column))]


def first_at(batch: Any, timestamp_us: int) -> int:
    """Return the first row that is not older; -1: there is none."""
    if timestamp_us > _TIME_US_MAX:
        return -1
    import pyarrow.compute as pc  # heavy, and rarely needed

    column = batch.column(0)
    return int(pc.index(pc.greater_equal(column, pa.scalar(timestamp_us, column.type)), True).as_py())


def time_range(batch: Any) -> tuple[int, int]:
    """The smallest and the largest timestamp."""
    column = batch.column(0)
    raw = bytes(_raw_times(column))
    if raw == raw[:8] * len(column):  # most producers stamp a batch once: comparing is far cheaper
        only = _I64.unpack_from(raw)[0]
        return only, only
    import pyarrow.compute as pc  # heavy, and rarely needed

    ends = pc.min_max(column)
    return ends["min"].value, ends["max"].value


def taken(batch: Any, indexes: list[int]) -> Any:
    """Some rows of a record batch."""
    packed = pa.py_buffer(array.array("i", indexes))  # unlike `pa.array`, this does not load pandas
    return batch.take(pa.Array.from_buffers(pa.int32(), len(indexes), [None, packed]))


def has_keys(batch: Any) -> bool:
    """Whether every message has a key that is not empty."""
    column = batch.column(1)
    if column.null_count:
        return False
    import pyarrow.compute as pc  # heavy, and rarely needed

    return bool(pc.min(pc.binary_length(column)).as_py())


def longest(batch: Any, column: str, least: int) -> int:
    """Return the size of the longest key or value; 0 if all of them together are not larger than `least`."""
    found = batch.column(column)
    data = found.buffers()[2]
    if data is None or data.size <= least:
        return 0
    import pyarrow.compute as pc  # heavy, and rarely needed

    return int(pc.max(pc.binary_length(found)).as_py() or 0)


def most_headers(batch: Any) -> tuple[int, int]:
    """Return the most headers of one message, and the most bytes of one message's headers.

    Each is 0 if those of all messages together are not too many for one.
    """
    headers = batch.column("headers")
    names, values = headers.values.field(0), headers.values.field(1)
    size = sum(data.size for data in (names.buffers()[2], values.buffers()[2]) if data is not None)
    if len(names) <= limits.MESSAGE_HEADERS_MAX and size <= limits.MESSAGE_HEADERS_BYTES_MAX:
        return 0, 0
    import pyarrow.compute as pc  # heavy, and rarely needed

    # Where the headers of each message begin and end: then where the bytes of their names and values do.
    ends = headers.offsets
    sizes = [
        pc.subtract(places[1:], places[:-1]) for places in (pc.take(_ends(names), ends), pc.take(_ends(values), ends))
    ]
    most_bytes = pc.max(pc.add(*sizes)).as_py()
    return int(pc.max(pc.subtract(ends[1:], ends[:-1])).as_py() or 0), int(most_bytes or 0)


def _ends(column: Any) -> Any:
    """Where each element of a column of bytes begins, and the last one ends."""
    offsets = column.buffers()[1]
    if offsets is None or not offsets.size:  # of an empty column it may be left out
        return pa.array([0], pa.int32())
    return pa.Array.from_buffers(pa.int32(), len(column) + 1, [None, offsets], offset=column.offset)


def header_lists(headers: Any) -> list[Headers | None]:
    """The headers column as lists of pairs. All of its pairs are taken out at once: Arrow's own way is far slower."""
    ends = _listed(headers.offsets)
    inner = headers.values.slice(ends[0], ends[-1] - ends[0])
    names, values = _listed(inner.field(0)), _listed(inner.field(1))
    pairs: Headers = []
    for start, end in spans(len(names)):
        pairs.extend(zip(names[start:end], values[start:end], strict=True))
    first = ends[0]
    if not headers.null_count:
        return [pairs[begin - first : end - first] for begin, end in pairwise(ends)]
    rows = zip(pairwise(ends), _listed(headers.is_valid()), strict=True)
    return [pairs[begin - first : end - first] if there else None for (begin, end), there in rows]


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or ["unreadable"])[0].rstrip(".")
