"""What a subscription has at hand: one delivery, and one batch of it that is the current one.

What the application has not had of them stays here, never with an iterator: a loop may be left and another one begun,
messages and batches may be asked for in turn, and several threads or tasks may take from one subscription.

    delivery at hand ──next_batch──► current batch ──next──► messages, to whoever asks

Taking a message of the current batch is one step for the interpreter: the batch is an iterator of C, and all who take
share it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stentor.client.decode import decode_messages, offset_batches, position_of
from stentor.client.handed import Handed
from stentor.errors import CorruptData, MissingPackage, StentorError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stentor.client.message import Message
    from stentor.client.reader import Delivery, Reader

    # Of which partition, the offset of the first message or an array of all offsets, a pyarrow.RecordBatch.
    Rows = tuple[Reader, Any, Any]


class AtHand:
    """From a delivery to messages or Arrow, step by step."""

    def __init__(self) -> None:
        self._delivery: Delivery | None = None  # at hand, as messages or as rows, whichever was asked for last:
        self._current: Iterator[Message] = iter(())  # messages of its batch at hand
        self._handed: Handed | None = None  # how far they were handed out; never past what nobody was handed
        self._batches: Iterator[Iterator[Message]] = iter(())  # its further batches
        self._rows: Iterator[tuple[Any, Any]] = iter(())  # its further batches as Arrow, with their first offsets
        self._row_decoder = offset_batches  # how they become Arrow
        self._place: tuple[Delivery | None, int] = (None, 0)  # where in it that began: taking turns starts not from 0

    def _hold(self, delivery: Delivery) -> None:
        """It is the delivery at hand, as messages."""
        self._delivery = delivery
        self._batches = self._messages(delivery, _floor(delivery))

    def _hold_rows(self, delivery: Delivery) -> None:
        """It is the delivery at hand, as Arrow."""
        self._delivery = delivery
        self._rows = self._decoded(delivery, self._row_decoder, _floor(delivery))

    def _messages(self, delivery: Delivery, floor: int) -> Iterator[Iterator[Message]]:
        """One iterator per batch; each becomes the current one, so that nothing is lost in between."""
        for run in self._decoded(delivery, decode_messages, floor):
            self._handed = Handed(delivery.reader, floor, run)
            self._current = run.messages
            yield run.messages

    def _decoded(self, delivery: Delivery, decode: Callable[..., Iterator[Any]], floor: int) -> Iterator[Any]:
        reader = delivery.reader
        try:
            if self._place[0] is not delivery:
                self._place = (delivery, 0)
            position = position_of(delivery.body, self._place[1], floor)
            self._place = (delivery, position)
            yield from decode(delivery.body, reader.topic, reader.partition, floor, reader.end, position)
        except CorruptData as error:
            error.object = f"{reader.topic}/{reader.partition}"
            raise self._damaged(delivery, error) from error
        except MissingPackage as error:
            self._end(error)  # or the next call would go on behind what could not be read
            raise
        reader.taken = delivery.next_offset

    def _damaged(self, delivery: Delivery, error: StentorError) -> StentorError:
        """Report damage; the better of two errors."""
        raise NotImplementedError

    def _end(self, failure: StentorError | None = None) -> None:
        """Nothing more can be taken."""
        raise NotImplementedError

    def _next_message(self) -> Message | None:
        """The next one of the delivery at hand."""
        while True:
            message = next(self._current, None)
            if message is not None:
                return message
            if not self._next_batch():
                return None

    def _next_batch(self) -> bool:
        """Make the next batch of the delivery at hand the current one; False when none is left."""
        if next(self._batches, None) is not None:
            return True
        left = next(self._rows, None)
        if left is None:
            return False
        assert self._delivery is not None
        self._rows = iter(())
        self._batches = self._messages(self._delivery, _bounds(*left)[0])
        return next(self._batches, None) is not None

    def _next_rows(self) -> Rows | None:
        """The next batch of the delivery at hand as Arrow."""
        found = next(self._rows, None)
        while found is None:
            left = self._take_rest()
            if left is not None:
                assert self._delivery is not None
                self._batches = iter(())
                self._rows = self._decoded(self._delivery, self._row_decoder, left)
                found = next(self._rows, None)
            elif not self._next_batch():
                return None
        assert self._delivery is not None
        reader = self._delivery.reader
        self._handed = Handed(reader, _bounds(*found)[1])
        return reader, *found

    def _take_rest(self) -> int | None:
        """Take what is left of the current batch, to hand it out as rows; the offset of the first of it.

        Until then nobody was handed it, and positions stay before it.
        """
        handed = self._handed
        if handed is not None:
            self._handed = Handed(handed.reader, handed.next_offset())
        left = list(self._current)  # in one step: who shares the current batch finds it used up, never half of it
        if left and handed is not None:
            self._handed = Handed(handed.reader, left[0].offset)
            return left[0].offset
        self._handed = handed
        return None


def _floor(delivery: Delivery) -> int:
    """The first offset of it that is wanted."""
    return max(delivery.floor, delivery.reader.start)


def _bounds(first: Any, rows: Any) -> tuple[int, int]:
    """The offset of the first row, and the one behind the last."""
    if isinstance(first, int):
        return first, first + rows.num_rows
    return first[0].as_py(), first[-1].as_py() + 1
