"""The fixed messages of the work, and the checks that every consumer makes of them.

A pool is a cycle of messages with random values and 8-byte keys, made from a seed before the clock
starts, so the producer and the consumer process hold the same pool and no system pays for making it.

    value   +0  sequence, u64: the place in the cycle       the last message of a pass carries
            +8  random bytes                                 LAST | number of messages in the pass

A pass is a run of messages from the start of the pool, round and round, whose last message says how many
there were. The consumer checks, a chunk at a time:

    count     against the number in the last message
    order     the sequence of every message is the expected one (per partition: it only grows, round by round)
    key       the key of every message belongs to its sequence
    checksum  the exclusive or of all 32-bit words of all values (6 ns a message of 100 B)
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from bench.model import BenchError

if TYPE_CHECKING:
    from collections.abc import Iterator

LAST = 1 << 63
POOL_BYTES_MAX = 50_000_000
POOL_MESSAGES_MAX = 100_000
SEQUENCE = struct.Struct("<Q")


class Pool:
    """A cycle of messages that producer and consumer make alike from a seed."""

    def __init__(self, size: int, unit: int, seed: int) -> None:
        length = min(POOL_MESSAGES_MAX, POOL_BYTES_MAX // size)
        self.size = size
        self.length = max(unit, length // unit * unit)
        random = np.random.default_rng(seed)
        rows = random.integers(0, 256, (self.length, size), dtype=np.uint8)
        rows[:, :8] = np.arange(self.length, dtype="<u8").view(np.uint8).reshape(-1, 8)
        blob = rows.tobytes()
        self.values = [blob[i : i + size] for i in range(0, len(blob), size)]
        self.keys = [b"%08x" % number for number in random.integers(0, 2**32, self.length)]
        self.key_words = np.frombuffer(b"".join(self.keys), "<u8")
        self._words = rows.view("<u4")

    def checksum(self, count: int) -> int:
        """The exclusive or over the first `count` messages of the endless cycle."""
        rounds, rest = divmod(count, self.length)
        whole = _xor(self._words) if rounds % 2 else 0
        return whole ^ _xor(self._words[:rest])

    def units(self, unit: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Endless (keys, values) lists of one unit each, cut beforehand."""
        cut = [(self.keys[i : i + unit], self.values[i : i + unit]) for i in range(0, self.length, unit)]
        while True:
            yield from cut

    def last(self, count: int) -> bytes:
        """The value of the last message of a pass of `count`."""
        return SEQUENCE.pack(LAST | count) + self.values[(count - 1) % self.length][8:]


def _xor(words: np.ndarray) -> int:
    return int(np.bitwise_xor.reduce(words, axis=None)) if words.size else 0


class Checker:
    """Verifies one pass, a chunk at a time; `finished` once its last message and its count agree."""

    def __init__(self, pool: Pool, partitions: int = 1) -> None:
        self.pool = pool
        self.count = 0
        self.total: int | None = None
        self._checksum = 0
        self._partitions = partitions
        self._latest = [-1] * partitions
        self._rounds = [0] * partitions

    @property
    def finished(self) -> bool:
        return self.count == self.total

    def take(self, keys: list[bytes], values: list[bytes], partitions: list[int] | None = None) -> None:
        size = self.pool.size
        blob = b"".join(values)
        if len(blob) != len(values) * size:
            msg = f"values have {len(blob)} bytes together instead of {len(values) * size}"
            raise BenchError(msg)
        sequences = np.ndarray((len(values),), "<u8", blob, 0, (size,))
        self._checksum ^= _xor(np.frombuffer(blob, "<u4"))
        if sequences.max() >= LAST:
            sequences = self._see_last(sequences)
        self._check_order(sequences, partitions)
        if b"".join(keys) != self.pool.key_words[sequences].tobytes():
            msg = f"a key among messages {self.count}..{self.count + len(keys)} is not its message's own"
            raise BenchError(msg)
        self.count += len(values)
        if self.total is not None and self.count >= self.total:
            self._check_end()

    def _see_last(self, sequences: np.ndarray) -> np.ndarray:
        at = int(np.argmax(sequences))
        marked = int(sequences[at])
        self.total = marked - LAST
        real = (self.total - 1) % self.pool.length
        for number in (marked, real):
            self._checksum ^= (number & 0xFFFFFFFF) ^ (number >> 32)
        sequences = sequences.copy()
        sequences[at] = real
        return sequences

    def _check_order(self, sequences: np.ndarray, partitions: list[int] | None) -> None:
        if self._partitions == 1:
            start = self.count % self.pool.length
            expected = np.arange(start, start + len(sequences), dtype="<u8") % self.pool.length
            if not (sequences == expected).all():
                wrong = int(np.argmax(sequences != expected))
                msg = f"message {self.count + wrong}: sequence {sequences[wrong]}, not {expected[wrong]}"
                raise BenchError(msg)
            return
        column = np.array(partitions)
        for partition in range(self._partitions):
            mine = sequences[column == partition].astype(np.int64)
            if len(mine):
                steps = np.diff(mine, prepend=self._latest[partition])
                self._rounds[partition] += int((steps <= 0).sum())
                self._latest[partition] = int(mine[-1])

    def _check_end(self) -> None:
        if self.count != self.total:
            msg = f"{self.count} messages arrived, {self.total} were sent"
            raise BenchError(msg)
        if self._checksum != self.pool.checksum(self.total):
            msg = f"the checksum of {self.total} messages is wrong"
            raise BenchError(msg)
        rounds = -(-self.total // self.pool.length) - 1
        # A partition may have no message in the last, unfinished round.
        if self._partitions > 1 and not all(rounds - 1 <= mine <= rounds for mine in self._rounds):
            msg = f"partitions went back {self._rounds} times in {rounds + 1} rounds: order was lost"
            raise BenchError(msg)
