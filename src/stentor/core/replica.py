"""A partition's replica: the pure machine that assigns offsets, replicates, commits and answers.

Rules kept here (docs/replication.md has them all): C2 to C9, C11, C13, C14, C18; each is named at its place.

Theory of operation. `step(event, now_us)` returns effects, in the order in which they must be
performed. A publish is admitted in two steps so that a full disk never costs an offset (K5):

    Publish ──► Append(base offset, epoch, time) ──performed──► Appended ──► [Sync]
                                            └─────refused by the disk──► nothing happened
    Durable(end) ──► Down to the successor … at the tail Committed ──► Up … at the head Answer(ticket …)

An epoch begins with its record (Configure). The replica wedges, stores the epoch, and then

    head ── linked at once; feeds whoever asks ──►  next member ── Link, cut, Linked ──► … ──► tail
                                                                    Up … Up ◄── as soon as it is linked

Links are made from the head down, so nobody is fed from a log that may still be cut. The head takes work
once the first Up of the epoch has come all the way from the tail. A single broker is a chain of one: its head
is its tail, and is linked by itself.

Invariants: committed <= end at every member; answers go out in offset order; a waiting answer's
level is not reached.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

from stentor.core import chain_messages as m
from stentor.core import decisions, refusals
from stentor.core import replica_events as r
from stentor.core.acks import ALL, HEAD, QUORUM, Acks
from stentor.core.chain_position import ChainPosition
from stentor.core.complaints import Complaints
from stentor.core.confirmations import Confirmations
from stentor.core.downstream import NEVER, Downstream
from stentor.core.linking import Linking
from stentor.core.records import ChainRecord, EpochTable, Member
from stentor.core.standing import Standing
from stentor.core.statistics import ReplicaStatistics, of_replica
from stentor.errors import InternalError, SequenceError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stentor.core.dedupe import Resend
    from stentor.core.derived import States
    from stentor.core.replica_events import ReplicaEffect as Effect
    from stentor.core.replica_events import ReplicaEvent as Event


class Replica:
    """One member of one partition's chain, or on its way to become one."""

    def __init__(
        self,
        *,
        me: Member,
        epoch: int,
        start: int,
        end: int,
        committed: int,
        states: States,
        table: Iterable[tuple[int, int]] = (),
        failed: str = "",
        damaged: bool = False,
        standing: Standing | None = None,
    ) -> None:
        self.me = me
        self.standing = standing or Standing()  # of its broker, which shares it among its replicas
        self.epoch = epoch  # the highest adopted; on disk (C2)
        self.position = ChainPosition()  # by the record of the adopted epoch
        self.revision = 0
        self.start = start
        self.end = end
        self.durable = end  # recovery has synced what it found (K3a)
        self.committed = committed
        self.states = states
        self.dedupe = states.dedupe
        states.commit(committed)
        self.failed = failed
        self.halted = False  # failed because it would lose what is committed: for an operator (C9)
        self.damaged = damaged
        self.table = EpochTable(table)
        self.linked = False  # reconciled with the predecessor in this epoch, or the head
        self.doubted = False  # a peer says that a newer chain does without this member (C28)
        self._adopting: r.Configure | None = None  # wedged: waits for its epoch to be on disk
        self._above = NEVER  # the predecessor's durable_k, heard in this epoch (C5)
        self._quorum_wanted = 0  # up to here somebody waits for a majority, as the predecessor says
        self.downstream = Downstream()
        self._told_up: m.Up | None = None
        self._acks = Acks()
        self.syncing = False
        self.links = Linking(self)
        self.complaints = Complaints(self)
        self.confirmations = Confirmations(self)

    # --- who is where ---------------------------------------------------------------------------

    @property
    def record(self) -> ChainRecord | None:
        """Of the adopted epoch; None before the first."""
        return self.position.record

    @property
    def active(self) -> bool:
        """Whether the whole chain below has adopted the epoch and is linked (C4)."""
        return self.linked and self.record is not None and (self.position.is_tail or bool(self.downstream.durable))

    @property
    def begins(self) -> int:
        """Where the log of a memory topic began when it was lost last: what was before is gone for good."""
        return 0 if self.record is None or self.record.reserved is None else self.record.reserved.begins

    @property
    def begun_in(self) -> int:
        """In which epoch that was; 0: never."""
        return 0 if self.record is None or self.record.reserved is None else self.record.reserved.epoch

    @property
    def serves(self) -> bool:
        """Whether the commit point was renewed in this epoch: what was acknowledged before is below it (C24)."""
        heard = (self.position.is_head or self._above >= 0) and (self.position.is_tail or bool(self.downstream.durable))
        return self.linked and not self.wedged and self.position.index is not None and heard

    @property
    def is_adopting(self) -> bool:
        """Whether it waits for a newer epoch to be on disk."""
        return self._adopting is not None

    @property
    def wedged(self) -> bool:
        """Whether there is, or seems to be, a newer epoch that is not adopted yet (C4, C28)."""
        return self._adopting is not None or self.doubted

    # --- events ---------------------------------------------------------------------------------

    def step(self, event: Event, now_us: int) -> list[Effect]:  # noqa: C901, PLR0911, PLR0912 - one line per event
        """Take an event, return what must be done."""
        match event:
            case r.Publish():
                return [self._publish(event)]
            case r.Appended():
                return self._appended(event)
            case r.Durable():
                return self._durable(event.end)
            case r.Offered():
                return self._offered(event, now_us)
            case r.Taken():
                return self._taken(event)
            case r.NotTaken():
                return self.links.break_off()
            case r.Received():
                return self._received(event, now_us)
            case r.Configure():
                return self._configure(event, now_us)
            case r.Doubted():
                return self._doubt(event.revision)
            case r.Trusted():
                self.doubted = False
                return []
            case r.LetLead():
                self.damaged, self.failed, self.halted = False, "" if self.halted else self.failed, False
                return []
            case r.Halted(for_operator):
                self.halted = for_operator
                return []
            case r.EpochStored():
                return self._epoch_stored(event.epoch, now_us)
            case r.Cut():
                return self.links.cut(event.end, now_us)
            case r.LinkAgain():
                return self.links.link_again(now_us)
            case r.PeerConnected():
                return self.links.peer_connected(event.broker, now_us)
            case r.Tick():
                return self._tick(event, now_us)
            case r.AskEnd(ticket):
                return self.confirmations.ask(ticket, now_us)
            case r.Started():
                self.start = max(self.start, event.start)
                return self.progress()
            case r.Fail():
                return self.fail(event.reason)
        raise InternalError(f"Unknown event {event!r}.")

    # --- publishing -----------------------------------------------------------------------------

    def _publish(self, event: r.Publish) -> Effect:
        refusal = decisions.may_publish(self, event.ack)
        if refusal is not None:
            return r.Refuse(event.ticket, refusal)
        try:
            batch = (event.producer_id, event.generation, event.sequence, event.checksum)
            resend = event.known or self.dedupe.check(*batch)
        except SequenceError as error:
            return r.find_or_refuse(event, error)
        if resend is not None:
            return self._answer_resend(event, resend)
        if not event.sequence and 0 < event.sent_in < self.begun_in:
            return r.Refuse(event.ticket, refusals.lost_with_memory())
        refused = event.conditional is not None and not self.states.allows(event.conditional, event.body)
        return r.Append(self.end, self.epoch, event.stamp_us, refused)

    def _answer_resend(self, event: r.Publish, resend: Resend) -> Effect:
        """A resend is answered like the original: once it has reached its level (C18)."""
        answer = r.Answer(event.ticket, resend.base_offset, self.epoch, resend.appended_at_us, resend.refused)
        if event.ack == 0 or resend.end_offset <= self._reached(event.ack):
            return answer
        self._acks.insert(event.ack, resend.end_offset, answer)
        return r.Sync()

    def _appended(self, event: r.Appended) -> list[Effect]:
        publish, append = event.publish, event.append
        assert append.base_offset == self.end
        self.end = append.base_offset + publish.count
        self.table.note(append.epoch, append.base_offset)
        if publish.ack:
            answer = r.Answer(publish.ticket, append.base_offset, append.epoch, append.appended_at_us, append.refused)
            self._acks.add(publish.ack, self.end, answer)
        # Last: should it fail, the copy stops, and whoever waits is answered (C33).
        self.states.apply(event.batch, event.body)
        return self._sync()

    def _sync(self) -> list[Effect]:
        was_syncing, self.syncing = self.syncing, True
        return [] if was_syncing else [r.Sync()]

    # --- replication, downwards -----------------------------------------------------------------

    def _offered(self, event: r.Offered, now_us: int) -> list[Effect]:
        """C9: take only what continues this very log, from the predecessor of this very epoch."""
        if not self.is_from_predecessor(event.sender, event.epoch):
            return self.tell_replaced(event.sender, event.epoch)
        self._above = max(self._above, event.durable)  # true whether these batches are taken or not, like Down's
        self._quorum_wanted = max(self._quorum_wanted, event.quorum)
        if not self.linked or event.attempt != self.links.attempt or event.base < self.end:
            return []  # for an older link, or said twice
        if event.base > self.end or not self.table.continues(self.end, event.previous):
            return self.links.ask(now_us)
        return [r.Take()]

    def _taken(self, event: r.Taken) -> list[Effect]:
        bodies = event.bodies or repeat(b"")
        for batch, body in zip(event.batches, bodies, strict=False):
            assert batch.base_offset == self.end
            self.table.note(batch.epoch, batch.base_offset)
            self.end = batch.end_offset
            self.states.apply(batch, body)
        return self.progress() + self._sync()  # batches say how far those above are, as Down does

    def _durable(self, end: int) -> list[Effect]:
        self.syncing = False
        if self.failed or self.links.cutting is not None:
            return []
        self.durable = max(self.durable, min(end, self.end))
        return self.progress() + (self._sync() if self.end > self.durable else [])

    def progress(self) -> list[Effect]:
        """Something is further: pass it down, commit at the tail, pass it up, answer."""
        if not self.linked or self._adopting is not None or self.failed:
            return []
        effects: list[Effect] = []
        durable = self.durable_here()
        successor = self.position.successor
        if successor is not None and self.downstream.fed is not None and (durable, self.start) != self.downstream.told:
            self.downstream.told = (durable, self.start)
            effects.append(r.Send(successor.broker, m.Down(self.epoch, durable, self.start)))
        if (end := self._commit_point(durable)) > self.committed:
            self.committed = end
            self.states.commit(end)
            effects.append(r.Committed(end))
        if durable >= 0 and self.position.is_tail and self.record is not None and self.record.joining is not None:
            self._consider_joint(effects)  # once all that was acknowledged in earlier epochs is known to be (C24)
        self._pass_up(effects)
        for ack in self._acks.levels():
            effects.extend(self._acks.reached(ack, self._reached(ack)))
        return effects

    def durable_here(self) -> int:
        """`durable_k`: this member and everyone above it have the log on disk up to here (C5)."""
        return self.durable if self.position.is_head else min(self.durable, self._above)

    def _commit_point(self, durable: int) -> int:
        """What every member has on disk, as far as this one knows: from those above it and those below it (C5)."""
        assert self.record is not None
        if self.position.joins or self.record.is_short:
            return self.committed
        if self.position.is_tail:
            return min(durable, self._own_durable())
        below = self.downstream
        return max(below.committed, min(durable, *below.durable)) if below.durable else self.committed

    def _own_durable(self) -> int:
        """What this member answers for; in joint mode the tail answers for the joiner too (C11)."""
        return min(self.durable, self.downstream.joiner) if self.downstream.joint else self.durable

    def _pass_up(self, effects: list[Effect]) -> None:
        """How far this member and all below it are; at once, so that the head knows as early as can be."""
        predecessor = self.position.predecessor
        if predecessor is None or not (self.position.joins or self.position.is_tail or self.downstream.durable):
            return
        durable, told = [self._own_durable(), *self.downstream.durable], self._told_up
        up = m.Up(self.epoch, durable, self.committed, self.downstream.waits_for_joiner)
        if up.is_news(told, self.position.to_quorum, self._quorum_wanted):
            self._told_up = up
            effects.append(r.Send(predecessor.broker, up))

    def quorum_wanted(self) -> int:
        """Up to where somebody waits for a majority; said along with the batches."""
        return self._acks.last_end(QUORUM) if self.position.is_head else self._quorum_wanted

    # --- replication, upwards -------------------------------------------------------------------

    def _received(self, event: r.Received, now_us: int) -> list[Effect]:
        match event.message:
            case m.Adopt():
                return self._adopt(event.sender, event.message, now_us)
            case m.Link() | m.Linked() | m.AskState() | m.StatePiece():
                return self.links.received(event, event.message, now_us)
            case m.Down():
                return self._down(event.sender, event.message)
            case m.Up():
                return self._up(event.sender, event.message, now_us)
            case m.Held(epoch, end):
                if self.is_current(epoch) and self.is_successor(event.sender):
                    self.downstream.holds(end, now_us)
            case m.Confirm():
                return self.confirmations.answer(event.sender, event.message)
            case m.Confirmed():
                return self.confirmations.confirmed(event.sender, event.message, now_us)
        return []

    def _adopt(self, sender: str, adopt: m.Adopt, now_us: int) -> list[Effect]:
        if adopt.revision == self.revision and self.is_from_predecessor(sender, adopt.record.epoch):
            return self.links.ask(now_us)  # known already: it says that it feeds us no more
        return self._configure(r.Configure(adopt.record, adopt.revision), now_us)

    def _down(self, sender: str, down: m.Down) -> list[Effect]:
        if not self.is_from_predecessor(sender, down.epoch):
            return self.tell_replaced(sender, down.epoch)
        self._above = max(self._above, down.durable)  # it is not said again: keep it while this log is being cut
        effects = self.progress()
        if down.start > self.start:
            effects.append(r.Retire(down.start))
        return effects

    def _up(self, sender: str, up: m.Up, now_us: int) -> list[Effect]:
        if not self.is_current(up.epoch) or not self.is_successor(sender) or self.downstream.fed is None:
            return []
        self.downstream.heard(up, now_us, at_tail=self.position.is_tail)
        return self.progress()

    def _reached(self, ack: int) -> int:
        """Up to where publishes have reached an ack level (C7)."""
        if ack == ALL:
            return self.committed
        assert self.record is not None
        others = 0 if ack == HEAD else self.record.quorum - 1
        if others > len(self.downstream.durable):
            return NEVER  # the chain is shorter than a majority: wait until it is not
        return min([self.durable, *self.downstream.durable[:others]])

    # --- epochs ---------------------------------------------------------------------------------

    def is_current(self, epoch: int) -> bool:
        """C2: only messages of the adopted epoch count."""
        return epoch == self.epoch and self._adopting is None and self.record is not None and not self.failed

    def is_in_epoch(self, epoch: int) -> bool:
        """Whether this member has a place in this epoch, and has heard of no newer one (C30)."""
        return self.is_current(epoch) and not self.doubted and (self.position.index is not None or self.position.joins)

    def is_successor(self, broker: str) -> bool:
        return self.position.successor is not None and self.position.successor.broker == broker

    def is_from_predecessor(self, sender: str, epoch: int) -> bool:
        above = self.position.predecessor
        return self.is_current(epoch) and above is not None and above.broker == sender

    def tell_replaced(self, sender: str, epoch: int) -> list[Effect]:
        """C6: who speaks of an older epoch may hear neither the controller nor the store; it hears it from here."""
        if epoch >= self.epoch or self.record is None:
            return []
        return [r.Send(sender, m.Adopt(self.record, self.revision))]

    def _configure(self, event: r.Configure, now_us: int) -> list[Effect]:
        """A record: wedge, and adopt it once its epoch is on disk (C2, C4)."""
        newest = self._adopting.revision if self._adopting is not None else self.revision
        if event.revision <= newest or event.record.epoch < self.epoch:
            return []
        if self.record is not None and event.record.epoch == self.record.epoch and self._adopting is None:
            return self._joining_changed(event, now_us)
        self._adopting = event
        return [r.StoreEpoch(event.record.epoch), *self.confirmations.give_up()]

    def _doubt(self, revision: int) -> list[Effect]:
        if revision <= self.revision or self.doubted:
            return []
        self.doubted = True
        return [*self._depose(), *self.confirmations.give_up()]

    def _epoch_stored(self, epoch: int, now_us: int) -> list[Effect]:
        if self._adopting is None or self._adopting.record.epoch != epoch:
            return []
        event, self._adopting = self._adopting, None
        self.revision, self.epoch, self.doubted = event.revision, event.record.epoch, False
        self.position.find(event.record, self.me)
        self._forget_epoch(now_us)
        effects = self.unfeed()
        if not self.position.is_head:
            effects.extend(self._depose())
        effects.extend(self.enter(now_us))
        return effects

    def enter(self, now_us: int) -> list[Effect]:
        """Begin the epoch, unless the log is being cut right now; then its end is the beginning."""
        if self.links.cutting is not None or self.failed:
            return []
        return self.become_linked(now_us) if self.position.is_head else self.links.ask(now_us)

    def _forget_epoch(self, now_us: int) -> None:
        """C5: what was heard in an older epoch says nothing about this one."""
        self.linked = False
        self._above = NEVER
        self._told_up = None
        self.links.transfer.forget()
        self.complaints.forget()
        self.downstream.forget(now_us)

    def _joining_changed(self, event: r.Configure, now_us: int) -> list[Effect]:
        """The same chain with another joiner: the tail will hear from it (C11)."""
        assert self.record is not None
        before = self.record.joining
        self.revision = event.revision
        self.position.find(event.record, self.me)
        if self.downstream.joint:
            return []  # joint mode ends with the epoch, not before
        if self.position.joins and self.position.index is None:
            return self.links.ask(now_us)
        if self.position.is_tail and before != event.record.joining:
            self.downstream.joiner_changed()
            self.downstream.since_us = now_us
            return self.unfeed() + self.links.answer_asked(now_us)
        return []

    def unfeed(self) -> list[Effect]:
        if self.downstream.fed is None:
            return []
        self.downstream.fed = None
        return [r.StopFeed()]

    def _depose(self) -> list[Effect]:
        """C6: no longer the head; whether what waited will be committed is for others to say."""
        error = refusals.deposed()
        return [r.Refuse(ticket, error) for ticket in self._acks.give_up()]

    def become_linked(self, now_us: int) -> list[Effect]:
        """This log is reconciled with the predecessor's, or is the head's: it is cut no more in this epoch."""
        self.linked = True
        self.damaged = False  # below the head it has all that is committed; a head was judged when it was named (C13)
        self._told_up = None
        return [*self.links.offer(now_us), *self.progress()]

    # --- joint mode -----------------------------------------------------------------------------

    def _consider_joint(self, effects: list[Effect]) -> None:
        """C11: near the end, commit nothing without the joiner; with everything, propose it."""
        self.downstream.consider_joint(self.end, self.durable)
        if not self.downstream.told_ready and self.downstream.joiner_is_ready and self.position.successor is not None:
            self.downstream.told_ready = True  # ticks say it again
            effects.append(r.Report(m.JoinerReady(self.epoch, self.position.successor)))

    # --- time -----------------------------------------------------------------------------------

    def _tick(self, tick: r.Tick, now_us: int) -> list[Effect]:
        effects: list[Effect] = []
        if self.failed or self.record is None or self._adopting is not None:
            return effects
        effects.extend(self.links.tick(now_us))
        joiner = self.record.joining if self.position.is_tail and self.linked else None
        if joiner is not None and self.downstream.joiner_is_ready:
            effects.append(r.Report(m.JoinerReady(self.epoch, joiner)))
        effects.extend(self.complaints.tick(tick, now_us))
        effects.extend(self.confirmations.tick(now_us))
        return effects

    # --- the end --------------------------------------------------------------------------------

    def fail(self, reason: str) -> list[Effect]:
        self.failed, self.damaged = reason, True
        error = refusals.unknown(reason)
        refused = (r.Refuse(ticket, error) for ticket in self._acks.give_up())
        self.links.transfer.forget()
        return [*refused, *self.unfeed(), *self.confirmations.give_up()]

    # --- what others see ------------------------------------------------------------------------

    def report(self) -> m.ReplicaReport:
        return m.ReplicaReport(self.me, self.epoch, self.end, self.committed, self.damaged, self.failed, self.halted)

    def statistics(self) -> ReplicaStatistics:
        return of_replica(self, waiting=len(self._acks))

    def check_invariants(self) -> None:
        """Called by tests and the simulator after every step."""
        assert max(self.durable, self.committed) <= self.end
        for ack, end in self._acks.first_ends().items():
            assert end > self._reached(ack) or not self.linked or self._adopting is not None
