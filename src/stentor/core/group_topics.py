"""Which topics the patterns of groups cover, found out once for each pattern.

A group may have hundreds of members with 64 patterns each, all different, and there may be ten thousand topics. To
compare all with all takes seconds, so what a pattern covers is remembered, as one number with a bit for each topic:
what a list of patterns covers is the sum of its bits. When topics come and go, the patterns that are known are compared
with the new ones only.

Bits keep their topics from one change to the next; the bits of topics that are gone are never used again, until there
are too many of them: then everything is found out anew.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from stentor.core.names import is_pattern, matches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

PATTERNS_KNOWN_MAX: Final = 20_000
"""Patterns that are remembered, with a bit for each topic: 25 MB at most. With more, the oldest is found out again."""

_BITS_OF: Final = [[bit for bit in range(8) if byte >> bit & 1] for byte in range(256)]

_GONE_MAX: Final = 1_000  # bits of topics that are gone, beside as many as there are topics


class GroupTopics:
    """The topics there are at a time, and what patterns cover of them."""

    def __init__(self, topics: Mapping[str, tuple[int, int]], before: GroupTopics | None = None) -> None:
        """`topics`: id and number of partitions, by name. `before`: what was known before they changed."""
        self.topics = topics
        kept = before is not None and len(before._names) <= 2 * len(topics) + _GONE_MAX  # noqa: SLF001 - its own kind
        known: OrderedDict[str, int] = OrderedDict()
        self._names: list[str] = []  # by bit; empty: of a topic that is gone
        if before is not None and kept:
            known = before._known  # noqa: SLF001
            self._names = [name if name in topics else "" for name in before._names]  # noqa: SLF001
        self._bits = {name: bit for bit, name in enumerate(self._names) if name}
        added = [name for name in topics if name not in self._bits]
        for name in added:
            self._bits[name] = len(self._names)
            self._names.append(name)
        self._there = sum_of(self._bits.values())
        self._known: OrderedDict[str, int] = OrderedDict(
            (pattern, mask | self._found(pattern, added)) for pattern, mask in known.items()
        )

    def knows(self, pattern: str) -> bool:
        """Whether `covers` need not compare it with all topics."""
        return pattern in self._known or not is_pattern(pattern)

    def learn(self, pattern: str) -> int:
        """Return the topics that a pattern covers, as bits."""
        if not is_pattern(pattern):
            return 1 << self._bits[pattern] if pattern in self._bits else 0
        mask = self._known.get(pattern)
        if mask is None:
            if len(self._known) >= PATTERNS_KNOWN_MAX:
                self._known.popitem(last=False)
            mask = self._known[pattern] = self._found(pattern, self._bits)
        return mask & self._there

    def covered(self, patterns: Iterable[str]) -> int:
        """Return the topics that any of these covers, as bits."""
        mask = 0
        for pattern in patterns:
            mask |= self.learn(pattern)
        return mask

    def names(self, mask: int) -> Iterator[str]:
        """The names of topics."""
        for place, byte in enumerate(mask.to_bytes(mask.bit_length() + 7 >> 3, "little")):
            if byte:
                for bit in _BITS_OF[byte]:
                    yield self._names[place * 8 + bit]

    def _found(self, pattern: str, names: Iterable[str]) -> int:
        return sum_of(self._bits[name] for name in names if matches(pattern, name))


def sum_of(bits: Iterable[int]) -> int:
    """One number with these bits; made of bytes, since adding bit by bit would copy it each time."""
    packed = bytearray()
    for bit in bits:
        place = bit >> 3
        if place >= len(packed):
            packed.extend(bytes(place + 1 - len(packed)))
        packed[place] |= 1 << (bit & 7)
    return int.from_bytes(packed, "little")
