"""What a replica is told (events) and what it wants done (effects); `core.replica` is the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from stentor.core.chain_messages import AskState, PartitionMessage
from stentor.core.dedupe import SEARCHED, Resend
from stentor.core.records import ChainRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stentor.core.records import Batch
    from stentor.errors import SequenceError, StentorError

Certainty = Literal["sure", "if_newest", "unknown"]
"""`if_newest`: certain if the coordination store has no newer record of the partition, of which nobody could say."""

# --- events -------------------------------------------------------------------------------------


class Publish(msgspec.Struct, frozen=True, gc=False):
    """A client's batch, validated, wants an offset."""

    ticket: int  # names the request in effects
    ack: int  # wire.frames.Ack
    count: int
    producer_id: int
    generation: int
    sequence: int
    checksum: int
    known: Resend | None = None  # a search has found it in the log
    conditional: Batch | None = None  # its header, if it comes with conditions
    body: bytes | memoryview = b""  # and then its rows
    stamp_us: int = 0  # when it arrived, by the wall clock: what its messages are stamped with
    sent_in: int = 0  # it may be in the log since this epoch, its producer says; 0: it cannot be


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The batch of the last Append effect is in the log file."""

    publish: Publish
    append: Append
    batch: Batch  # as it was written
    body: bytes | memoryview = b""  # only where a derived state wants it


class Durable(msgspec.Struct, frozen=True, gc=False):
    """The log is on disk up to (not including) this offset."""

    end: int


class Fail(msgspec.Struct, frozen=True, gc=False):
    """The log takes no more writes (K3): what waits has an unknown outcome."""

    reason: str


class Configure(msgspec.Struct, frozen=True):
    """A record that was swapped into the store; heard from the store, the controller or a neighbour."""

    record: ChainRecord
    revision: int


class Doubted(msgspec.Struct, frozen=True, gc=False):
    """A peer says that a newer chain does without this member. Until the store says whether that is so, it takes
    nothing and serves nobody (C6, C28).
    """

    revision: int


class Trusted(msgspec.Struct, frozen=True, gc=False):
    """The store's record is the one that this member has adopted: what peers said otherwise is wrong (C28)."""


class LetLead(msgspec.Struct, frozen=True, gc=False):
    """An operator says that this copy leads, as it is: what it lacks or refused counts no more (C13)."""


class Halted(msgspec.Struct, frozen=True, gc=False):
    """A Halt effect was performed. A topic that is told before any disk has it needs no operator."""

    for_operator: bool


class EpochStored(msgspec.Struct, frozen=True, gc=False):
    """The epoch of a StoreEpoch effect is on disk."""

    epoch: int


class Received(msgspec.Struct, frozen=True):
    """A message of another broker."""

    sender: str
    message: PartitionMessage


class Offered(msgspec.Struct, frozen=True, gc=False):
    """A run of batches from the predecessor; Take says to append it, then report Taken."""

    sender: str
    epoch: int
    attempt: int
    previous: int  # the epoch of the batch before the first one
    base: int
    durable: int  # the sender's `durable_k`
    quorum: int  # up to here somebody waits for a majority


class Taken(msgspec.Struct, frozen=True):
    """The batches of the last Take are in the log file."""

    batches: Sequence[Batch]
    bodies: Sequence[bytes | memoryview] = ()  # one each, only where a derived state wants them


class NotTaken(msgspec.Struct, frozen=True, gc=False):
    """The disk had no room for the batches of the last Take; they must be asked for again."""


class Cut(msgspec.Struct, frozen=True, gc=False):
    """The log was cut back (or begun anew) as the last Truncate said, and that is on disk."""

    end: int


class PeerConnected(msgspec.Struct, frozen=True, gc=False):
    """A connection with this broker was made (again): what was under way on the old one may be lost."""

    broker: str


class LinkAgain(msgspec.Struct, frozen=True, gc=False):
    """What the successor has so far may not be continued from this log any more (C23)."""


class Tick(msgspec.Struct, frozen=True):
    """Some time passed."""

    unheard: frozenset[str] = frozenset()  # brokers that this one does not hear at the moment
    awake_since_us: int = 0  # this broker has not stood still itself since then (C15)
    sync_began_us: int | None = (
        None  # when the disk began with the sync that is under way; None while it waits its turn
    )


