"""Flow of one stream: a cursor on a partition that is pushed to while its reader has credit (D7).

Theory of operation. The reader grants credit in bytes; every push costs its size and may overdraw by
one push. The cursor is *live* while what it needs next is in the tail cache, *catching up* while
it has to be read from the log; either way it takes what is committed, at its own pace, and there is
no queue. At most one read of history is under way.

What was pushed and not granted again is not taken yet. The cursor remembers pushes until credit for them comes back,
and so knows how far the reader is. Of many, small ones are remembered together, which bounds it; it is exact whenever
the reader has taken everything.

Invariants: position never goes back; nothing at or beyond the commit point or the end is pushed.
"""

from __future__ import annotations

from collections import deque

from stentor import limits

_PUSHES_APART_MAX = 64  # so many are remembered one by one, whatever their size


class Cursor:
    """A stream's place in its partition."""

    __slots__ = ("copies", "credit", "end", "position", "reading", "reads", "untaken")

    def __init__(self, position: int, end: int | None, credit: int, *, copies: bool = False) -> None:
        self.copies = copies  # its reader keeps the latest of each key, and must see every deletion
        self.position = position  # the next offset to push
        self.end = end  # the offset to stop before, or None to follow for ever
        self.credit = credit  # bytes the reader can still take
        self.reading = False  # a read of history is under way
        self.reads = 0  # how many reads of history there were
        # Pushes: (first offset, bytes not granted again, when appended in µs). Tuples of numbers: thousands of lists
        # that wait for a second would make the garbage collector walk over all there is, and everybody wait for it.
        self.untaken: deque[tuple[int, int, int]] = deque()

    def limit(self, committed: int) -> int:
        """The offset that a push may not reach beyond."""
        return committed if self.end is None else min(committed, self.end)

    def wants(self, committed: int) -> bool:
        """Whether something can be pushed now."""
        return self.credit > 0 and not self.reading and self.position < self.limit(committed)

    def behind(self, committed: int) -> int:
        """How many committed offsets are not pushed yet."""
        return max(0, committed - self.position)

    @property
    def taken(self) -> int:
        """The offset after the last one that the reader has taken, as far as its credit tells."""
        return self.untaken[0][0] if self.untaken else self.position

    @property
    def untaken_since_us(self) -> int | None:
        """When the first batch was appended that was pushed and is not taken."""
        return self.untaken[0][2] if self.untaken else None

    def finished(self) -> bool:
        """Whether everything that was asked for has been pushed."""
        return self.end is not None and self.position >= self.end

    def grant(self, size: int) -> None:
        """The reader took this many bytes."""
        self.credit = min(self.credit + size, limits.STREAM_CREDIT_BYTES_MAX)
        untaken = self.untaken
        while untaken and size >= untaken[0][1]:
            size -= untaken.popleft()[1]
        if untaken and size:
            first, left, appended_at_us = untaken[0]
            untaken[0] = (first, left - size, appended_at_us)

    def start_reading(self) -> None:
        assert not self.reading
        self.reading = True
        self.reads += 1

    def pushed(self, next_offset: int, size: int, appended_at_us: int = 0) -> None:
        """A push was written to the connection; its first batch was appended at that time."""
        assert next_offset > self.position
        untaken = self.untaken
        if len(untaken) < _PUSHES_APART_MAX or untaken[-1][1] >= limits.UNTAKEN_PUSH_BYTES:
            untaken.append((self.position, size, appended_at_us))
        else:
            first, left, since_us = untaken[-1]
            untaken[-1] = (first, left + size, since_us)
        self.position = next_offset
        self.credit -= size
