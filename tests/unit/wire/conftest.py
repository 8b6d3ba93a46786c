"""Batches as a producer would send them, and as a hostile one might."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from stentor.wire import batch
from stentor.wire.header import HAS_HEADERS, HEADER_BYTES, BatchHeader, check_header, seal

TOPIC_ID = 0xABCDEF
NOW_US = 1_700_000_000_000_000


class Makes:
    """Addressed batches, their judgement, and ways to forge them."""

    now_us = NOW_US

    def batch(self, *columns, compression: str = "", **fields) -> bytes:
        return self.addressed(batch.encode(*columns, compression=compression), **fields)

    def plain(self, count: int, *, compression: str = "", headers: bool = False) -> bytes:
        """A batch of `count` messages that differ."""
        return self.batch(*self.columns(count, headers=headers), compression=compression)

    def columns(self, count: int, *, headers: bool = False):
        return (
            [NOW_US + i for i in range(count)],
            [b"key%d" % i for i in range(count)],
            [b"value %d" % i for i in range(count)],
            [[("h", b"%d" % i)] for i in range(count)] if headers else None,
        )

    def addressed(self, encoded: batch.Encoded, **fields) -> bytes:
        place = {"topic_id": TOPIC_ID, "partition": 0, "producer_id": 1, "generation": 0, "sequence": 0}
        return bytes(batch.address(encoded, **{**place, **fields})) + bytes(encoded.body)

    def encoded(self, body: bytes, count: int, attributes: int, headers: object) -> bytes:
        """A batch with this body, of messages that all have the same time."""
        attributes |= 0 if headers is None else HAS_HEADERS
        return self.addressed(batch.Encoded(body, crc32c(body), count, attributes, NOW_US, NOW_US))

    def judge(self, data: bytes) -> BatchHeader:
        """What the head of a chain does before it takes a batch."""
        header = check_header(data)
        batch.validate(data, header)
        return header

    def reseal(self, data: bytes | bytearray) -> bytearray:
        """Make length and checksums right, as a hostile producer would."""
        forged = bytearray(data)
        struct.pack_into("<I", forged, 8, len(forged))
        struct.pack_into("<I", forged, 12, crc32c(bytes(forged[HEADER_BYTES:])))
        seal(memoryview(forged), 0)
        return forged

    def with_body(self, data: bytes, body: bytes) -> bytearray:
        return self.reseal(data[:HEADER_BYTES] + body)

    def with_field(self, data: bytes, layout: str, at: int, value: int) -> bytearray:
        """A header field changed, checksums right."""
        forged = bytearray(data)
        struct.pack_into(layout, forged, at, value)
        return self.reseal(forged)


@pytest.fixture(scope="session")
def makes() -> Makes:
    return Makes()
