"""How far the application has come with what a group handed it: finished, or in work.

A message is in work from the moment it is handed out until the next one is asked for. All but the message in work is
known from the readers: `taken` moves when the application asks for what is behind a delivery. So the application's
thread writes down two references per message, and the client's loop reads them when it commits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stentor.client.message import Message
    from stentor.client.reader import Reader


class HandsOut(Protocol):
    """What hands messages to the application."""

    def use_up(self, reader: Reader) -> None: ...

    def source(self) -> Reader | None: ...


class MemberProgress(Protocol):
    """How far a member is with what it was handed: asked by the client's loop when it commits or lets go."""

    def position(self, reader: Reader) -> int:
        """Everything of a partition below this offset is done with."""

    def handed_out(self, reader: Reader) -> int:
        """Nothing of a partition at this offset or behind it was handed out."""

    def is_busy(self, reader: Reader) -> bool:
        """Whether something of a partition is in work."""

    def drop(self, reader: Reader) -> None:
        """What is at hand of a partition is not handed out any more."""

    def in_work(self) -> object:
        """What is in work: the same object as long as that is the same; None if nothing is, or somebody else looks."""

    def forget(self, reader: Reader) -> None:
        """What was handed out of a partition counts no more."""

    def lose(self, reader: Reader) -> None:
        """What was handed out of a partition before it is read by this was lost, and is not this reader's to count."""

    def moved(self, before: Reader, reader: Reader) -> None:
        """A partition is read by another reader, from what is done with on: what is finished behind that stays so."""


class GroupProgress:
    """What the application's thread tells, and the client's loop reads.

    During a transaction positions stand still: what is finished in it counts with its outputs, or not at all.
    """

    def __init__(self) -> None:
        self.working: Message | None = None  # the last one that was handed out
        self.finished: Message | None = None  # the last one that is done with
        self.rows: tuple[Reader, int] | None = None  # the same for Arrow: everything below this offset was handed out
        self.rows_done: tuple[Reader, int] | None = None
        self.lost: Message | None = None  # one that was in work when its partition was lost, and counts for nothing
        self.at_hand: HandsOut | None = None  # what hands out
        self.held: dict[Reader, int] | None = None  # during a transaction: positions at its beginning
        self.handed: dict[tuple[str, int], int] = {}  # the same: the end of what it was handed, by topic and partition

    def hold(self, readers: Iterable[Reader]) -> None:
        """A transaction begins; what is in work is a part of it."""
        self.held = {reader: self.reached(reader) for reader in readers}
        self.handed = {}
        if self.working is not None and self.working is not self.finished:
            self.hand(self.working)
        if self.rows is not None and self.rows is not self.rows_done:
            self.hand_rows(*self.rows)

    def hand(self, message: Message) -> None:
        """During a transaction, the application is handed a message."""
        self.handed[message.topic, message.partition] = message.offset + 1

    def hand_rows(self, reader: Reader, end: int) -> None:
        """The same for Arrow."""
        self.handed[reader.topic, reader.partition] = end

    def taken_in(self, reader: Reader) -> int | None:
        """How far a transaction has come in a partition; None if it took nothing of it."""
        end = self.handed.get((reader.topic, reader.partition), 0)
        return end if end > self.position(reader) else None

    def finish(self) -> None:
        """Everything that was handed out is done with."""
        if self.working is not None:
            self.finished = self.working
        if self.rows is not None:
            self.rows_done = self.rows

    def position(self, reader: Reader) -> int:
        """Everything of a partition below this offset is done with."""
        held = self.held
        return self.reached(reader) if held is None else held.get(reader, reader.start)

    def reached(self, reader: Reader) -> int:
        """The same, whether it is in a transaction or not."""
        offset, finished, rows = reader.taken, self.finished, self.rows_done
        if finished is not None and finished is not self.lost and _is_of(finished, reader):
            offset = max(offset, finished.offset + 1)
        if rows is not None and rows[0] is reader:
            offset = max(offset, rows[1])
        return offset

    def handed_out(self, reader: Reader) -> int:
        """Nothing at this offset or behind it was handed out; what a transaction took is its own to report."""
        if self.held is not None:
            return self.position(reader)
        return max(self.reached(reader), self._end_handed(reader))

    def is_busy(self, reader: Reader) -> bool:
        """Whether something of a partition is in work, or in a transaction."""
        working, rows = self.working, self.rows
        if self.held is not None and self.taken_in(reader) is not None:
            return True
        begun = None if working is self.finished or working is self.lost else working
        if begun is not None and _is_of(begun, reader):
            return True
        return rows is not None and rows is not self.rows_done and rows[0] is reader

    def in_work(self) -> object:
        """The message or the rows in work; None if nothing is."""
        working, rows = self.working, self.rows
        if working is not None and working is not self.finished:
            return working
        return rows if rows is not self.rows_done else None

    def source(self) -> Reader | None:
        """Which reader brought what is in work; None if nothing is."""
        return None if self.at_hand is None or self.in_work() is None else self.at_hand.source()

    def leave(self, reader: Reader) -> None:
        """Note how far the application came in a partition that rests, as it asks for what is behind it.

        The delivery at hand was cut short, so its end does not say it. Called in the application's thread, before the
        next message takes the place of the last one.
        """
        reader.taken = max(reader.taken, self._end_handed(reader))

    def _end_handed(self, reader: Reader) -> int:
        """The end of what was handed out last, if it is of this partition."""
        working, rows, end = self.working, self.rows, 0
        if working is not None and working is not self.lost and _is_of(working, reader):
            end = working.offset + 1
        return max(end, rows[1]) if rows is not None and rows[0] is reader else end

    def forget(self, reader: Reader) -> None:
        """What was handed out of a partition counts no more, neither when it is done with."""
        if self.working is not None and _is_of(self.working, reader):
            self.working = None
        if self.finished is not None and _is_of(self.finished, reader):
            self.finished = None
        if self.rows is not None and self.rows[0] is reader:
            self.rows = self.rows_done = None

    def lose(self, reader: Reader) -> None:
        """What was handed out of a partition before it is read by this was lost, and is not this reader's to count.

        One that is in work stays so: its time is limited. It counts for nothing when it is done with.
        """
        working, finished = self.working, self.finished
        if working is not None and _is_of(working, reader):
            self.lost = working
        if finished is not None and finished is not working and _is_of(finished, reader):
            self.finished = None

    def moved(self, before: Reader, reader: Reader) -> None:
        """Nothing: messages are finished in their order here."""

    def drop(self, reader: Reader) -> None:
        """What is at hand of a partition is not handed out any more."""
        at_hand = self.at_hand
        if at_hand is not None:
            at_hand.use_up(reader)


def _is_of(message: Message, reader: Reader) -> bool:
    return message.partition == reader.partition and message.topic == reader.topic and message.offset >= reader.start
