"""Rows: messages as they gather in a lane, and how they become a batch.

They are flat, [value, key, value, key, …]: a pair per message would be an object for the garbage collector to visit.
A message with more than a key has an `Extra` in the key's place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from stentor.wire import batch
from stentor.wire.header import unpack

if TYPE_CHECKING:
    from stentor.wire.batch import Encoded


class Extra(msgspec.Struct, frozen=True, gc=False):
    """What a message has besides its value, when that is more than a key."""

    key: bytes | None
    headers: Any  # list of pairs, or None
    timestamp_us: int | None
    on_delivery: Any  # callback, or None


def encode_rows(rows: list[Any], opened_us: int, *, extras: bool, compression: str) -> tuple[Encoded, list[Any]]:
    """A batch of rows, and who wants to hear of which message: (index, callback, timestamp).

    `opened_us` is the time of messages that have none; `extras` says whether some row may be more than value and key.
    """
    values, keys = rows[0::2], rows[1::2]
    if not extras:
        return batch.encode_at(opened_us, keys, values, compression=compression), []
    if len(keys) == 1 and isinstance(extra := keys[0], Extra):
        return _encode_single(values, extra, opened_us, compression)
    timestamps = [opened_us] * len(values)
    headers: list[Any] = [None] * len(values)
    callbacks: list[Any] = []
    for index, extra in enumerate(keys):
        if isinstance(extra, Extra):
            keys[index] = extra.key
            headers[index] = extra.headers
            if extra.timestamp_us is not None:
                timestamps[index] = extra.timestamp_us
            if extra.on_delivery is not None:
                callbacks.append((index, extra.on_delivery, timestamps[index]))
    named = headers if any(h is not None for h in headers) else None
    return batch.encode(timestamps, keys, values, named, compression=compression), callbacks


def without(encoded: Encoded, header: bytearray, index: int, compression: str) -> Encoded:
    """Encode a batch again without one of its messages."""
    timestamps, keys, values, headers = batch.body_columns(unpack(header), encoded.body)
    left = [place for place in range(encoded.count) if place != index]
    return batch.encode(
        [timestamps[place] for place in left],
        [keys[place] for place in left],
        [values[place] for place in left],
        None if headers is None else [headers[place] for place in left],
        compression=compression,
    )


def _encode_single(values: list[Any], extra: Extra, opened_us: int, compression: str) -> tuple[Encoded, list[Any]]:
    """One publish that waits for its answer: the way is kept short."""
    time_us = opened_us if extra.timestamp_us is None else extra.timestamp_us
    headers = None if extra.headers is None else [extra.headers]
    encoded = batch.encode((time_us,), (extra.key,), values, headers, compression=compression)
    return encoded, [(0, extra.on_delivery, time_us)] if extra.on_delivery is not None else []
