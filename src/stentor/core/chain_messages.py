"""What brokers tell each other about one partition (the chain's own protocol).

    P ── Adopt ──► S        here is the record that was swapped into the store
    S ── Link ───► P        I am your successor in this epoch, and this is my log
    P ── Linked ─► S        cut your log back to here; data from there follows
    S ── AskState ─► P      before it begins anew: what was derived from what came before, piece by piece
    P ── StatePiece ► S
    P ── data ───► S        batches, each run with the epoch before it (broker: frames, simulator: Data)
    P ── Down ───► S        members 1..k are on disk up to here
    S ── Up ─────► P        how far everyone from here to the tail is, and what is committed
    S ── Held ───► P        how far I am, whatever those after me do; said now and then
    member ── Confirm ──► member   is this still your epoch? For somebody who reads up to the end
    member ◄─ Confirmed ─ member   yes
    member ──────► controller   JoinerReady, Complaint, ReplicaReport

Every message carries the epoch (C2). Messages may be lost, late or doubled: what matters is said
again after each reconnect.
"""

from __future__ import annotations

import msgspec

from stentor.core.records import ChainRecord, Member


class _Message(msgspec.Struct, frozen=True, tag=True, tag_field="type", array_like=False, omit_defaults=True):
    """Told apart by its type."""


class Adopt(_Message, frozen=True):
    """A record that was swapped into the store."""

    record: ChainRecord
    revision: int


class Link(_Message, frozen=True):
    """The successor asks to be fed, and says what it holds."""

    epoch: int
    attempt: int
    member: Member
    start: int
    end: int
    table: list[tuple[int, int]]
    in_pieces: bool = False  # the sender can ask for the derived state; older versions expect it in Linked


class Linked(_Message, frozen=True):
    """Where the two logs part; everything from there follows."""

    epoch: int
    attempt: int
    cut: int
    reset: bool = False  # the successor's log has nothing in common: begin anew at `cut`
    snapshot: bytes | None = None  # the derived state as of `cut`, with reset, for older versions (C19)
    in_pieces: bool = False  # it can be asked for instead
    compacted: bool = False  # with reset: deletions behind the successor's end are gone, so its log is of no use (C23)


class AskState(_Message, frozen=True):
    """The successor asks for the state derived from everything below `cut`, from a position on."""

    epoch: int
    attempt: int
    cut: int
    position: int


class StatePiece(_Message, frozen=True):
    """A part of that state."""

    epoch: int
    attempt: int
    position: int
    total: int = 0
    data: bytes = b""
    gone: bool = False  # the sender's log begins elsewhere by now: ask for a link again


class Down(_Message, frozen=True):
    """`durable_k`: members 1..k have the log on disk up to here (C5)."""

    epoch: int
    durable: int
    start: int = 0  # the head's first offset: what retention has let go (C23)


class Up(_Message, frozen=True):
    """Up to where each member from the sender to the tail is on disk, and the commit point it knows."""

    epoch: int
    durable: list[int]
    committed: int = 0
    joint: bool = False  # the tail answers for its joiner too (C11): if that one stands still, the tail says so

    def is_news(self, told: Up | None, to_quorum: int, quorum_wanted: int) -> bool:
        """Whether the predecessor must hear this after what it was told last.

        Up to `quorum_wanted` somebody waits for a majority, which the sender and `to_quorum - 1` members after it
        complete. What is committed is no news: the predecessor has heard everything that it follows from.
        """
        if told is None or min(told.durable) != min(self.durable) or told.joint != self.joint:
            return True
        before = min(told.durable[:to_quorum], default=quorum_wanted)
        return before < quorum_wanted and before < min(self.durable[:to_quorum])


class Held(_Message, frozen=True):
    """What the sender itself has on disk: `Up` says only what matters for commits, and nobody is to be blamed for
    those after it (C14).
    """

    epoch: int
    end: int


class Confirm(_Message, frozen=True):
    """A member asks whether its epoch is still that of the receiver: a reader wants to know the end (C30)."""

    epoch: int
    nonce: int


class Confirmed(_Message, frozen=True):
    """The sender has adopted no newer epoch, as of after the question was asked (C30)."""

    epoch: int
    nonce: int
    committed: int  # as far as the sender knows
    sure: bool = False  # the sender is the head, and everything that was ever acknowledged is below `committed`
    joiner: str = ""  # the broker for which the sender, the tail, waits in joint mode: it must be asked too


class JoinerReady(_Message, frozen=True):
    """The joiner holds everything committed, and nothing is committed without it (C11)."""

    epoch: int
    member: Member


class Complaint(_Message, frozen=True):
    """A member cannot be reached by its predecessor, or makes no progress (C14, C15)."""

    epoch: int
    member: Member
    why: str
    by: str = ""  # the broker that says so
    stalls: bool = False  # it is there and makes no progress: no reason to leave while its disk has too much to do


class ReplicaReport(_Message, frozen=True):
    """What a broker holds of a partition."""

    member: Member
    epoch: int
    end: int
    committed: int
    damaged: bool = False  # may not lead before it was reconciled (C13)
    failed: str = ""
    halted: bool = False  # it refused to lose what is committed (C9): nothing changes without an operator
    incomplete: bool = False  # offsets of its log are damaged (K2): it may lead, but is not filled up


PartitionMessage = (
    Adopt
    | Link
    | Linked
    | AskState
    | StatePiece
    | Down
    | Up
    | Held
    | Confirm
    | Confirmed
    | JoinerReady
    | Complaint
    | ReplicaReport
)
