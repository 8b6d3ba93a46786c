"""Records about cursors, as messages of an internal topic: one message a batch, as packed rows.

key     the cursor's name; empty for all cursors of a topic
value   the record as JSON, so that whoever reads the topic understands it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stentor.core.cursors import CursorRecord
from stentor.errors import CorruptData
from stentor.wire import batch, rows

if TYPE_CHECKING:
    from collections.abc import Iterable

# Made here, under the import lock: logs are opened in several threads.
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(CursorRecord)


def encode(record: CursorRecord, now_us: int, *, topic_id: int, partition: int) -> bytearray:
    """A whole batch with one record, addressed to a partition."""
    encoded = batch.encode_at(now_us, [record.name.encode()], [_encoder.encode(record)])
    header = batch.address(encoded, topic_id=topic_id, partition=partition, producer_id=0, generation=0, sequence=0)
    return header + encoded.body


def read(body: bytes | memoryview) -> Iterable[CursorRecord]:
    """The record of a batch, by its body; nothing if it is none that this version knows."""
    try:
        _, _, values, _ = rows.decode(memoryview(body), 1)
        return () if values[0] is None else (_decoder.decode(values[0]),)
    except (CorruptData, msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError):
        return ()
