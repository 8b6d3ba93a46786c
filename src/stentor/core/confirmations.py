"""Where do the committed messages end? A member asks the whole chain before it answers a reader (C30).

    reader ──► member M ── Confirm ──► every other member (and the joiner, in joint mode)
    reader ◄── M ◄── Confirmed, from each of them, with the commit point that it knows

A newer chain has at least one member of this one, or its joiner in joint mode. If every one of them says, after the
question was asked, that it has adopted no newer epoch, then nothing had been acknowledged in a newer one by then; and
what the head has acknowledged is below its commit point. A head that was paused and replaced gets no such answers.

There is one exception. Of a chain that is too short, members that left may lead again (C8), and they are not asked.
Then the answer holds only if the coordination store has no newer record: `if_newest`.

One round is under way at a time; who asks meanwhile waits for the next one, which begins after it asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor import limits
from stentor.core import replica_events as r
from stentor.core.chain_messages import Confirm, Confirmed

if TYPE_CHECKING:
    from stentor.core.replica import Replica
    from stentor.core.replica_events import Certainty
    from stentor.core.replica_events import ReplicaEffect as Effect

_AGAIN_US = int(limits.CONFIRM_AGAIN_S * 1_000_000)


class Confirmations:
    """The questions of readers at one member."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._waiting: list[int] = []  # tickets for the next round
        self._asking: list[int] = []  # tickets of the round that is under way
        self._missing: set[str] = set()  # who has not confirmed in this round
        self._asked_us = 0
        self._nonce = 0
        self._end = 0
        self._sure = False

    @property
    def under_way(self) -> bool:
        return bool(self._asking)

    def ask(self, ticket: int, now_us: int) -> list[Effect]:
        """A reader asks."""
        if not self._replica.serves or len(self._waiting) >= limits.READS_WAITING_MAX:
            return [r.End(ticket, self._replica.committed, "unknown")]
        self._waiting.append(ticket)
        return [] if self._asking else self._begin(now_us)

    def _begin(self, now_us: int) -> list[Effect]:
        self._asking, self._waiting = self._waiting, []
        if not self._asking:
            return []
        replica = self._replica
        self._nonce += 1
        self._end, self._sure = replica.committed, self._knows_all()
        self._missing = {*replica.position.brokers, self._joint_with()} - {replica.me.broker, ""}
        return self._send(now_us) if self._missing else self._finish(now_us)

    def _send(self, now_us: int) -> list[Effect]:
        self._asked_us = now_us
        confirm = Confirm(self._replica.epoch, self._nonce)
        return [r.Send(broker, confirm) for broker in sorted(self._missing)]

    def _knows_all(self) -> bool:
        """The head, once it has renewed its commit point, or has nothing that could be more than that."""
        replica = self._replica
        record = replica.record
        if record is None or not replica.position.is_head or not replica.serves:
            return False
        return not record.is_short or replica.committed == replica.end

    def _joint_with(self) -> str:
        below, successor = self._replica.downstream, self._replica.position.successor
        return successor.broker if below.joint and successor is not None else ""

    def answer(self, sender: str, confirm: Confirm) -> list[Effect]:
        """Another member asks: say yes, or nothing."""
        replica = self._replica
        if not replica.is_in_epoch(confirm.epoch):
            return []
        yes = Confirmed(confirm.epoch, confirm.nonce, replica.committed, self._knows_all(), self._joint_with())
        return [r.Send(sender, yes)]

    def confirmed(self, sender: str, said: Confirmed, now_us: int) -> list[Effect]:
        """Another member confirms."""
        if said.nonce != self._nonce or sender not in self._missing or not self._replica.is_in_epoch(said.epoch):
            return []
        self._missing.discard(sender)
        self._end = max(self._end, said.committed)
        self._sure = self._sure or (said.sure and sender == self._replica.position.brokers[0])
        effects: list[Effect] = []
        if said.joiner and said.joiner != self._replica.me.broker:
            self._missing.add(said.joiner)
            effects.append(r.Send(said.joiner, Confirm(said.epoch, said.nonce)))
        return effects or ([] if self._missing else self._finish(now_us))

    def _finish(self, now_us: int) -> list[Effect]:
        record = self._replica.record
        assert record is not None
        certainty: Certainty = "sure" if self._sure else "unknown"
        if self._sure and record.eligible:
            certainty = "if_newest"
        ends: list[Effect] = [r.End(ticket, self._end, certainty) for ticket in self._asking]
        self._asking = []
        return [*ends, *self._begin(now_us)]

    def tick(self, now_us: int) -> list[Effect]:
        """Questions may be lost."""
        late = self._asking and now_us - self._asked_us >= _AGAIN_US
        return self._send(now_us) if late else []

    def give_up(self) -> list[Effect]:
        """The epoch is over, or this copy is: nobody can say."""
        tickets = [*self._asking, *self._waiting]
        self._asking, self._waiting, self._missing = [], [], set()
        return [r.End(ticket, self._replica.committed, "unknown") for ticket in tickets]
