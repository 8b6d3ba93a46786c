"""Links between neighbours of a chain: a successor asks, both logs are compared, and what parts is cut off (C9).

    S ── Link ───► P        this is my log
    P ── Linked ─► S        cut it back to here (then S asks again), or begin anew here; what follows is data

The predecessor answers once its own log is reconciled, so that nobody is fed from a log that may still be cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor.core import chain_messages as m
from stentor.core import replica_events as r
from stentor.core.downstream import NEVER
from stentor.core.records import common_part
from stentor.core.state_transfer import ASK_AGAIN_US, StateTransfer

if TYPE_CHECKING:
    from stentor.core.replica import Replica
    from stentor.core.replica_events import ReplicaEffect as Effect


class Linking:
    """The links of one replica, upwards and downwards."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.attempt = 0  # numbers the questions to the predecessor
        self.cutting: m.Linked | None = None  # the log is being cut as this says
        self.transfer = StateTransfer(replica, self)
        self._asked_at_us = 0
        self._asked: r.Received | None = None  # a Link that could not be answered yet

    def received(
        self, event: r.Received, message: m.Link | m.Linked | m.AskState | m.StatePiece, now_us: int
    ) -> list[Effect]:
        """What a neighbour says about the link."""
        replica = self._replica
        match message:
            case m.Link():
                return self._link(event, message, now_us)
            case m.Linked():
                return self._answered(event.sender, message, now_us)
            case m.AskState(epoch):
                if replica.is_current(epoch) and replica.is_successor(event.sender) and replica.linked:
                    return self.transfer.asked(event.sender, message, now_us)
            case m.StatePiece(epoch):
                if replica.is_from_predecessor(event.sender, epoch):
                    return self.transfer.taken(message, now_us)
        return []

    def tick(self, now_us: int) -> list[Effect]:
        """Ask again what got no answer."""
        if self.transfer.under_way:
            return self.transfer.tick(now_us)
        waits = not self._replica.linked and self.cutting is None
        return self.ask(now_us) if waits and now_us - self._asked_at_us >= ASK_AGAIN_US else []

    def break_off(self) -> list[Effect]:
        """What was offered could not be taken: a later tick asks again; what was answered before counts no more."""
        self._replica.linked = False
        self.attempt += 1
        return []

    # --- upwards --------------------------------------------------------------------------------

    def ask(self, now_us: int) -> list[Effect]:
        """Ask the predecessor to be fed."""
        replica = self._replica
        predecessor = replica.position.predecessor
        if predecessor is None or self.cutting is not None or replica.failed:
            return []
        replica.linked = replica.linked and replica.position.is_head
        self.transfer.forget()
        self.attempt += 1
        self._asked_at_us = now_us
        log = (replica.start, replica.end, replica.table.entries())
        return [r.Send(predecessor.broker, m.Link(replica.epoch, self.attempt, replica.me, *log, in_pieces=True))]

    def _answered(self, sender: str, linked: m.Linked, now_us: int) -> list[Effect]:
        replica = self._replica
        if not replica.is_from_predecessor(sender, linked.epoch) or linked.attempt != self.attempt or replica.linked:
            return []
        if self.cutting is not None or self.transfer.under_way:
            return []  # said twice
        if self._loses_committed(linked):
            replica.halted = True
            reason = f"epoch {replica.epoch} would cut the log at {linked.cut}, below {replica.committed}, committed"
            return [r.Halt(reason), *replica.fail(reason)]
        if linked.reset:
            return self.transfer.begin(linked, now_us) if linked.in_pieces else self.begin_anew(linked, linked.snapshot)
        if linked.cut == replica.end:
            return replica.become_linked(now_us)
        self.cutting = linked
        return [r.Truncate(linked.cut)]

    def begin_anew(self, linked: m.Linked, state: bytes | None) -> list[Effect]:
        """The log has nothing in common with the predecessor's, whose derived state is here now."""
        self.cutting = linked
        return [r.Truncate(linked.cut, reset=True, snapshot=state)]

    def _loses_committed(self, linked: m.Linked) -> bool:
        """Only a joiner may begin anew: above its end if retention has let its offsets go meanwhile, or below if a
        compaction has removed what it would need to go on.
        """
        replica = self._replica
        may = linked.reset and replica.position.joins and (linked.cut >= replica.end or linked.compacted)
        return linked.cut < replica.committed and not may

    def cut(self, end: int, now_us: int) -> list[Effect]:
        """The log ends here now, on disk."""
        replica = self._replica
        linked, self.cutting = self.cutting, None
        assert linked is not None
        replica.end = replica.durable = end
        replica.syncing = False  # one that was under way was waited for, and says nothing any more
        if linked.reset:
            replica.committed = min(replica.committed, end)
            replica.start = end
            replica.table.clear()
        else:
            replica.table.cut(end)
        # Ask again: what was sent meanwhile was not taken. Or a newer epoch came.
        return [] if replica.is_adopting else replica.enter(now_us)

    # --- downwards ------------------------------------------------------------------------------

    def _link(self, event: r.Received, link: m.Link, now_us: int) -> list[Effect]:
        """A successor asks. Answer once this log is reconciled itself, so that it is cut no more (C9)."""
        replica, below = self._replica, self._replica.downstream
        if link.epoch < replica.epoch:
            return replica.tell_replaced(event.sender, link.epoch)
        if not replica.is_current(link.epoch) or not replica.linked or replica.position.successor != link.member:
            self._asked = event
            return []
        if below.fed is not None and link.attempt < below.fed:
            return []  # it asked again since
        self._asked = None
        below.asked(link.end, now_us)
        linked = self._reconcile(link)
        effects: list[Effect] = [r.Send(event.sender, linked)]
        if linked.reset or linked.cut != link.end:
            return [*effects, *replica.unfeed()]  # it cuts its log, and asks again
        below.fed = link.attempt
        below.told = (NEVER, NEVER)
        effects.append(r.StartFeed(event.sender, replica.epoch, link.attempt, linked.cut))
        effects.extend(replica.progress())
        return effects

    def _reconcile(self, link: m.Link) -> m.Linked:
        """Where the successor's log must be cut: where it stops being ours (C9)."""
        replica = self._replica
        ours, theirs = (replica.table.entries(), replica.start, replica.end), (link.table, link.start, link.end)
        cut = common_part(*ours, *theirs)
        if cut is not None and link.start < cut == link.end < replica.states.deletions_until:
            # It holds keys that were deleted behind its end, and these deletions may be gone here (C23). What it has
            # beyond the common part is cut off first, so that it looks whether it may be.
            said = (replica.epoch, link.attempt, replica.start)
            return m.Linked(*said, reset=True, in_pieces=link.in_pieces, compacted=True)
        if cut is None:  # nothing that is left is known to be the same: it begins where this log begins
            return m.Linked(replica.epoch, link.attempt, replica.start, reset=True, in_pieces=link.in_pieces)
        return m.Linked(replica.epoch, link.attempt, cut)

    def offer(self, now_us: int) -> list[Effect]:
        """This log is reconciled: tell the successor, or answer it if it has asked already."""
        replica = self._replica
        if self._asked is not None:
            return self.answer_asked(now_us)
        successor = replica.position.successor
        if successor is None or replica.record is None:
            return []
        return [r.Send(successor.broker, m.Adopt(replica.record, replica.revision))]

    def answer_asked(self, now_us: int) -> list[Effect]:
        """Answer a Link that could not be answered when it came."""
        asked, self._asked = self._asked, None
        if asked is None:
            return []
        assert isinstance(asked.message, m.Link)
        return self._link(asked, asked.message, now_us)

    def link_again(self, now_us: int) -> list[Effect]:
        """The successor is fed no more, and hears that it must ask again."""
        replica = self._replica
        effects: list[Effect] = []
        if replica.downstream.fed is not None:
            effects.extend(replica.unfeed())
            replica.downstream.since_us = now_us
        successor = replica.position.successor
        if successor is not None and replica.linked and replica.record is not None:
            effects.append(r.Send(successor.broker, m.Adopt(replica.record, replica.revision)))
        return effects

    def peer_connected(self, broker: str, now_us: int) -> list[Effect]:
        """What was on its way on the old connection may be lost: link again."""
        replica = self._replica
        effects: list[Effect] = []
        predecessor = replica.position.predecessor
        if replica.is_successor(broker):
            effects.extend(self.link_again(now_us))
        if predecessor is not None and predecessor.broker == broker and not replica.is_adopting:
            effects += self.ask(now_us)
        return effects
