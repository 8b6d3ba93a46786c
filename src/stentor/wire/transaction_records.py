"""Transactions of groups, as messages of an internal topic: one message a batch, as packed rows.

key      the group's name
value    the record as JSON, so that whoever reads the topic understands it
headers  each batch that a transaction sends out, as it is published afterwards, under the name of its topic
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stentor.core.cursors import CursorRecord, Moved
from stentor.core.transactions import GroupTransaction, TransactionDone, TransactionRecord
from stentor.errors import CorruptData
from stentor.wire import batch, cursor_records, rows

if TYPE_CHECKING:
    from collections.abc import Iterable

# Made here, under the import lock: logs are opened in several threads.
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(TransactionRecord)


def encode(record: GroupTransaction | TransactionDone, now_us: int, *, topic_id: int, partition: int) -> bytearray:
    """A whole batch with one record, addressed to a partition."""
    headers: list[rows.Headers | None] | None = None
    if isinstance(record, GroupTransaction) and record.outputs:
        headers = [list(record.outputs)]
        record = msgspec.structs.replace(record, outputs=())
    encoded = batch.encode([now_us], [record.group.encode()], [_encoder.encode(record)], headers)
    header = batch.address(encoded, topic_id=topic_id, partition=partition, producer_id=0, generation=0, sequence=0)
    return header + encoded.body


def read(body: bytes | memoryview) -> Iterable[TransactionRecord]:
    """The record of a batch, by its body; nothing if it is something else, or none that this version knows."""
    try:
        _, _, values, headers = rows.decode(memoryview(body), 1)
        if values[0] is None:
            return ()
        record = _decoder.decode(values[0])
    except (CorruptData, msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError):
        return ()
    if isinstance(record, GroupTransaction) and headers is not None:
        outputs = tuple((topic, output) for topic, output in headers[0] or () if output is not None)
        record = msgspec.structs.replace(record, outputs=outputs)
    return (record,)


def moves(transaction: GroupTransaction) -> list[Moved]:
    """The positions of a transaction, as moves of the group's cursors."""
    return [
        Moved(topic_id, transaction.group, positions, by=transaction.by, at_us=transaction.at_us)
        for topic_id, positions in transaction.positions.items()
    ]


def read_moves(body: bytes | memoryview) -> Iterable[CursorRecord]:
    """What a batch says about cursors: by itself, or as a part of a transaction."""
    found = cursor_records.read(body)
    if found:
        return found
    return [move for record in read(body) if isinstance(record, GroupTransaction) for move in moves(record)]