class AskEnd(msgspec.Struct, frozen=True, gc=False):
    """A reader wants to know where the committed messages end; End answers (C30)."""

    ticket: int


class Started(msgspec.Struct, frozen=True, gc=False):
    """Retention moved the log's start here."""

    start: int


ReplicaEvent = (
    Publish
    | Appended
    | Durable
    | Fail
    | Configure
    | Doubted
    | Trusted
    | LetLead
    | Halted
    | EpochStored
    | Received
    | Offered
    | Taken
    | NotTaken
    | Cut
    | PeerConnected
    | LinkAgain
    | Tick
    | AskEnd
    | Started
)

# --- effects ------------------------------------------------------------------------------------


class Append(msgspec.Struct, frozen=True, gc=False):
    """Write the batch at this offset, with these stamps, then report Appended."""

    base_offset: int
    epoch: int
    appended_at_us: int
    refused: bool = False  # its conditions do not hold: write it as an outcome without effect (C20)


class Sync(msgspec.Struct, frozen=True, gc=False):
    """Bring the log to disk, then report Durable."""


class Committed(msgspec.Struct, frozen=True, gc=False):
    """Readers may see everything below this offset."""

    end: int


class Answer(msgspec.Struct, frozen=True, gc=False):
    """The publish reached its ack level."""

    ticket: int
    base_offset: int
    epoch: int
    appended_at_us: int
    refused: bool = False  # it is in the log, without effect: its conditions did not hold


class Refuse(msgspec.Struct, frozen=True):
    """The publish was not taken, or its outcome is unknown."""

    ticket: int
    error: StentorError


class Find(msgspec.Struct, frozen=True):
    """Look for this very batch in the log. If it is there, and the epoch is still the same, publish it again with
    `known` set; else refuse it: its outcome is unknown (C32).
    """

    publish: Publish
    error: SequenceError


class StoreEpoch(msgspec.Struct, frozen=True, gc=False):
    """Put the epoch on disk, then report EpochStored (C2)."""

    epoch: int


class Send(msgspec.Struct, frozen=True):
    """Tell another broker."""

    to: str
    message: PartitionMessage


class Report(msgspec.Struct, frozen=True):
    """Tell the controller, whoever that is; said again on ticks while it is true."""

    message: PartitionMessage


class StartFeed(msgspec.Struct, frozen=True, gc=False):
    """Send the log from this offset on, and whatever is appended later, to the successor."""

    to: str
    epoch: int
    attempt: int
    base: int


class GiveState(msgspec.Struct, frozen=True):
    """Send the successor a piece of the state derived from everything below the log's start."""

    to: str
    ask: AskState


class StopFeed(msgspec.Struct, frozen=True, gc=False):
    """Stop the feed."""


class Take(msgspec.Struct, frozen=True, gc=False):
    """Append what was offered, then report Taken."""


class Truncate(msgspec.Struct, frozen=True, gc=False):
    """Cut the log back to this end (or begin it anew there) on disk, derive state again, report Cut."""

    end: int
    reset: bool = False
    snapshot: bytes | None = None


class Halt(msgspec.Struct, frozen=True, gc=False):
    """Something that must not happen did: this replica takes part in nothing more, loudly."""

    reason: str


class Retire(msgspec.Struct, frozen=True, gc=False):
    """The head's log starts here; segments wholly below may go (C23)."""

    start: int


class End(msgspec.Struct, frozen=True, gc=False):
    """Where the committed messages end, as far as the chain could say (C30)."""

    ticket: int
    end: int
    certainty: Certainty


ReplicaEffect = (
    Append
    | Sync
    | Committed
    | Answer
    | Refuse
    | Find
    | StoreEpoch
    | Send
    | Report
    | StartFeed
    | GiveState
    | StopFeed
    | Take
    | Truncate
    | Halt
    | Retire
    | End
)


def find_or_refuse(publish: Publish, error: SequenceError) -> Find | Refuse:
    """What becomes of a batch whose sequence does not fit: what may be in the log is looked for there (C32)."""
    return Find(publish, error) if error.detail["reason"] in SEARCHED else Refuse(publish.ticket, error)
