"""Changes of a table: encoded as one batch of rows, and what rows of the log say, read again."""

from __future__ import annotations

import time
from itertools import compress
from typing import TYPE_CHECKING

import msgspec

from stentor.client.decode import PlainRows
from stentor.errors import InvalidArgument
from stentor.wire import batch, table_rows
from stentor.wire.header import CONDITIONAL, TIMED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stentor.client.message import Message
    from stentor.client.table_leases import NewLease
    from stentor.wire.rows import Headers


def texts(keys: list[bytes]) -> list[str]:
    """Keys as people write them."""
    try:
        return list(map(bytes.decode, keys))
    except UnicodeDecodeError:  # no head takes such keys
        return [key.decode(errors="replace") for key in keys]


def inside(rows: PlainRows | list[Message], subtree: bytes) -> PlainRows | list[Message]:
    """Those rows whose keys are in a subtree; plain ones may be none."""
    if not isinstance(rows, PlainRows):
        return [row for row in rows if (row.key or b"").startswith(subtree)]
    wanted = [key.startswith(subtree) for key in rows.keys]
    if all(wanted):
        return rows
    keys = list(compress(rows.keys, wanted))
    return PlainRows(keys, list(compress(rows.values, wanted)), list(compress(rows.offsets, wanted))) if keys else []


def keys_of(rows: PlainRows | list[Message]) -> list[bytes]:
    """The key of each row."""
    return rows.keys if isinstance(rows, PlainRows) else [row.key or b"" for row in rows]


def terms_of(headers: Headers) -> table_rows.Terms:
    """What a row says; headers that only look like terms were there before there were any."""
    try:
        return table_rows.terms(headers)
    except InvalidArgument:
        return table_rows.NO_TERMS


def encode_changes(
    rows: Mapping[str, bytes | None],
    conditions: Mapping[str, int],
    lease: NewLease | None,
    more_headers: Mapping[str, Headers],
    table: str = "",
) -> batch.Encoded:
    """One batch of changes, as it goes to the head."""
    table_rows.check_size(len(rows), table, terms=bool(conditions) or lease is not None)
    now_us = time.time_ns() // 1000
    keys, values = [key.encode() for key in rows], list(rows.values())
    for key, value in zip(keys, values, strict=True):
        batch.check_message(key, value)
    if not conditions and lease is None and not more_headers:
        return batch.encode_at(now_us, keys, values)
    stays: Headers = [] if lease is None else lease.headers()
    headers: list[Headers | None] = []
    for name, value in rows.items():
        depends = [table_rows.condition(conditions[name])] if name in conditions else []
        headers.append([*more_headers.get(name, ()), *depends, *(stays if value is not None else ())] or None)
    encoded = batch.encode([now_us] * len(keys), keys, values, headers)
    timed = any(name == table_rows.TTL for named in headers for name, _ in named or ())
    attributes = encoded.attributes | (CONDITIONAL if conditions else 0) | (TIMED if timed else 0)
    return msgspec.structs.replace(encoded, attributes=attributes)
