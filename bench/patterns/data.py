"""The keys and values of a table: made from their number, so that every process can say what a key must hold."""

from __future__ import annotations

import random
import struct
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY_BYTES = 20
VALUE_BYTES = 100
_NUMBER = struct.Struct("<Q")
_STEP = 97
_POOL_BYTES = 1 << 20


@lru_cache(maxsize=1)
def _pool() -> bytes:
    return random.Random(7).randbytes(_POOL_BYTES)


def key_of(number: int) -> str:
    """A path of 20 bytes."""
    return f"user/{number:015d}"


def value_of(number: int, size: int = VALUE_BYTES) -> bytes:
    """Random bytes behind the number."""
    start = number * _STEP % (_POOL_BYTES - size)
    return _NUMBER.pack(number) + _pool()[start : start + size - _NUMBER.size]


def number_of(value: bytes) -> int:
    number: int = _NUMBER.unpack_from(value)[0]
    return number


def parts(keys: int, size: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """All keys with their values, so many at a time."""
    for start in range(0, keys, size):
        numbers = range(start, min(start + size, keys))
        yield [key_of(number).encode() for number in numbers], [value_of(number) for number in numbers]


def sample(keys: int, count: int, seed: int) -> list[int]:
    """Numbers of keys that are looked at."""
    chance = random.Random(seed)
    return [chance.randrange(keys) for _ in range(count)]
