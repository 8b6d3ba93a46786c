"""Steps of groups, as messages of an internal topic: one message a batch, as packed rows.

key     the group's name
value   the step as JSON, so that whoever reads the topic understands it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stentor.core.groups import GroupStep
from stentor.errors import CorruptData
from stentor.wire import batch, rows

if TYPE_CHECKING:
    from collections.abc import Iterable

# Made here, under the import lock: logs are opened in several threads.
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(GroupStep)


def encode(step: GroupStep, now_us: int, *, topic_id: int, partition: int) -> bytearray:
    """A whole batch with one step, addressed to a partition."""
    encoded = batch.encode_at(now_us, [step.name.encode()], [_encoder.encode(step)])
    header = batch.address(encoded, topic_id=topic_id, partition=partition, producer_id=0, generation=0, sequence=0)
    return header + encoded.body


def read(body: bytes | memoryview) -> Iterable[GroupStep]:
    """The step of a batch, by its body; nothing if it is something else, or none that this version knows."""
    try:
        _, _, values, _ = rows.decode(memoryview(body), 1)
        return () if values[0] is None else (_decoder.decode(values[0]),)
    except (CorruptData, msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError):
        return ()
